"""Fixtures of this folder: a small source, and another folder to compile into."""

from __future__ import annotations

import pytest
from support.small_models import chain, saved


@pytest.fixture
def source(tmp_path):
    """A small model; some modules have another."""
    return saved(chain(["Relu", "Add", "Sigmoid", "Add"]), tmp_path / "m.onnx")


@pytest.fixture
def other_folder(tmp_path):
    """An empty folder."""
    folder = tmp_path / "second"
    folder.mkdir()
    return folder
