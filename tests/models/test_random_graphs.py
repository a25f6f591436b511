"""Invariants 1, 2 and 10 on random graphs: same results on every way, and whole, convex
partitions. EPs of these tests' own take single operators, and their partitions are the
largest; the three simulated EPs come in any order, on graphs with INT8.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from support.engine_eps import Alpha, Beta
from support.onnxruntime_results import onnxruntime_result, onnxruntime_says
from support.random_graphs import (
    MixedScope,
    assert_partitions_are_whole,
    drawn_model,
    is_acyclic,
)
from support.sim_eps import OPENVINO, QNN, VITISAI, with_eps
from support.small_models import example, saved

import epctx_core as epctx

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A random model, the EPs in order of priority, how it is compiled, and the value
    that its branches depend on.
    """

    model: onnx.ModelProto
    eps: list[type] | list[str]
    embedded: bool
    flag: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What onnxruntime computes, what each way through epctx does, and the compile."""

    expected: list[np.ndarray]
    results: list[list[np.ndarray]]
    report: epctx.CompileReport
    context: onnx.ModelProto


@st.composite
def cases(draw):
    eps = draw(st.lists(st.sampled_from([Alpha, Beta]), min_size=1, unique=True))
    return Case(
        model=drawn_model(draw),
        eps=eps,
        embedded=draw(st.booleans()),
        flag=draw(st.booleans()),
    )


@st.composite
def simulated_cases(draw):
    eps = draw(st.permutations([OPENVINO, QNN, VITISAI]))[: draw(st.integers(1, 3))]
    return Case(
        model=drawn_model(draw, MixedScope),
        eps=eps,
        embedded=draw(st.booleans()),
        flag=draw(st.booleans()),
    )


@given(case=cases())
@settings(max_examples=50, **UNHURRIED)
def test_any_graph_and_any_mix_of_eps_keeps_results_and_partitions_whole(case):
    check(case)


@pytest.mark.stress
@given(case=cases())
@settings(max_examples=2000, **UNHURRIED)
def test_so_do_two_thousand_graphs(case):
    check(case)


@given(case=simulated_cases())
@settings(max_examples=30, **UNHURRIED)
def test_any_graph_over_simulated_eps_keeps_results_and_partitions_whole(case):
    check_simulated(case)


@pytest.mark.stress
@given(case=simulated_cases())
@settings(max_examples=1000, **UNHURRIED)
def test_so_do_a_thousand_graphs_over_simulated_eps(case):
    check_simulated(case)


def check(case):
    """Compile a case for EPs of these tests' own: results are equal, and nobody has
    what an EP could take.
    """
    registry, options = epctx.Registry(entry_points=False), epctx.SessionOptions()
    for ep in case.eps:
        registry.register(ep)
        options.add_provider(ep.name)

    outcome = run_everywhere(case, options, registry)

    for result in outcome.results:
        for one, other in zip(result, outcome.expected, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
    left = assert_partitions_are_whole(case.model, outcome.context, outcome.report)
    claimed = set().union(*(ep.operators for ep in case.eps))
    operators = operators_by_name(case.model.graph)
    assert not {operators[name] for name in left} & claimed
    event(
        f"{len(outcome.report.partitions)} partitions, "
        f"{len(operators) - len(case.model.graph.node)} nodes in bodies"
    )


def check_simulated(case):
    """Compile a case for simulated EPs: results agree, and a node that none takes has
    each EP's reason.
    """
    outcome = run_everywhere(case, with_eps(*case.eps), epctx.default_registry)

    for result in outcome.results:
        for one, other in zip(result, outcome.expected, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            # Other groups of nodes may be fused to others: the last bit differs.
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    left = assert_partitions_are_whole(case.model, outcome.context, outcome.report)
    event(f"{len({partition.ep for partition in outcome.report.partitions})} EPs")
    for ep in case.eps:
        refused = {
            name
            for refusal in outcome.report.refusals
            if refusal.ep == ep
            for name in refusal.nodes
        }
        assert all(
            is_explained(name, refused) for name in plain_nodes(case.model.graph, left)
        )


def run_everywhere(case, options, registry):
    """Compile a case and run it by onnxruntime, in a plain session, in one that
    compiles, and from the context model.
    """
    options.add_session_config_entry("ep.partition_without_computation", "keep")
    inputs = [value.name for value in case.model.graph.input]
    feeds = {name: example(9 + number) for number, name in enumerate(inputs)}
    feeds["flag"] = np.array([case.flag])

    def session_result(path, options=None):
        with epctx.InferenceSession(path, options, registry=registry) as session:
            return session.run(None, feeds)

    with tempfile.TemporaryDirectory() as folder:
        source = saved(case.model, Path(folder, "m.onnx"))
        written = Path(folder, "out", "m_ctx.onnx")
        written.parent.mkdir()
        report = epctx.ModelCompiler(
            options,
            source,
            case.embedded,
            graph_optimization_level=epctx.GraphOptimizationLevel.ORT_DISABLE_ALL,
            registry=registry,
        ).compile_to_file(written)

        if report.partitions:
            said = onnxruntime_says(written)
            assert "is not compatible with any execution provider" in said
        return Outcome(
            expected=onnxruntime_result(source, feeds),
            results=[
                session_result(source),
                session_result(source, options),
                session_result(written),
            ],
            report=report,
            context=onnx.load(written),
        )


def operators_by_name(graph):
    """Return the operator of each node, those in bodies too."""
    found = {node.name: node.op_type for node in graph.node}
    for body in (a.g for node in graph.node for a in node.attribute if a.HasField("g")):
        found |= operators_by_name(body)
    return found


def is_explained(name, refused):
    """Whether a node has a reason, or a node whose body holds it: their names begin its
    name.
    """
    parts = name.split(".")
    return any(
        ".".join(parts[:length]) in refused for length in range(1, len(parts) + 1)
    )


def plain_nodes(graph, names):
    """Return those of the names that are no control flow: that with work of an EP in it
    is nobody's to take.
    """
    found = {node.name for node in graph.node if node.op_type not in CONTROL_FLOW}
    bodies = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return (found & names).union(*(plain_nodes(body, names) for body in bodies))


def test_the_check_for_cycles_sees_one():
    edges = {("a", "b"), ("b", "c")}

    assert is_acyclic([["a"], ["b"], ["c"]], edges)
    assert not is_acyclic([["a", "c"], ["b"]], edges)
