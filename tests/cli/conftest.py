"""Fixtures of `tests/api/cli`."""

from cli.conftest import epctx, model, site  # noqa: F401 - fixtures
