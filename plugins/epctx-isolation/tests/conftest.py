"""The fixtures of `tests/api/isolation`, and shared memory."""

import pytest
from epctx_isolation.shared_memory import HostMemory
from isolation.fixtures import temporary  # noqa: F401 - fixtures


@pytest.fixture
def host():
    """Host's side of shared memory."""
    made = HostMemory()
    yield made
    made.close()
