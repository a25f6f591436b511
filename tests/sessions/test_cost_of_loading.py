"""Work that loading a context model avoids: preparing equal groups twice, keeping the
model's index.
"""

from __future__ import annotations

import gc

import pytest
from control_flow.agreement_of_routes import compiled, loaded
from end_to_end.engine_eps import Alpha
from end_to_end.small_models import SHAPE, chain
from epctx_onnxruntime.engine import OnnxRuntimeEngine

from epctx_core.graph.index import GraphIndex

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
