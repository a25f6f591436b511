"""Fixtures of `tests/api/cli`."""

from cli.fixtures import epctx, model, process, site  # noqa: F401 - fixtures
