"""Invariants 1, 2 and 10 on random graphs: same results on every way, partitions whole,
convex and maximal.
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
    assert_partitions_are_whole,
    drawn_model,
    is_acyclic,
)
from support.small_models import example, saved

import epctx_core as epctx


@dataclass(frozen=True, kw_only=True)
class Case:
    """A random model, the EPs in order of priority, and how it is compiled."""

    model: onnx.ModelProto
    eps: list[type]
    embedded: bool


@st.composite
def cases(draw):
    eps = draw(st.lists(st.sampled_from([Alpha, Beta]), min_size=1, unique=True))
    return Case(model=drawn_model(draw), eps=eps, embedded=draw(st.booleans()))


@given(case=cases(), flag=st.booleans())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_graph_and_any_mix_of_eps_keeps_results_and_partitions_whole(case, flag):
    check(case, flag=flag)


@pytest.mark.stress
@given(case=cases(), flag=st.booleans())
@settings(
    max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_so_do_two_thousand_graphs(case, flag):
    check(case, flag=flag)


def check(case, *, flag):
    """Compile a case, run it on every way, and look at its partitions."""
    registry = epctx.Registry(entry_points=False)
    options = epctx.SessionOptions()
    options.add_session_config_entry("ep.partition_without_computation", "keep")
    for ep in case.eps:
        registry.register(ep)
        options.add_provider(ep.name)
    feeds = {
        name: example(9 + number)
        for number, name in enumerate(v.name for v in case.model.graph.input)
    }
    feeds["flag"] = np.array([flag])

    with tempfile.TemporaryDirectory() as folder:
        source, written = (
            saved(case.model, Path(folder, "m.onnx")),
            Path(folder, "out", "m_ctx.onnx"),
        )
        written.parent.mkdir()
        expected = onnxruntime_result(source, feeds)
        report = epctx.ModelCompiler(
            options,
            source,
            case.embedded,
            graph_optimization_level=epctx.GraphOptimizationLevel.ORT_DISABLE_ALL,
            registry=registry,
        ).compile_to_file(written)
        results = [
            session_result(source, feeds, registry=registry),
            session_result(source, feeds, options, registry=registry),
            session_result(written, feeds, registry=registry),
        ]
        context = onnx.load(written)
        if report.partitions:
            assert "is not compatible with any execution provider" in onnxruntime_says(
                written
            )

    for result in results:
        for one, other in zip(result, expected, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
    left = assert_partitions_are_whole(case.model, context, report)
    claimed = set().union(*(ep.operators for ep in case.eps))
    operators = operators_by_name(case.model.graph)
    assert not {operators[name] for name in left} & claimed
    event(
        f"{len(report.partitions)} partitions, "
        f"{len(operators) - len(case.model.graph.node)} nodes in bodies"
    )


def operators_by_name(graph):
    """Return the operator of each node, those in bodies too."""
    found = {node.name: node.op_type for node in graph.node}
    for body in (a.g for node in graph.node for a in node.attribute if a.HasField("g")):
        found |= operators_by_name(body)
    return found


def session_result(path, feeds, options=None, *, registry):
    with epctx.InferenceSession(path, options, registry=registry) as session:
        return session.run(None, feeds)


def test_the_check_for_cycles_sees_one():
    edges = {("a", "b"), ("b", "c")}

    assert is_acyclic([["a"], ["b"], ["c"]], edges)
    assert not is_acyclic([["a", "c"], ["b"]], edges)
