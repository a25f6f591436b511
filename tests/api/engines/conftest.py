"""Fixtures of `tests/api/engines`."""

from engines.fixtures import engine  # noqa: F401 - fixtures
