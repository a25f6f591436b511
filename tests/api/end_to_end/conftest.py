"""Fixtures for bad input: a small source, its compiled pair, and a watch on temporary
files.
"""

from __future__ import annotations

import tempfile

import pytest
from end_to_end.routes import Pair, with_qnn
from end_to_end.small_models import chain, saved

import epctx_core as epctx


@pytest.fixture
def no_temporary_files(tmp_path_factory, monkeypatch):
    """Count as left behind whatever a failure leaves in the system's temporary
    folder.
    """
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


@pytest.fixture
def source(tmp_path):
    """A small model, alone in a folder."""
    folder = tmp_path / "source"
    folder.mkdir()
    return saved(chain(["Relu", "Add", "Sigmoid", "Add"]), folder / "m.onnx")


@pytest.fixture
def pair(tmp_path, source):
    """A context model by QNN with its binary, alone in a folder."""
    folder = tmp_path / "pair"
    folder.mkdir()
    epctx.ModelCompiler(with_qnn(), source).compile_to_file(folder / "m_ctx.onnx")
    return Pair(folder, folder / "m_ctx.onnx", folder / "m_qnn.bin")
