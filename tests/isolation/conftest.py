"""The fixtures of `tests/api/isolation`."""

from isolation.conftest import temporary  # noqa: F401 - fixtures
