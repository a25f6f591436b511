"""Views of a graph for EPs: read-only, equal by index, and never the model itself."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.graph_models import model, node, tensor, value
from support.witness import looked, view

from epctx_core.errors import InvalidArgument
from epctx_core.plugin import UNKNOWN_TYPE


def chain():
    return model(
        [
            node("Neg", ["x"], ["a"], name="first"),
            node("Add", ["a", "w"], ["b"]),
            node("Abs", ["b"], ["y"]),
        ],
        ["x"],
        ["y"],
        [tensor("w", [1, 2])],
    )


def test_a_view_shows_what_is_left_and_who_made_the_rest():
    seen = view(chain(), taken=[0])

    assert [n.op_type for n in seen.nodes] == ["Add", "Abs"]
    assert seen.producer("a").name == "first"
    assert [n.index for n in seen.consumers("a")] == [1]
    assert seen.producer("x") is None
    assert seen.consumers("y") == seen.consumers("") == []


def test_a_view_shows_inputs_outputs_opsets_and_types():
    seen = view(chain())

    assert [v.name for v in seen.inputs] == ["x"]
    assert [v.name for v in seen.outputs] == ["y"]
    assert seen.opset_imports == {"": 21}
    assert str(seen.value("b").type) == "float[2]"
    assert seen.value("nothing").type is UNKNOWN_TYPE


def test_a_weight_is_shown_unless_the_caller_may_override_it():
    fixed = view(chain())
    open_ = view(
        model(
            [node("Add", ["x", "w"], ["y"])], ["x", "w"], ["y"], [tensor("w", [1, 2])]
        )
    )

    assert fixed.initializer("w").array().tolist() == [1, 2]
    assert fixed.initializer("x") is None
    assert open_.initializer("w") is None


def test_a_view_gives_the_whole_model_as_a_copy():
    seen = view(chain(), taken=[0])

    seen.model().graph.node[0].op_type = "Changed"

    assert [n.op_type for n in seen.model().graph.node] == ["Neg", "Add", "Abs"]
    onnx.checker.check_model(seen.model())


def test_two_views_of_one_node_are_equal_and_of_two_graphs_are_not():
    # Of a node that was taken, each question makes a view.
    one, other = view(chain(), taken=[0]), view(chain())
    again = one.producer("a")

    assert one.producer("a") == again
    assert one.producer("a") is not again
    assert len({one.producer("a"), again, one.nodes[1]}) == 2
    assert one.nodes[1] != other.nodes[1]
    assert one.nodes[1] != 1


def test_a_node_view_gives_a_copy_of_the_node():
    first = view(chain()).nodes[0]

    first.proto().op_type = "Changed"

    assert first.op_type == first.proto().op_type == "Neg"


def with_attribute(value):
    """Return the view of a node of nobody's operator with an attribute."""
    own = helper.make_node("Own", ["x"], ["y"], domain="own")
    own.attribute.append(helper.make_attribute("a", value))
    return view(model([own], ["x"], ["y"], opsets=[("", 21), ("own", 1)])).nodes[0]


@pytest.mark.parametrize("kind", ["graph", "graphs", "tensors", "type"])
def test_attributes_that_could_be_changed_are_copies(kind):
    graph = helper.make_graph([node("Neg", ["x"], ["t"])], "body", [], [value("t")])
    values = {
        "graph": graph,
        "graphs": [graph],
        "tensors": [tensor("t", [1])],
        "type": helper.make_tensor_type_proto(TensorProto.FLOAT, [1]),
    }
    seen = with_attribute(values[kind])
    before = seen.proto().SerializeToString(deterministic=True)

    given = seen.attributes["a"]
    (given[0] if isinstance(given, list) else given).Clear()

    assert seen.proto().SerializeToString(deterministic=True) == before


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
    found = with_attribute(given).attributes["a"]

    assert found == decoded
    assert type(found) is type(decoded)


def test_a_tensor_attribute_is_a_read_only_array():
    array = with_attribute(tensor("t", [1, 2])).attributes["a"]

    assert array.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 5


def test_attributes_of_a_node_cannot_be_set():
    with pytest.raises(TypeError):
        with_attribute(0).attributes["a"] = 1


def test_grouping_gives_back_the_nodes_it_was_given():
    def grouped(seen):
        return [[seen.nodes[0]], [seen.nodes[2]]], seen.convex_groups(
            [seen.nodes[i] for i in (0, 2, 0)]
        )

    given, groups = looked(chain(), grouped)

    assert groups == given


def test_grouping_refuses_a_node_that_was_taken():
    def group_all(seen):
        with pytest.raises(InvalidArgument) as caught:
            seen.convex_groups([seen.producer("a"), *seen.nodes])
        return caught.value.message

    assert "node 'first' (Neg) cannot be grouped" in looked(
        chain(), group_all, taken=[0]
    )


def test_a_nodes_version_is_that_of_its_domain():
    made = model(
        [
            helper.make_node("Own", ["x"], ["a"], domain="own"),
            node("Neg", ["a"], ["y"]),
        ],
        ["x"],
        ["y"],
        opsets=[("", 21), ("own", 3)],
    )

    nodes = view(made).nodes

    assert [n.opset_version for n in nodes] == [3, 21]
    assert [n.domain for n in nodes] == ["own", ""]


def test_a_type_without_numpy_counterpart_has_a_dtype_of_its_own():
    made = model(
        [
            node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16),
            node("Cast", ["h"], ["y"], to=1),
        ],
        ["x"],
        ["y"],
    )
    found = view(made).value("h")

    assert found.dtype.name == "bfloat16"
    assert found.dtype.itemsize == 2
    assert found.type.is_static
    assert view(made).value("nothing").dtype is None
    assert isinstance(np.zeros(1, found.dtype), np.ndarray)


def test_sequences_are_of_unknown_type():
    made = model(
        [
            node("SequenceConstruct", ["x"], ["s"]),
            node("ConcatFromSequence", ["s"], ["y"], axis=0),
        ],
        ["x"],
        [value("y", shape=[2])],
    )
    onnx.checker.check_model(made)

    assert view(made).value("s").type is UNKNOWN_TYPE
