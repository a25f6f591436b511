"""The fixture of `tests/api/engines`."""

from engines.fixtures import engine  # noqa: F401 - a fixture
