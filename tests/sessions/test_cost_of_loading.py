"""Work that loading a context model avoids: inference of types that are declared."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from support.agreement_of_routes import compiled, loaded, model_of
from support.engine_eps import Alpha
from support.small_models import SHAPE, chain

from epctx_core.errors import EpctxError, InternalError, PluginError

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(SHAPE)
OPERATORS = ["Relu", "Tanh", "Add", "Tanh", "Relu", "Tanh", "Relu"]


@pytest.fixture
def context_model(tmp_path):
    """Four partitions with an equal node between each two."""
    compiled(chain(OPERATORS), tmp_path / "m.onnx", Alpha)
    return tmp_path / "m_ctx.onnx"


@pytest.fixture
def inferred(monkeypatch):
    """Number of times that onnx inferred a model's types."""
    calls = []
    real = onnx.shape_inference.infer_shapes

    def counted(*args, **options):
        calls.append(args)
        return real(*args, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", counted)
    return calls


def test_types_that_a_context_model_declares_are_not_inferred(context_model, inferred):
    with loaded(context_model, Alpha) as session:
        result = session.run(None, {"x": X})

    assert not inferred
    source = onnxruntime.InferenceSession(chain(OPERATORS).SerializeToString())
    np.testing.assert_allclose(result[0], source.run(None, {"x": X})[0], rtol=1e-6)


def test_a_context_model_that_declares_only_what_onnxruntime_needs_is_inferred_once(
    context_model, inferred
):
    model = onnx.load(context_model)
    made = {
        name
        for node in model.graph.node
        if node.op_type == "EPContext"
        for name in node.output
    }
    kept = [v for v in model.graph.value_info if v.name in made]
    assert len(kept) < len(model.graph.value_info)
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    onnx.save(model, context_model)

    with loaded(context_model, Alpha) as session:
        session.run(None, {"x": X})

    assert len(inferred) == 1


@pytest.mark.parametrize("element", [onnx.TensorProto.INT64, onnx.TensorProto.DOUBLE])
def test_a_declared_type_that_is_wrong_is_an_error_of_ours_or_changes_nothing(
    context_model, element
):
    with loaded(context_model, Alpha) as session:
        expected = session.run(None, {"x": X})
    model = onnx.load(context_model)
    for place in range(len(model.graph.value_info)):
        wrong = onnx.ModelProto()
        wrong.CopyFrom(model)
        wrong.graph.value_info[place].type.tensor_type.elem_type = element
        onnx.save(wrong, context_model)

        try:
            with loaded(context_model, Alpha) as session:
                result = session.run(None, {"x": X})
        except EpctxError as error:
            assert not isinstance(error, InternalError | PluginError), error
            continue

        np.testing.assert_array_equal(result[0], expected[0])


def test_single_nodes_of_a_body_are_not_taken_for_those_of_the_graph_around_it(
    tmp_path,
):
    model = model_of(
        """agraph (bool c, float[2] x) => (float[2] y) {
            a = Tanh(x)
            b = Relu(a)
            y = If (c) <
                then_branch = t () => (float[2] d) { e = Relu(b)  d = Neg(e) },
                else_branch = f () => (float[2] g) { h = Relu(b)  g = Exp(h) }
            >
        }"""
    )
    compiled(model, tmp_path / "m.onnx", Alpha)
    source = onnxruntime.InferenceSession(model.SerializeToString())
    x = np.array([-1.5, 0.5], np.float32)

    with loaded(tmp_path / "m_ctx.onnx", Alpha) as session:
        for choice in (True, False):
            feeds = {"c": np.array(choice), "x": x}
            np.testing.assert_allclose(
                session.run(None, feeds)[0], source.run(None, feeds)[0], rtol=1e-6
            )
