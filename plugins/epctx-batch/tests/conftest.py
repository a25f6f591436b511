"""Fixture of the command line."""

from cli.fixtures import epctx  # noqa: F401 - a fixture
