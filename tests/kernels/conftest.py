"""The fixture of `tests/api/kernels`."""

from kernels.fixtures import engine  # noqa: F401 - a fixture
