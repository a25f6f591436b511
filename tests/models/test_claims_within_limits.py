"""Quantized groups are taken whole, partitions only if large enough and not too many;
the report says why.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from support.special_models import made, node, numbers, value
from support.taker import (
    Taker,
    assert_same,
    compile_with,
    expected,
    options_with,
    run_with,
    through_everything,
)

import epctx_core as epctx
from epctx_core.plugin import ComputeCapability, hookimpl

FEEDS = {"x": numbers(2, 3)}
QUANTIZERS = [
    numpy_helper.from_array(np.float32(0.05), "s"),
    numpy_helper.from_array(np.uint8(128), "z"),
]


def quantized_chain(*operators):
    """Return x, quantised; then each operator between DequantizeLinear and
    QuantizeLinear; float again.
    """
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q0"])]
    for number, op in enumerate(operators):
        nodes += [
            node("DequantizeLinear", [f"q{number}", "s", "z"], [f"d{number}"]),
            node(op, [f"d{number}"], [f"f{number}"]),
            node("QuantizeLinear", [f"f{number}", "s", "z"], [f"q{number + 1}"]),
        ]
    nodes.append(node("DequantizeLinear", [f"q{len(operators)}", "s", "z"], ["y"]))
    for one in nodes:
        one.name = one.output[0]
    return made(nodes, [value("x")], [value("y")], QUANTIZERS)


class Integer(Taker):
    """Takes quantised Relu and Neg, and all that quantises."""

    operators = frozenset({"Relu", "Neg", "QuantizeLinear", "DequantizeLinear"})


class NoQuantize(Taker):
    """Takes everything but QuantizeLinear."""

    operators = frozenset({"Relu", "Neg", "DequantizeLinear"})


class OneByOne(Taker):
    """Claims each node as a set of its own, without asking the core to group them."""

    operators = frozenset({"Relu", "Neg", "QuantizeLinear", "DequantizeLinear"})

    @hookimpl
    def get_capability(self, graph):
        return [
            ComputeCapability([n]) for n in graph.nodes if n.op_type in self.operators
        ]


def saved(model, folder):
    folder.mkdir()
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


def taken(report):
    return {name for partition in report.partitions for name in partition.node_names}


@pytest.mark.parametrize("ep", [Integer, OneByOne])
def test_a_group_around_an_operator_that_is_not_taken_is_left_whole(tmp_path, ep):
    model = quantized_chain("Relu", "Sigmoid", "Neg")
    wanted = expected(model, FEEDS)

    outcome = through_everything(
        saved(model, tmp_path / "in"), FEEDS, tmp_path / "out", ep=ep
    )

    assert taken(outcome.report) == {"q0", "d0", "f0", "q1", "d2", "f2", "q3", "y"}
    reason = "Sigmoid 'f1' and the quantisation around it are taken whole or not at all"
    refused = {
        name
        for r in outcome.report.refusals
        if r.reason.startswith(reason)
        for name in r.nodes
    }
    assert refused == {"d1", "q2"}
    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, wanted)


def test_an_operator_is_not_taken_without_what_quantizes_its_result(tmp_path):
    report = compile_with(
        NoQuantize, saved(quantized_chain("Relu", "Neg"), tmp_path / "in")
    )

    assert taken(report) == set()
    reasons = [r.reason for r in report.refusals if "Relu 'f0'" in r.reason]
    assert reasons == [
        (
            "Relu 'f0' and the quantisation around it are taken whole or not at all, "
            "and QuantizeLinear 'q1' is not taken"
        )
    ]


def test_a_set_that_an_ep_names_is_given_up_whole(tmp_path):
    class OneSet(Integer):
        @hookimpl
        def get_capability(self, graph):
            return [
                ComputeCapability([n for n in graph.nodes if n.name in {"d0", "f0"}])
            ]

    report = compile_with(OneSet, saved(quantized_chain("Relu"), tmp_path / "in"))

    assert report.partitions == ()
    assert report.refusals[0].nodes == ("d0", "f0")
    assert "QuantizeLinear 'q1' is not taken" in report.refusals[0].reason


def test_a_group_is_in_one_partition(tmp_path):
    report = compile_with(
        OneByOne, saved(quantized_chain("Relu", "Sigmoid", "Neg"), tmp_path / "in")
    )

    assert [set(p.node_names) for p in report.partitions] == [
        {"q0", "d0", "f0", "q1"},
        {"d2", "f2", "q3", "y"},
    ]


def test_sets_that_hold_a_group_together_are_in_one_partition(tmp_path):
    # f1 reads d0 of the beginning and, behind a Sigmoid that nobody takes, d1: alone,
    # d0 would stay at the beginning.
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q0"]),
        node("DequantizeLinear", ["q0", "s", "z"], ["d0"]),
        node("Neg", ["x"], ["n0"]),
        node("Sigmoid", ["n0"], ["f0"]),
        node("QuantizeLinear", ["f0", "s", "z"], ["q1"]),
        node("DequantizeLinear", ["q1", "s", "z"], ["d1"]),
        node("Add", ["d0", "d1"], ["f1"]),
        node("QuantizeLinear", ["f1", "s", "z"], ["q2"]),
        node("DequantizeLinear", ["q2", "s", "z"], ["y"]),
    ]
    for one in nodes:
        one.name = one.output[0]

    class TwoSets(Taker):
        @hookimpl
        def get_capability(self, graph):
            return [
                ComputeCapability([n for n in graph.nodes if n.name in names])
                for names in ({"n0"}, {"q0"}, {"d0"}, {"d1", "f1", "q2"})
            ]

    report = compile_with(
        TwoSets,
        saved(made(nodes, [value("x")], [value("y")], QUANTIZERS), tmp_path / "in"),
    )

    (together,) = (set(p.node_names) for p in report.partitions if "f1" in p.node_names)
    assert together >= {"d0", "d1", "f1", "q2"}


def alternating(*lengths):
    """Return runs of Relu and Neg of these lengths, with Sigmoid between them."""
    nodes, last = [], "x"
    for place, length in enumerate(lengths):
        for number in range(length):
            nodes.append(
                node("Neg" if number % 2 else "Abs", [last], [f"n{place}_{number}"])
            )
            last = nodes[-1].output[0]
        nodes.append(node("Sigmoid", [last], [f"s{place}"]))
        last = f"s{place}"
    nodes[-1].output[0] = "y"
    for one in nodes:
        one.name = one.output[0]
    return made(nodes, [value("x")], [value("y")])


LENGTHS = (1, 4, 2, 4, 3)


@pytest.mark.parametrize(
    ("entries", "sizes"),
    [
        ({}, [1, 4, 2, 4, 3]),
        ({"ep__partition_min_nodes": 2}, [4, 2, 4, 3]),
        ({"ep__partition_min_nodes": 5}, []),
        ({"ep__partition_max_count": 3}, [4, 4, 3]),
        ({"ep__partition_max_count": 1}, [4]),
        ({"ep__partition_max_count": 0}, []),
        ({"ep__partition_min_nodes": 4, "ep__partition_max_count": 1}, [4]),
        ({"ep__partition_min_nodes": 3, "ep__partition_max_count": 9}, [4, 4, 3]),
    ],
)
def test_the_limits_say_which_partitions_stay(tmp_path, entries, sizes):
    model = alternating(*LENGTHS)
    source = saved(model, tmp_path / "in")

    report = compile_with(Taker, source, tmp_path / "m_ctx.onnx", **entries)
    compiled = run_with(Taker, source, FEEDS, **entries)
    loaded = run_with(Taker, tmp_path / "m_ctx.onnx", FEEDS, providers=False)

    assert [p.nodes for p in report.partitions] == sizes
    assert_same(compiled, expected(model, FEEDS))
    assert_same(loaded, expected(model, FEEDS))
    assert sum(report.assignments.values()) == len(model.graph.node)


def test_of_two_equal_partitions_the_first_stays(tmp_path):
    source = saved(alternating(*LENGTHS), tmp_path / "in")

    report = compile_with(Taker, source, ep__partition_max_count=1)

    assert report.partitions[0].node_names == ("n1_0", "n1_1", "n1_2", "n1_3")


def test_the_report_says_why_a_partition_was_given_up(tmp_path):
    source = saved(alternating(1, 3, 2), tmp_path / "in")

    report = compile_with(
        Taker, source, ep__partition_min_nodes=2, ep__partition_max_count=1
    )

    assert [
        (r.reason, r.nodes) for r in report.refusals if "ep.partition" in r.reason
    ] == [
        (
            "a partition of 2 nodes is not among the ep.partition_max_count=1 largest",
            ("n2_0", "n2_1"),
        ),
        ("a partition of 1 node is smaller than ep.partition_min_nodes=2", ("n0_0",)),
    ]


class Second(Taker):
    """A second EP that would take the same."""

    name = "SecondExecutionProvider"
    binary_suffix = "second"


def test_what_is_given_up_is_offered_to_the_next_ep(tmp_path):
    registry = epctx.Registry(entry_points=False)
    options = options_with(Taker, ep__partition_max_count=2)
    options.add_provider(Second.name)
    for ep in (Taker, Second):
        registry.register(ep)
    source = saved(alternating(*LENGTHS), tmp_path / "in")

    report = epctx.ModelCompiler(options, source, registry=registry).compile_to_file()

    assert [(p.ep[:6], p.nodes) for p in report.partitions] == [
        ("Taker" + "E", 4),
        ("Second", 2),
        ("TakerE", 4),
        ("Second", 3),
    ]


def test_work_in_bodies_counts_and_control_flow_without_any_stays_whole(tmp_path):
    def body(op):
        return onnx.helper.make_graph([node(op, ["x"], ["b"])], op, [], [value("b")])

    model = made(
        [
            node("If", ["c"], ["i"], then_branch=body("Relu"), else_branch=body("Neg")),
            node("Exp", ["i"], ["e"]),
            node("Abs", ["e"], ["y"]),
        ],
        [value("x"), value("c", TensorProto.BOOL, ())],
        [value("y")],
    )
    source = saved(model, tmp_path / "in")
    feeds = {**FEEDS, "c": np.array(True)}

    report = compile_with(
        Taker, source, tmp_path / "m_ctx.onnx", ep__partition_min_nodes=2
    )
    compiled = run_with(Taker, source, feeds, ep__partition_min_nodes=2)

    assert [p.operators for p in report.partitions] == [("Exp", "Abs")]
    assert_same(compiled, expected(model, feeds))
    assert_same(
        run_with(Taker, tmp_path / "m_ctx.onnx", feeds, providers=False), compiled
    )


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("ep.partition_min_nodes", "-1"),
        ("ep.partition_min_nodes", ""),
        ("ep.partition_max_count", "many"),
    ],
)
def test_a_limit_that_is_no_number_is_refused(key, text):
    with pytest.raises(epctx.InvalidArgument, match=key):
        epctx.SessionOptions().add_session_config_entry(key, text)


def test_one_value_of_a_special_type_at_a_boundary_costs_one_node(tmp_path):
    class WithCast(Taker):
        operators = frozenset({"Relu", "Abs", "Cast"})

    model = made(
        [
            node("Relu", ["x"], ["r"]),
            node("Abs", ["r"], ["a"]),
            node("Cast", ["a"], ["odd"], to=TensorProto.FLOAT8E5M2),
            node("Abs", ["a"], ["y"]),
        ],
        [value("x")],
        [value("odd", TensorProto.FLOAT8E5M2), value("y")],
    )

    report = compile_with(WithCast, saved(model, tmp_path / "in"))

    assert [p.operators for p in report.partitions] == [("Relu", "Abs", "Abs")]
    assert [len(r.nodes) for r in report.refusals if "odd" in r.reason] == [1]
