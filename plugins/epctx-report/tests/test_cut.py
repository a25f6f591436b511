"""The cut of a model: boxes without cycles, and the values between them."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest
from epctx_report.columns import make_columns
from epctx_report.cut import SESSION
from epctx_report.layering import lay_out
from epctx_report.reading import make_cut
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.random_graphs import MixedScope, drawn_model, is_acyclic
from support.sim_eps import CPU, OPENVINO, QNN, VITISAI, with_eps
from support.taker import Taker, options_with, registry_with

from epctx_core import explain_model

pytestmark = pytest.mark.internal

SLOW = [HealthCheck.too_slow]


def cut_of(model, *eps):
    """Return a model's explanation and cut."""
    data = model if isinstance(model, bytes) else onnx.parser.parse_model(model)
    data = data if isinstance(data, bytes) else data.SerializeToString()
    explanation = explain_model(data, with_eps(*eps))
    return explanation, make_cut(explanation)


@st.composite
def cases(draw):
    """Draw a model with control flow, and EPs."""
    eps = draw(st.permutations([OPENVINO, QNN, VITISAI]))[: draw(st.integers(0, 3))]
    return drawn_model(draw, MixedScope).SerializeToString(), eps


@given(cases())
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_every_node_is_in_one_box_of_its_ep_and_its_graph(case):
    model, eps = case
    explanation, cut = cut_of(model, *eps)

    members = Counter(node for box in cut.boxes for node in box.nodes)
    assert members == Counter(range(len(cut.nodes)))
    for number, box in enumerate(cut.boxes):
        assert {cut.nodes[node].ep for node in box.nodes} == {box.ep}
        assert {cut.nodes[node].graph for node in box.nodes} == {box.graph}
        assert {cut.box_of[node] for node in box.nodes} == {number}
    explained = [node for node in cut.nodes if node.ep != SESSION]
    assert Counter(node.explanation for node in explained) == Counter(explanation.nodes)


@given(cases())
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_the_boxes_have_no_cycle(case):
    model, eps = case
    _, cut = cut_of(model, *eps)
    inside = [
        (a, b) for a, b in cut.edges() if cut.nodes[a].graph == cut.nodes[b].graph
    ]

    assert is_acyclic([{*box.nodes} for box in cut.boxes], inside)


@given(cases())
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_partitions_of_the_cut_are_those_of_the_explanation(case):
    model, eps = case
    explanation, cut = cut_of(model, *eps)

    found = {
        (box.partition, frozenset(cut.nodes[node].name for node in box.nodes))
        for box in cut.boxes
        if box.partition is not None
    }
    expected = {}
    for node in explanation.nodes:
        if node.partition is not None:
            expected.setdefault(node.partition, set()).add(node.name)
    assert found == {(number, frozenset(names)) for number, names in expected.items()}


def test_nodes_that_no_ep_took_are_one_box_unless_a_partition_lies_between():
    # The simulated OpenVINO takes no Hardmax.
    _, cut = cut_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[4, 4] x) => (float[4, 4] y, float[4, 4] z) {
            [one] a = Hardmax(x)  [two] b = Hardmax(a)  [ep] c = Relu(b)
            [three] d = Hardmax(c)  [four] y = Max(d, a)  [five] z = Hardmax(a)
        }""",
        OPENVINO,
    )

    names = [{cut.nodes[node].name for node in box.nodes} for box in cut.boxes]
    assert names == [{"one", "two", "five"}, {"ep"}, {"three"}, {"four"}]


def test_a_value_crosses_once_for_each_box_that_reads_it_however_often():
    # The simulated OpenVINO takes no IsNaN.
    _, cut = cut_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 8] x) => (float[2, 8] y) {
            a = Relu(x)  n = IsNaN(a)  b = Neg(a)  c = Where(n, a, b)  y = Add(c, a)
        }""",
        OPENVINO,
    )

    crossings = {
        (cut.boxes[each.source].ep, cut.boxes[each.target].ep, each.value.name):
            each.value.type
        for each in cut.crossings
    }  # fmt: skip
    assert crossings == {
        (OPENVINO, CPU, "a"): ("float[2,8]", 64),
        (CPU, OPENVINO, "n"): ("bool[2,8]", 16),
        (OPENVINO, OPENVINO, "a"): ("float[2,8]", 64),
        (OPENVINO, OPENVINO, "b"): ("float[2,8]", 64),
    }
    assert len(list(cut.crossings)) == len(crossings)


def test_a_subgraph_that_the_session_runs_is_a_graph_of_its_node():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 8] x, bool c) => (float[2, 8] y) <float[8] w = {1,2,3,4,5,6,7,8}> {
            [outer] a = Relu(x)
            [choice] y = If (c) <
                then_branch = t () => (float[2, 8] u) { [inner] u = Add(a, w) },
                else_branch = e () => (float[2, 8] v) { v = Erf(a) }
            >
        }"""
    )
    options = options_with(Taker)

    cut = make_cut(
        explain_model(model.SerializeToString(), options, registry=registry_with(Taker))
    )

    owners = {graph.owner for graph in cut.graphs if graph.owner is not None}
    assert [graph.name for graph in cut.graphs] == [
        "g",
        "choice.else_branch",
        "choice.then_branch",
    ]
    assert {cut.nodes[owner].name for owner in owners} == {"choice"}
    assert cut.eps == [Taker.name, CPU, SESSION]
    (read,) = [value for value in cut.values if value.name == "a"]
    assert cut.nodes[read.producer].name == "outer"
    assert {cut.nodes[reader].name for reader in read.readers} == {"Erf_0", "inner"}
    names = {(cut.nodes[a].name, cut.nodes[b].name) for a, b in cut.edges()}
    assert ("outer", "choice") in names
    bytes_of = make_columns(cut)["nodes"]["weight_bytes"]
    found = {node.name: size for node, size in zip(cut.nodes, bytes_of, strict=True)}
    assert found == {"outer": 0, "choice": 0, "Erf_0": 0, "inner": 32}


def test_weights_in_subgraphs_of_a_node_that_is_taken_whole_are_its_own():
    _, cut = cut_of(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x, bool c) => (float[2] y) <float[2] v = {1, 2}> {
            y = If (c) <
                then_branch = t () => (float[2] u) <float[2] w = {1, 2}>
                    { u = Add(x, w) },
                else_branch = e () => (float[2] z) { z = Add(x, v) }
            >
        }"""
    )

    assert [node.operator for node in cut.nodes] == ["If"]
    assert make_columns(cut)["nodes"]["weight_bytes"] == [16]


def test_bytes_of_values_follow_from_types_and_are_open_for_open_shapes():
    _, cut = cut_of(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[2, N] x, float16[3, 5] h, int4[5] q) => (float[2, N] y, float16[3, 5] z)
        { y = Relu(x)  z = Neg(h) }"""
    )

    sizes = {value.name: value.type.bytes for value in cut.values}
    assert sizes == {"x": None, "h": 30, "q": 3, "y": None, "z": 30}


def test_a_weight_counts_once_in_a_box_that_reads_it_twice(tmp_path):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}>
        { a = Add(x, w)  y = Mul(a, w) }"""
    )

    columns = make_columns(cut_of(model.SerializeToString())[1])

    assert columns["nodes"]["weight_bytes"] == [16, 0]
    assert [name for name in columns["values"]["name"] if name == "w"] == []


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_edges_of_a_layout_lead_down_and_no_two_nodes_lie_on_each_other(data):
    count = data.draw(st.integers(1, 40))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = {(a, b) for a, b in data.draw(st.sets(pairs, max_size=120)) if a < b}

    layers, xs = lay_out(count, edges)

    assert all(layers[a] < layers[b] for a, b in edges)
    assert len({*zip(layers, xs, strict=True)}) == count
    assert min(layers) == 0
    assert min(xs) == 0


def test_a_chain_of_a_hundred_thousand_is_laid_out_in_one_column():
    count = 100_000

    layers, xs = lay_out(count, [(each, each + 1) for each in range(count - 1)])

    assert layers == list(range(count))
    assert {*xs} == {0}


@pytest.mark.parametrize("count", [400, 401])
def test_only_graphs_of_more_than_400_boxes_have_positions(count):
    relu = "v{} = Relu(v{})"
    steps = " ".join(relu.format(each + 1, each) for each in range(count))
    _, cut = cut_of(
        '<ir_version: 8, opset_import: ["" : 17]> '
        f"g (float[4] v0) => (float[4] v{count}) {{ {steps} }}"
    )

    columns = make_columns(cut)

    assert columns["boxes"]["layer"] is None
    assert (columns["inner"] is not None) == (count > 400)
