"""Fixture of these tests: a small model."""

from __future__ import annotations

import pytest
from support.small_models import chain, saved


@pytest.fixture
def source(tmp_path):
    """A small model, alone in a folder."""
    folder = tmp_path / "source"
    folder.mkdir()
    return saved(chain(["Relu", "Add", "Sigmoid", "Add"]), folder / "m.onnx")
