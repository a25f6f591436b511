"""Graph transformations of host plugins, seen from inside: no second index for nothing."""

from __future__ import annotations

import pytest
from support.routes import with_transformers
from support.small_models import chain, saved

import epctx_core as epctx
from epctx_core.sessions import optimise

pytestmark = pytest.mark.internal


@pytest.fixture
def model(tmp_path):
    return saved(chain(["Neg", "Relu", "Add"]), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "answer", [lambda model: None, lambda model: model], ids=["None", "the same model"]
)
def test_a_host_plugin_that_changes_nothing_costs_no_second_index(
    model, tmp_path, monkeypatch, answer
):
    def refuse(*_given):
        raise AssertionError("indexed again")

    def look(model, _weights, _level):
        return answer(model)

    monkeypatch.setattr(optimise, "index_model", refuse)
    report = epctx.ModelCompiler(with_transformers(look), model).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )

    assert len(report.partitions) == 1
