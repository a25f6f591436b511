"""A folder for temporary files of a test's own, so that what is left there is seen."""

from __future__ import annotations

import tempfile

import pytest


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder
