"""What a vendor's conditions may know of a node before a run."""

from __future__ import annotations

import numpy as np
import pytest
from epctx_sim_sdk.values import constant, is_constant, text_attribute
from onnx import TensorProto, helper, numpy_helper

from epctx_core import InferenceSession, Registry
from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    ExecutionProvider,
    hookimpl,
)

pytestmark = pytest.mark.internal

GIVEN = {
    "value": (numpy_helper.from_array(np.array([1.5, 2.5], np.float32)), [1.5, 2.5]),
    "value_int": (7, 7),
    "value_ints": ([1, 2], [1, 2]),
    "value_float": (0.5, 0.5),
    "value_floats": ([0.25, 4.0], [0.25, 4.0]),
}


def view(*nodes, weight):
    """A graph of these nodes with the input x and the weight w."""
    graph = helper.make_graph(
        [*nodes, helper.make_node("Neg", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(weight, "w")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    views = []

    class Asking(ExecutionProvider):
        name = "SimExecutionProvider"

        @hookimpl
        def get_capability(self, graph):
            views.append(graph)
            return [ComputeCapability([node]) for node in graph.nodes]

        @hookimpl
        def compile(self, partitions):
            return [CompiledPartition(lambda *_given: []) for _ in partitions]

    registry = Registry(entry_points=False)
    registry.register(Asking)
    InferenceSession(
        model.SerializeToString(), providers=[Asking.name], registry=registry
    ).close()
    return views[0]


@pytest.mark.parametrize("size", [3, 3000], ids=["small", "large"])
def test_a_weight_is_a_constant(size):
    weight = np.arange(size, dtype=np.float32)

    graph = view(weight=weight)

    assert is_constant(graph, "w")
    np.testing.assert_array_equal(constant(graph, "w"), weight)


@pytest.mark.parametrize("kind", GIVEN)
def test_what_a_constant_node_gives_is_a_constant(kind):
    given, wanted = GIVEN[kind]

    graph = view(
        helper.make_node("Constant", [], ["c"], **{kind: given}),
        weight=np.zeros(1, np.float32),
    )

    assert is_constant(graph, "c")
    np.testing.assert_array_equal(constant(graph, "c"), wanted)


@pytest.mark.parametrize("name", ["x", "y", "theirs"])
def test_inputs_results_and_another_domains_constants_are_none(name):
    theirs = helper.make_node(
        "Constant", [], ["theirs"], value_int=1, domain="com.example"
    )

    graph = view(theirs, weight=np.zeros(1, np.float32))

    assert not is_constant(graph, name)
    assert constant(graph, name) is None


def test_a_constant_of_strings_is_known_and_has_no_numbers():
    graph = view(
        helper.make_node("Constant", [], ["c"], value_string="a"),
        weight=np.zeros(1, np.float32),
    )

    assert is_constant(graph, "c")
    assert constant(graph, "c") is None


@pytest.mark.parametrize(
    ("stored", "text"),
    [({}, "linear"), ({"mode": "cubic"}, "cubic"), ({"mode": b"\xff"}, "�")],
)
def test_an_attribute_is_text_whatever_its_bytes_are(stored, text):
    graph = view(
        helper.make_node("Resize", ["x"], ["r"], name="r", **stored),
        weight=np.zeros(1, np.float32),
    )

    (node,) = (node for node in graph.nodes if node.op_type == "Resize")

    assert text_attribute(node, "mode", "linear") == text
