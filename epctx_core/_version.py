"""The version of epctx-core, read by hatchling and shown by `epctx --version`."""

__version__ = "0.1.0"
