"""Partitions that compute nothing are left to the CPU EP, and an EP's small share of
the nodes that compute is told.
"""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from support.special_models import made, node, numbers, value
from support.taker import Taker, compile_with, options_with, registry_with

import epctx_core as epctx
from epctx_core.plugin import ComputeCapability, hookimpl

KEEP = {"ep__partition_without_computation": "keep"}


class Mover(Taker):
    """Takes what moves data, and Relu."""

    operators = frozenset({"Identity", "Transpose", "Concat", "Moves", "Relu"})


class Exact(Mover):
    """Names each node as a partition that it has compiled."""

    @hookimpl
    def get_capability(self, graph):
        return [
            ComputeCapability([n], exact=True)
            for n in graph.nodes
            if n.op_type in self.operators
        ]


def model_of(*nodes, outputs=("y",), **more):
    for one in nodes:
        one.name = one.output[0]
    results = [value(name, shape=None) for name in outputs]
    return made(nodes, [value("x")], results, **more).SerializeToString()


def moving():
    """Neg, then what moves data, then Neg; of these only the second can be taken."""
    return model_of(
        node("Neg", ["x"], ["a"]),
        node("Identity", ["a"], ["b"]),
        node("Transpose", ["b"], ["c"]),
        node("Neg", ["c"], ["y"]),
    )


def nodes_of(report):
    return [list(partition.node_names) for partition in report.partitions]


def test_a_partition_that_only_moves_data_is_left_with_the_reason(tmp_path):
    report = compile_with(Mover, moving(), tmp_path / "m_ctx.onnx")

    assert nodes_of(report) == []
    (refusal,) = (r for r in report.refusals if set(r.nodes) & {"b", "c"})
    assert refusal.nodes == ("b", "c")
    assert "only moves, casts or makes data" in refusal.reason
    assert "ep.partition_without_computation=keep" in refusal.reason


def test_the_explanation_says_so_too():
    explanation = epctx.explain_model(
        moving(), options_with(Mover), registry=registry_with(Mover)
    )

    (left,) = (n for n in explanation.left if n.name == "c")
    assert left.refusals[0][0] == Mover.name
    assert "only moves, casts or makes data" in left.refusals[0][1]


def test_the_host_may_have_it_compiled(tmp_path):
    report = compile_with(Mover, moving(), tmp_path / "m_ctx.onnx", **KEEP)

    assert nodes_of(report) == [["b", "c"]]


def test_what_an_ep_has_compiled_as_it_is_stays(tmp_path):
    report = compile_with(Exact, moving(), tmp_path / "m_ctx.onnx")

    assert nodes_of(report) == [["b"], ["c"]]


def test_what_computes_keeps_its_partition_with_all_that_moves_data_for_it(tmp_path):
    source = model_of(
        node("Identity", ["x"], ["a"]),
        node("Transpose", ["a"], ["b"]),
        node("Relu", ["b"], ["y"]),
    )

    assert nodes_of(compile_with(Mover, source, tmp_path / "m_ctx.onnx")) == [
        ["a", "b", "y"]
    ]


def test_operators_of_other_domains_compute(tmp_path):
    source = model_of(
        node("Moves", ["x"], ["y"], domain="vendor"), domains=[("vendor", 1)]
    )

    report = compile_with(Mover, source, tmp_path / "m_ctx.onnx")

    assert nodes_of(report) == [["y"]]


def test_what_connects_two_partitions_of_the_ep_stays(tmp_path):
    # Each Neg is the CPU EP's, so that three partitions are the fewest.
    source = model_of(
        node("Relu", ["x"], ["a"]),
        node("Neg", ["a"], ["b"]),
        node("Concat", ["a", "b"], ["c"], axis=0),
        node("Neg", ["c"], ["d"]),
        node("Concat", ["c", "d"], ["e"], axis=0),
        node("Relu", ["e"], ["y"]),
    )

    report = compile_with(Mover, source, tmp_path / "m_ctx.onnx")

    assert nodes_of(report) == [["a"], ["c"], ["e", "y"]]


def test_a_later_ep_gets_what_is_left(tmp_path):
    class Later(Mover):
        name = "LaterExecutionProvider"
        binary_suffix = "later"
        operators = frozenset({"Neg", "Identity", "Transpose"})

    registry = registry_with(Mover)
    registry.register(Later)
    options = options_with(Mover)
    options.add_provider(Later.name)

    compiler = epctx.ModelCompiler(options, moving(), registry=registry)
    compiler.compile_to_file(tmp_path / "m_ctx.onnx")

    assert nodes_of(compiler.report) == [["a", "b", "c", "y"]]
    assert compiler.report.partitions[0].ep == Later.name


def mostly_refused(count):
    """One Relu, some nodes of which none can be taken, and more that move data."""
    names = ["x", "r", *(f"n{i}" for i in range(count))]
    moved = [names[-1], *(f"m{i}" for i in range(2 * count)), "y"]
    return model_of(
        node("Relu", names[:1], names[1:2]),
        *(node("Neg", [a], [b]) for a, b in pairwise(names[1:])),
        *(node("Identity", [a], [b]) for a, b in pairwise(moved)),
    )


def test_a_small_share_of_the_nodes_that_compute_is_said_first(tmp_path, caplog):
    source = mostly_refused(24)

    with caplog.at_level(logging.WARNING, "epctx"):
        report = compile_with(Mover, source, tmp_path / "m_ctx.onnx")

    sentence = (
        f"{Mover.name} gets 1 of 25 computing nodes (4.0%). {Mover.name} says: "
        "Neg is not supported."
    )
    assert report.warnings == (sentence,)
    assert str(report).startswith(sentence)
    assert sentence in caplog.messages
    assert report.as_dict()["warnings"] == (sentence,)


@pytest.mark.parametrize("count", [1, 19])
def test_a_share_of_a_twentieth_is_no_reason_for_a_warning(count, tmp_path):
    report = compile_with(Mover, mostly_refused(count), tmp_path / "m_ctx.onnx")

    assert report.warnings == ()


def test_the_results_are_the_same():
    x = numbers(2, 3)
    for entries in ({}, KEEP):
        with epctx.InferenceSession(
            moving(), options_with(Mover, **entries), registry=registry_with(Mover)
        ) as session:
            assert (session.run(None, {"x": x})[0] == x.T).all()
