"""The fixtures of `tests/api/isolation`."""

from isolation.fixtures import temporary  # noqa: F401 - fixtures
