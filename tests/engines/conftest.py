"""Fixtures of `tests/engines`."""

from engines.fixtures import engine  # noqa: F401 - fixtures
