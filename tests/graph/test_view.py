"""What EPs see of a graph: read-only, equal by place, and never the model itself."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graph.making import conditional, indexed, model, node, tensor, value
from onnx import TensorProto, helper

from epctx_core.errors import InvalidArgument
from epctx_core.graph.partition import Partitioner
from epctx_core.graph.subgraph import GraphSlice
from epctx_core.graph.view import Node, attribute_value
from epctx_core.plugin import UNKNOWN_TYPE


def sliced(made, taken=()):
    graph = indexed(made)
    partitioner = Partitioner(graph.predecessors)
    partitioner.take([[i] for i in taken])
    return GraphSlice(graph, partitioner, [i in taken for i in range(len(graph.nodes))])


def chain():
    return model(
        [node("Neg", ["x"], ["a"], name="first"), node("Add", ["a", "w"], ["b"]), node("Abs", ["b"], ["y"])],
        ["x"],
        ["y"],
        [tensor("w", [1, 2])],
    )


def test_a_view_shows_what_is_left_and_who_made_the_rest():
    view = sliced(chain(), taken=[0])

    assert [n.op_type for n in view.nodes] == ["Add", "Abs"]
    assert view.producer("a").name == "first"
    assert [n.index for n in view.consumers("a")] == [1]
    assert view.producer("x") is None
    assert view.consumers("y") == view.consumers("") == []


def test_a_view_shows_inputs_outputs_opsets_and_types():
    view = sliced(chain())

    assert [v.name for v in view.inputs] == ["x"]
    assert [v.name for v in view.outputs] == ["y"]
    assert view.opset_imports == {"": 21}
    assert str(view.value("b").type) == "float[2]"
    assert view.value("nothing").type is UNKNOWN_TYPE


def test_a_weight_is_shown_unless_the_caller_may_override_it():
    fixed = sliced(chain())
    open_ = sliced(model([node("Add", ["x", "w"], ["y"])], ["x", "w"], ["y"], [tensor("w", [1, 2])]))

    assert fixed.initializer("w").array().tolist() == [1, 2]
    assert fixed.initializer("x") is None
    assert open_.initializer("w") is None


def test_a_view_gives_the_whole_model_as_a_copy():
    view = sliced(chain(), taken=[0])

    view.model().graph.node[0].op_type = "Changed"

    assert [n.op_type for n in view.model().graph.node] == ["Neg", "Add", "Abs"]
    onnx.checker.check_model(view.model())


def test_two_views_of_one_node_are_equal_and_of_two_graphs_are_not():
    one, other = indexed(chain()), indexed(chain())

    assert Node(one, 1) == Node(one, 1)
    assert len({Node(one, 1), Node(one, 1), Node(one, 2)}) == 2
    assert Node(one, 1) != Node(other, 1)
    assert Node(one, 1) != 1


def test_a_node_view_gives_a_copy_of_the_node():
    graph = indexed(chain())

    Node(graph, 0).proto().op_type = "Changed"

    assert Node(graph, 0).op_type == "Neg"


@pytest.mark.parametrize("kind", ["graph", "graphs", "tensors", "type"])
def test_attributes_that_could_be_changed_are_copies(kind):
    graph = conditional("c", "a", "b", "y").attribute[0].g
    values = {
        "graph": graph,
        "graphs": [graph],
        "tensors": [tensor("t", [1])],
        "type": helper.make_tensor_type_proto(TensorProto.FLOAT, [1]),
    }
    attribute = helper.make_attribute("a", values[kind])
    before = attribute.SerializeToString(deterministic=True)

    decoded = attribute_value(attribute)
    (decoded[0] if isinstance(decoded, list) else decoded).Clear()

    assert attribute.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("given", "decoded"),
    [
        (3, 3),
        (0.5, 0.5),
        ("text", "text"),
        (b"\xff\xfe", b"\xff\xfe"),
        ([1, 2], [1, 2]),
        ([0.5, 1.5], [0.5, 1.5]),
        (["a", b"\xff"], ["a", b"\xff"]),
    ],
)
def test_attributes_are_python_values(given, decoded):
    found = attribute_value(helper.make_attribute("a", given))

    assert found == decoded
    assert type(found) is type(decoded)


def test_a_tensor_attribute_is_a_read_only_array():
    array = attribute_value(helper.make_attribute("a", tensor("t", [1, 2])))

    assert array.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 5


def test_attributes_of_a_node_cannot_be_set():
    made = model([node("Softmax", ["x"], ["y"], axis=0)], ["x"], ["y"])

    with pytest.raises(TypeError):
        Node(indexed(made), 0).attributes["axis"] = 1


def test_grouping_gives_back_the_nodes_it_was_given():
    view = sliced(chain())

    groups = view.convex_groups([view.nodes[0], view.nodes[2], view.nodes[0]])

    assert groups == [[view.nodes[0]], [view.nodes[2]]]


def test_grouping_refuses_a_node_that_was_taken():
    view = sliced(chain(), taken=[0])

    with pytest.raises(InvalidArgument, match=r"node 'first' \(Neg\) cannot be grouped"):
        view.convex_groups([view.producer("a"), *view.nodes])


def test_a_nodes_version_is_that_of_its_domain():
    made = model(
        [helper.make_node("Own", ["x"], ["a"], domain="own"), node("Neg", ["a"], ["y"])],
        ["x"],
        ["y"],
        opsets=[("", 21), ("own", 3)],
    )
    graph = indexed(made)

    assert [Node(graph, i).opset_version for i in (0, 1)] == [3, 21]
    assert [Node(graph, i).domain for i in (0, 1)] == ["own", ""]


def test_a_type_without_numpy_counterpart_has_a_dtype_of_its_own():
    made = model(
        [node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16), node("Cast", ["h"], ["y"], to=1)], ["x"], ["y"]
    )
    found = sliced(made).value("h")

    assert found.dtype.name == "bfloat16"
    assert found.dtype.itemsize == 2
    assert found.type.is_static
    assert sliced(made).value("nothing").dtype is None
    assert isinstance(np.zeros(1, found.dtype), np.ndarray)


def test_sequences_are_of_unknown_type():
    made = model(
        [node("SequenceConstruct", ["x"], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=0)],
        ["x"],
        [value("y", shape=[2])],
    )
    onnx.checker.check_model(made)

    assert sliced(made).value("s").type is UNKNOWN_TYPE
