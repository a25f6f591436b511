"""A spliced model says what its source says, without what the new nodes took with
them.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.graph_models import BOOL, conditional, model, node, tensor, value
from support.witness import compiled

BIG = 400


def layered(ir_version=10, extra_inputs=()):
    """y = |x + w1| + w2 with one small and one large weight, and one that both layers
    read.
    """
    shape = [BIG]
    return model(
        [
            node("Add", ["x", "w1"], ["a"], name="first"),
            node("Mul", ["a", "shared"], ["b"], name="second"),
            node("Abs", ["b"], ["c"], name="third"),
            node("Add", ["c", "w2"], ["d"], name="fourth"),
            node("Mul", ["d", "shared"], ["y"], name="fifth"),
        ],
        [value("x", shape=shape), *(value(n, shape=s) for n, s in extra_inputs)],
        [value("y", shape=shape)],
        [
            tensor("w1", np.arange(BIG)),
            tensor("w2", np.arange(BIG) * 2),
            tensor("shared", 2.0),
        ],
        ir_version=ir_version,
    )


def described():
    """`layered`, with everything that a model can say about itself."""
    made = layered()
    made.producer_name, made.producer_version = "exporter", "3.1"
    made.domain, made.model_version, made.doc_string = "org.example", 7, "a net"
    made.metadata_props.add(key="license", value="MIT")
    made.graph.doc_string = "the graph"
    made.graph.metadata_props.add(key="g", value="1")
    made.graph.initializer[1].doc_string = "second weight"
    made.graph.initializer[1].metadata_props.add(key="origin", value="trained")
    made.graph.value_info.append(value("a", shape=[BIG]))
    made.graph.value_info.append(value("d", shape=[BIG]))
    annotation = made.graph.quantization_annotation.add(tensor_name="c")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="shared")
    made.opset_import.add(domain="own", version=1)
    return made


def test_what_the_model_says_about_itself_is_kept():
    made = described()

    result = compiled(made, [0, 1])

    for field in (
        "ir_version",
        "producer_name",
        "producer_version",
        "domain",
        "model_version",
        "doc_string",
    ):
        assert getattr(result, field) == getattr(made, field)
    assert list(result.metadata_props)[:1] == list(made.metadata_props)
    assert [(o.domain, o.version) for o in result.opset_import] == [
        ("", 21),
        ("own", 1),
        ("com.microsoft", 1),
    ]
    for field in ("name", "doc_string"):
        assert getattr(result.graph, field) == getattr(made.graph, field)
    assert list(result.graph.metadata_props) == list(made.graph.metadata_props)
    assert list(result.graph.quantization_annotation) == list(
        made.graph.quantization_annotation
    )
    assert list(result.graph.input) == list(made.graph.input)
    assert list(result.graph.output) == list(made.graph.output)


def test_functions_that_remaining_nodes_call_are_kept_as_they_are():
    def function(name, body):
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
        made = helper.make_function("own", name, ["v"], ["r"], [body], opsets)
        made.doc_string = f"what {name} does"
        return made

    outer = function("outer", helper.make_node("inner", ["v"], ["r"], domain="own"))
    made = model(
        [
            node("Neg", ["x"], ["a"]),
            helper.make_node("outer", ["a"], ["y"], domain="own"),
        ],
        ["x"],
        ["y"],
        opsets=[("", 21), ("own", 1)],
        functions=[function("inner", node("Abs", ["v"], ["r"])), outer],
    )

    result = compiled(made, [0], keeps_functions=[("own", "outer"), ("own", "inner")])

    assert [n.op_type for n in result.graph.node] == ["EPContext", "outer"]
    assert list(result.functions) == list(made.functions)


def test_without_a_replacement_the_model_stays_the_same():
    made = described()

    result = compiled(made)

    assert result.SerializeToString(deterministic=True) == made.SerializeToString(
        deterministic=True
    )


def test_replaced_nodes_are_gone_and_the_others_stay_in_order():
    result = compiled(layered(), [0, 1], [3])

    assert [n.op_type for n in result.graph.node] == [
        "EPContext",
        "Abs",
        "EPContext",
        "Mul",
    ]
    assert [n.name for n in result.graph.node][1::2] == ["third", "fifth"]
    onnx.checker.check_model(result)


def test_weights_that_only_replaced_nodes_read_are_gone_and_the_others_are_inline_and_equal():
    made = described()

    result = compiled(made, [0, 1])

    kept = {t.name: t for t in result.graph.initializer}
    assert set(kept) == {"w2", "shared"}
    assert kept["w2"].raw_data == made.graph.initializer[1].raw_data
    assert kept["w2"].doc_string == "second weight"
    assert list(kept["w2"].metadata_props) == list(
        made.graph.initializer[1].metadata_props
    )
    assert kept["shared"] == made.graph.initializer[2]


def test_a_weight_that_is_an_output_stays():
    made = layered()
    made.graph.output.append(value("w1", shape=[BIG]))

    result = compiled(made, [0, 1])

    assert [t.name for t in result.graph.initializer] == ["w1", "w2", "shared"]


def test_a_weight_that_a_body_reads_stays():
    made = model(
        [node("Add", ["x", "w"], ["a"]), conditional("c", "w", "a", "y")],
        [value("c", BOOL, []), "x"],
        ["y"],
        [tensor("w", [1, 2])],
    )

    result = compiled(made, [0])

    assert [t.name for t in result.graph.initializer] == ["w"]
    onnx.checker.check_model(result)


def test_kept_initializers_stay_as_inputs_of_the_new_node():
    result = compiled(layered(), [0, 1], keep_initializers=True)

    assert list(result.graph.node[0].input) == ["x", "w1", "shared"]
    assert [t.name for t in result.graph.initializer] == ["w1", "w2", "shared"]


def test_a_weight_that_nobody_reads_stays():
    made = layered()
    made.graph.initializer.append(tensor("unused", [1]))

    assert "unused" in {t.name for t in compiled(made, [0, 1]).graph.initializer}


def test_before_ir_version_4_inputs_of_taken_weights_are_gone_and_the_others_stay():
    names = [("w1", [BIG]), ("w2", [BIG]), ("shared", [])]
    made = layered(ir_version=3, extra_inputs=names)

    result = compiled(made, [0, 1])

    assert [v.name for v in result.graph.input] == ["x", "w2", "shared"]
    assert [t.name for t in result.graph.initializer] == ["w2", "shared"]
    onnx.checker.check_model(result)


def test_a_default_that_the_caller_may_override_stays_a_default():
    made = layered(extra_inputs=[("w1", [BIG])])

    result = compiled(made, [0, 1])

    assert [v.name for v in result.graph.input] == ["x", "w1"]
    assert "w1" in {t.name for t in result.graph.initializer}
    assert list(result.graph.node[0].input) == ["x", "w1"]


def test_sparse_weights_go_with_the_nodes_that_read_them():
    def sparse(name):
        values = numpy_helper.from_array(np.array([3.0], np.float32), name)
        return helper.make_sparse_tensor(
            values, numpy_helper.from_array(np.array([1], np.int64)), [2]
        )

    made = model(
        [node("Add", ["x", "s1"], ["a"]), node("Add", ["a", "s2"], ["y"])],
        ["x"],
        ["y"],
        sparse_initializer=[sparse("s1"), sparse("s2")],
    )

    result = compiled(made, [0])

    assert [tensor.name for tensor in result.graph.initializer] == ["s2"]


def typed(result):
    return {v.name: v.type.tensor_type for v in result.graph.value_info}


def test_what_new_nodes_read_and_make_has_its_type():
    result = compiled(layered(), [0, 1], [3])

    types = typed(result)
    assert set(types) == {"b", "c", "d"}
    assert types["b"].elem_type == TensorProto.FLOAT
    assert [d.dim_value for d in types["b"].shape.dim] == [BIG]


def test_types_of_values_that_are_gone_are_gone():
    result = compiled(described(), [0, 1])

    assert set(typed(result)) == {"b", "d"}


def test_a_graph_output_needs_no_second_type():
    result = compiled(layered(), [2, 3, 4])

    assert set(typed(result)) == {"b"}


def test_an_entry_without_a_type_gives_way_to_the_inferred_one():
    made = layered()
    made.graph.value_info.add(name="b")

    result = compiled(made, [0, 1])

    assert typed(result)["b"].elem_type == TensorProto.FLOAT


def test_symbolic_names_of_dimensions_are_kept():
    made = model(
        [node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["y"])],
        [value("x", shape=["batch", 2])],
        [value("y", shape=["batch", 2])],
    )

    dims = typed(compiled(made, [0]))["a"].shape.dim

    assert [d.dim_param or d.dim_value for d in dims] == ["batch", 2]


@pytest.mark.parametrize("groups", [([0, 1],), ([0], [3]), ([0, 1, 2, 3, 4],)], ids=str)
def test_onnxruntime_takes_the_model_up_to_asking_for_an_ep(groups, tmp_path):
    made = layered()
    path = tmp_path / "m_ctx.onnx"
    path.write_bytes(compiled(made, *groups).SerializeToString())

    with pytest.raises(Exception, match="EPContext") as caught:
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    assert re.search(r"not compatible with any execution provider", str(caught.value))
