"""Context models that break a rule of ONNX's form: whoever loads them takes that form
for granted and does not ask onnx's checker while all is in order.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.out_of_form import FAULTS, add_branches

import epctx_core as epctx

X = np.array([[-1.0, 2.0]], np.float32)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_context_model_out_of_form_gets_the_verdict_of_onnxs_checker(
    context_model, fault
):
    model = onnx.ModelProto.FromString(context_model.SerializeToString())
    fault(model)
    content = model.SerializeToString()
    try:
        onnx.checker.check_model(content)
    except onnx.checker.ValidationError:
        with pytest.raises(epctx.InvalidGraph, match="the ONNX checker refuses"):
            epctx.InferenceSession(content)
    else:
        pytest.fail("the checker accepts it")


def test_a_node_for_the_cpu_ep_that_its_operator_does_not_allow_is_refused_by_the_engine(
    context_model,
):
    model = onnx.ModelProto.FromString(context_model.SerializeToString())
    model.graph.node[1].attribute.add(name="surplus", type=onnx.AttributeProto.INT, i=1)

    with pytest.raises(epctx.EpctxError, match="surplus"):
        epctx.InferenceSession(model.SerializeToString())


def test_versions_that_onnx_does_not_know_are_refused(context_model):
    model = onnx.ModelProto.FromString(context_model.SerializeToString())
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    assert model.opset_import[0].domain == ""

    with pytest.raises(epctx.InvalidGraph, match="imports version"):
        epctx.InferenceSession(model.SerializeToString())


def test_an_operators_name_that_is_not_utf_8_is_refused(context_model):
    model = onnx.ModelProto.FromString(context_model.SerializeToString())
    model.graph.node[1].op_type = "NoText"
    content = model.SerializeToString().replace(b"NoText", b"NoTe\xff\xfe")

    with pytest.raises(epctx.InvalidGraph):
        epctx.InferenceSession(content)


def test_an_attribute_of_an_epcontext_node_that_is_given_twice_is_refused(
    context_model,
):
    model = onnx.ModelProto.FromString(context_model.SerializeToString())
    node = model.graph.node[0]
    node.attribute.add().CopyFrom(node.attribute[0])

    with pytest.raises(epctx.InvalidGraph, match="twice"):
        epctx.InferenceSession(model.SerializeToString())


def test_a_constant_node_whose_result_has_no_name_gives_nothing(context_model):
    model = onnx.ModelProto.FromString(context_model.SerializeToString())
    model.graph.node.append(helper.make_node("Constant", [], [""], value_float=1.0))

    with epctx.InferenceSession(model.SerializeToString()) as session:
        z, _ = session.run(None, {"x": X})

    assert z.tolist() == [[1.0, 3.0]]


def test_text_that_is_not_utf_8_is_refused_where_it_is_a_result(context_model):
    model = onnx.ModelProto.FromString(context_model.SerializeToString())
    text = helper.make_tensor("text", TensorProto.STRING, [1], [b"\xff"])
    model.graph.initializer.append(text)
    model.graph.output.append(
        helper.make_tensor_value_info("text", TensorProto.STRING, [1])
    )

    with pytest.raises(epctx.InvalidGraph, match="'text' has text that is not UTF-8"):
        epctx.InferenceSession(model.SerializeToString())


def test_an_initializer_that_has_no_use_and_a_default_of_an_input_are_in_form(
    context_model,
):
    model = onnx.ModelProto.FromString(context_model.SerializeToString())
    unused = helper.make_tensor("unused", TensorProto.INT8, [2], [-1, 1])
    default = helper.make_tensor("x", TensorProto.FLOAT, [1, 2], X.ravel().tolist())
    model.graph.initializer.extend([unused, default])

    with epctx.InferenceSession(model.SerializeToString()) as session:
        z, w = session.run(None, {})

    assert z.tolist() == [[1.0, 3.0]]
    assert w.tolist() == [[1.0, 3.0]]


def test_nodes_that_are_not_sorted_are_taken_as_onnxruntime_takes_them(context_model):
    model = onnx.ModelProto.FromString(context_model.SerializeToString())
    nodes = list(context_model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))

    with epctx.InferenceSession(model.SerializeToString()) as session:
        z, _ = session.run(None, {"x": X})

    assert z.tolist() == [[1.0, 3.0]]


def test_both_branches_may_give_one_name(context_model):
    model = onnx.ModelProto.FromString(context_model.SerializeToString())
    add_branches(model, "m = Neg(x) t0 = Neg(m)", "m = Abs(x) f0 = Neg(m)")

    with epctx.InferenceSession(model.SerializeToString()) as session:
        *_, v = session.run(None, {"x": X})

    assert v.tolist() == X.tolist()
