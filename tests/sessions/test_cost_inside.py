"""Work that loading a context model avoids: preparing equal groups twice, keeping the
model's index.
"""

from __future__ import annotations

import gc

import pytest
from epctx_onnxruntime.engine import OnnxRuntimeEngine
from support.agreement_of_routes import compiled, loaded
from support.engine_eps import Alpha
from support.small_models import SHAPE, chain, saved

import epctx_core as epctx
from epctx_core.graph.index import GraphIndex
from epctx_core.graph.model_io import SourceModel

pytestmark = pytest.mark.internal

OPERATORS = ["Relu", "Tanh", "Add", "Tanh", "Relu", "Tanh", "Relu"]


@pytest.fixture
def context_model(tmp_path):
    """Four partitions with an equal node between each two."""
    compiled(chain(OPERATORS), tmp_path / "m.onnx", Alpha)
    return tmp_path / "m_ctx.onnx"


def test_equal_nodes_between_partitions_are_prepared_once(context_model, monkeypatch):
    made = []
    real = OnnxRuntimeEngine.prepare

    def counted(self, model, *rest, **options):
        made.append([node.op_type for node in model.graph.node])
        return real(self, model, *rest, **options)

    monkeypatch.setattr(OnnxRuntimeEngine, "prepare", counted)

    loaded(context_model, Alpha).close()

    assert made.count(["Tanh"]) == 1


def test_a_session_keeps_no_index_of_its_model(context_model):
    gc.collect()
    before = sum(type(thing) is GraphIndex for thing in gc.get_objects())

    with loaded(context_model, Alpha) as session:
        gc.collect()
        during = sum(type(thing) is GraphIndex for thing in gc.get_objects())
        assert session.get_inputs()[0].shape == list(SHAPE)

    assert during == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session.engine", "onnx.reference"),
        ("session.record_ep_graph_assignment_info", "1"),
    ],
)
def test_a_session_without_eps_digests_no_model(tmp_path, monkeypatch, key, value):
    """Also where the engine does not get the model whole."""
    asked = []
    monkeypatch.setattr(SourceModel, "digest", property(asked.append))
    options = epctx.SessionOptions()
    options.add_session_config_entry(key, value)

    epctx.InferenceSession(
        saved(chain(OPERATORS), tmp_path / "m.onnx"), options
    ).close()

    assert asked == []
