"""Fixtures of `tests/api/cli`."""

from cli.fixtures import epctx, model, site  # noqa: F401 - fixtures
