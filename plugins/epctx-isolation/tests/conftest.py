"""A folder for temporary files, and shared memory."""

from __future__ import annotations

import tempfile

import pytest
from epctx_isolation.shared_memory import HostMemory


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files of a test's own, so that what is left there is
    seen.
    """
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def host():
    """Host's side of shared memory."""
    made = HostMemory()
    yield made
    made.close()
