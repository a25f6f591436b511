"""Fixtures of faults: a small source, its compiled pair, and all that the verbs are
given.
"""

from __future__ import annotations

import pytest
from faults.verbs import write_sources
from support.routes import Pair, with_qnn
from support.small_models import chain, saved

import epctx_core as epctx


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


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder with all that the verbs are given."""
    folder = tmp_path_factory.mktemp("sources")
    write_sources(folder)
    return folder
