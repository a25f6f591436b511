"""Fixtures of `tests/api/kernels`."""

from kernels.fixtures import engine  # noqa: F401 - fixtures
