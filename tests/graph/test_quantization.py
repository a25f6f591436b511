"""Groups of an operator and the quantisation around it: found, kept whole, and never in
the way of partitions.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graph_models import model, node, tensor
from support.graph_reading import indexed

from epctx_core.graph.extraction import GraphSlice
from epctx_core.graph.partition import Partitioner, find_quantized_groups

pytestmark = pytest.mark.internal

INT8 = 3
FREE = [False] * 50
SCALES = [tensor("s", 0.5), tensor("z", 0, np.int8)]


class Builder:
    """Puts a quantised graph together; names are the nodes' results."""

    def __init__(self):
        self.nodes = []

    def add(self, op, result, *inputs, name=""):
        self.nodes.append(node(op, inputs, [result], name=name or result))
        return result

    def dq(self, result, source):
        return self.add("DequantizeLinear", result, source, "s", "z")

    def q(self, result, source):
        return self.add("QuantizeLinear", result, source, "s", "z")

    def index(self, *outputs):
        from support.graph_models import value

        quantized = {n.output[0] for n in self.nodes if n.op_type == "QuantizeLinear"}
        made = [value(name, INT8) if name in quantized else name for name in outputs]
        return indexed(model(self.nodes, ["x"], made, SCALES))


def one_group():
    """x -> q0 -> d1 -> Relu -> q1, and a float tail."""
    b = Builder()
    b.q("q0", "x")
    b.dq("d1", "q0")
    b.add("Relu", "r", "d1")
    b.q("q1", "r")
    b.dq("d2", "q1")
    b.add("Exp", "y", "d2")
    return b.index("y")


def members(graph):
    return [
        [graph.nodes[i].name for i in (*group.sources, group.target, *group.sinks)]
        for group in find_quantized_groups(graph).groups
    ]


def names(graph, indices):
    return sorted(graph.nodes[i].name for i in indices)


def test_an_operator_between_dequantize_and_quantize_is_a_group():
    assert members(one_group()) == [["d1", "r", "q1"]]


def test_a_graph_without_quantization_has_no_groups():
    graph = indexed(model([node("Relu", ["x"], ["y"])], ["x"], ["y"]))

    assert find_quantized_groups(graph).groups == []
    assert find_quantized_groups(graph).find_incomplete([0], FREE) == {}
    assert find_quantized_groups(graph).make_units([0]) == [[0]]


def test_an_operator_whose_float_result_is_read_is_in_no_group():
    b = Builder()
    b.q("q0", "x")
    b.dq("d1", "q0")
    b.add("Relu", "r", "d1")
    b.q("q1", "r")
    b.add("Exp", "y", "r")

    assert members(b.index("q1", "y")) == []


def test_a_graph_output_is_a_float_reader_too():
    b = Builder()
    b.q("q0", "x")
    b.dq("d1", "q0")
    b.add("Relu", "r", "d1")
    b.q("q1", "r")

    assert members(b.index("q1", "r")) == []


def test_a_scale_that_a_node_computes_makes_no_group():
    b = Builder()
    b.q("q0", "x")
    b.dq("d1", "q0")
    b.add("Relu", "r", "d1")
    b.add("ReduceMax", "scale", "x")
    b.add("QuantizeLinear", "q1", "r", "scale", "z")

    assert members(b.index("q1")) == []


def test_a_whole_group_is_one_unit_and_other_nodes_are_one_each():
    graph = one_group()

    assert find_quantized_groups(graph).make_units(range(6)) == [
        [1, 2, 3],
        [0],
        [4],
        [5],
    ]
    assert find_quantized_groups(graph).find_incomplete(range(6), FREE) == {}


def test_what_is_left_of_a_group_is_left_out_with_the_reason():
    graph = one_group()

    for missing, name in (
        (1, "DequantizeLinear 'd1'"),
        (3, "QuantizeLinear 'q1'"),
        (2, "Relu 'r'"),
    ):
        left_out = find_quantized_groups(graph).find_incomplete(
            set(range(6)) - {missing}, FREE
        )

        assert set(left_out) == {1, 2, 3} - {missing}
        for reason in left_out.values():
            assert reason == (
                "Relu 'r' and the quantisation around it are taken whole or not at "
                f"all, and {name} is not taken"
            )


def test_a_dequantize_that_somebody_has_taken_breaks_no_group():
    graph = one_group()
    taken = [i == 1 for i in range(6)]

    assert find_quantized_groups(graph).find_incomplete([0, 2, 3, 4, 5], taken) == {}


def shared():
    """Two operators read d1: Relu and, later, Add (a residual connection)."""
    b = Builder()
    b.q("q0", "x")
    b.dq("d1", "q0")
    b.add("Relu", "r", "d1")
    b.q("q1", "r")
    b.dq("d2", "q1")
    b.add("Add", "a", "d1", "d2")
    b.q("q2", "a")
    return b.index("q2")


def test_a_shared_dequantize_belongs_to_every_group_and_stands_with_its_first_reader():
    graph = shared()

    assert members(graph) == [["d1", "r", "q1"], ["d1", "d2", "a", "q2"]]
    assert find_quantized_groups(graph).make_units(range(7)) == [
        [1, 2, 3],
        [4, 5, 6],
        [0],
    ]


def test_a_shared_dequantize_is_taken_for_the_group_that_is_whole():
    graph = shared()

    assert names(
        graph, find_quantized_groups(graph).find_incomplete({0, 1, 3, 4, 5, 6}, FREE)
    ) == ["q1"]
    assert names(
        graph, find_quantized_groups(graph).find_incomplete({0, 1, 2, 3, 4, 5}, FREE)
    ) == [
        "a",
        "d2",
    ]


def test_without_its_shared_dequantize_no_group_is_taken():
    graph = shared()

    assert names(
        graph, find_quantized_groups(graph).find_incomplete({0, 2, 3, 4, 5, 6}, FREE)
    ) == [
        "a",
        "d2",
        "q1",
        "q2",
        "r",
    ]


def test_convex_groups_leave_out_what_is_not_whole():
    graph = one_group()
    view = GraphSlice(graph, Partitioner(graph.predecessors), FREE[:6])

    groups = view.convex_groups([n for n in view.nodes if n.name != "q1"])

    assert sorted(n.name for group in groups for n in group) == ["d2", "q0", "y"]
    assert names(graph, view.left_out) == ["d1", "r"]


@st.composite
def quantized_graphs(draw):
    """Random graphs in which values change between float and 8 bits, with shared and
    dangling nodes.
    """
    b = Builder()
    floats, quantized = ["x"], [b.q("q", "x")]
    for number in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(["group", "group", "dq", "q", "op", "op2"]))
        if kind == "group":
            inputs = [
                b.dq(f"d{number}_{place}", draw(st.sampled_from(quantized)))
                for place in range(draw(st.integers(1, 2)))
            ]
            floats += inputs
            inputs.append(draw(st.sampled_from(floats)))
            quantized.append(b.q(f"v{number}", b.add("Add", f"r{number}", *inputs[:2])))
        elif kind == "dq":
            floats.append(b.dq(f"v{number}", draw(st.sampled_from(quantized))))
        elif kind == "q":
            quantized.append(b.q(f"v{number}", draw(st.sampled_from(floats))))
        else:
            inputs = [
                draw(st.sampled_from(floats)) for _ in range(2 if kind == "op2" else 1)
            ]
            floats.append(
                b.add("Add" if kind == "op2" else "Relu", f"v{number}", *inputs)
            )
    read = {name for n in b.nodes for name in n.input}
    ends = [n.output[0] for n in b.nodes if n.output[0] not in read]
    return b.index(*ends), draw(st.sets(st.sampled_from(range(len(b.nodes)))))


@settings(max_examples=300, deadline=None)
@given(quantized_graphs())
def test_claims_are_whole_and_units_can_always_be_partitioned(case):
    graph, expected = case
    taken = [False] * len(graph.nodes)

    kept = (
        expected - find_quantized_groups(graph).find_incomplete(expected, taken).keys()
    )
    units = find_quantized_groups(graph).make_units(sorted(kept))
    groups = Partitioner(graph.predecessors).group(units)

    assert find_quantized_groups(graph).find_incomplete(kept, taken) == {}
    assert sorted(i for group in groups for i in group) == sorted(kept)
    for group in find_quantized_groups(graph).groups:
        inside = kept & {group.target, *group.sinks}
        assert inside in (set(), {group.target, *group.sinks})
        assert not inside or kept.issuperset(group.sources)
        together = {
            number
            for number, g in enumerate(groups)
            for i in (*group.owned, group.target, *group.sinks)
            if i in g
        }
        assert len(together) <= 1 or not inside
