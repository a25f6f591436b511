"""The fixture of `tests/api/kernels`."""

from kernels.conftest import engine  # noqa: F401 - a fixture
