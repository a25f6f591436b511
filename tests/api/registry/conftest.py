"""Fixtures of `tests/api/registry`."""

from registry.fixtures import packages  # noqa: F401 - fixtures
