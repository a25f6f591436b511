"""Graph transformers, seen from inside: no second index for nothing, and the end of one
that hangs.
"""

from __future__ import annotations

import sys
import threading
import time

import pytest
from end_to_end.small_models import chain, saved
from installed import install_distribution

import epctx_core as epctx
from epctx_core import ModelLoadCanceled
from epctx_core.sessions import optimise

HANGING = """
import time
from pathlib import Path

def hang(model, weights, level):
    Path({path!r}).touch()
    time.sleep(600)
"""


@pytest.fixture
def model(tmp_path):
    return saved(chain(["Neg", "Relu", "Add"]), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    "answer", [lambda model: None, lambda model: model], ids=["None", "the same model"]
)
def test_a_transformer_that_changes_nothing_costs_no_second_index(
    model, tmp_path, monkeypatch, answer
):
    def refuse(*_given):
        raise AssertionError("indexed again")

    def look(model, _weights, _level):
        return answer(model)

    monkeypatch.setattr(optimise, "index_model", refuse)
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    options.add_graph_transformer(look)
    report = epctx.ModelCompiler(options, model).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )

    assert [each.changed for each in report.graph_transformers] == [False]


def test_an_isolated_transformer_that_hangs_ends_with_the_cancellation(
    model, tmp_path, monkeypatch
):
    monkeypatch.setattr("epctx_isolation.process.GRACE_SECONDS", 0.2)
    begun = tmp_path / "begun"
    entries = {"epctx.graph_transformers": {"hang": "hanging_transformer:hang"}}
    install_distribution(tmp_path, "hanging", entries)
    (tmp_path / "hanging_transformer.py").write_text(HANGING.format(path=str(begun)))
    monkeypatch.syspath_prepend(str(tmp_path))
    options = epctx.SessionOptions()
    options.add_graph_transformer("hang")
    options.add_session_config_entry("ep.isolate", "compile")
    canceller = threading.Thread(target=cancel_when, args=(options, begun))
    canceller.start()

    with pytest.raises(ModelLoadCanceled):
        epctx.ModelCompiler(options, model).compile_to_file(tmp_path / "m_ctx.onnx")

    canceller.join()
    assert begun.exists()
    assert "hanging_transformer" not in sys.modules, "it is imported where it is called"


def cancel_when(options, path):
    while not path.exists():
        time.sleep(0.01)
    options.set_load_cancellation_flag(True)
