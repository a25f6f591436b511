"""Invariants 1 and 2 with the three simulated EPs, in any order, on random graphs with
control flow and INT8.
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
from support.onnxruntime_results import onnxruntime_result
from support.random_graphs import (
    MixedScope,
    assert_partitions_are_whole,
    drawn_model,
)
from support.sim_eps import OPENVINO, QNN, VITISAI, with_eps
from support.small_models import example, saved

import epctx_core as epctx

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


@dataclass(frozen=True, kw_only=True)
class Case:
    """A random model, the EPs in order of priority, and how it is compiled."""

    model: onnx.ModelProto
    eps: list[str]
    embedded: bool


@st.composite
def cases(draw):
    eps = draw(st.permutations([OPENVINO, QNN, VITISAI]))[: draw(st.integers(1, 3))]
    return Case(
        model=drawn_model(draw, MixedScope), eps=eps, embedded=draw(st.booleans())
    )


@given(case=cases(), flag=st.booleans())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_graph_over_any_eps_keeps_results_and_partitions_whole(case, flag):
    check(case, flag=flag)


@pytest.mark.stress
@given(case=cases(), flag=st.booleans())
@settings(
    max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_so_do_a_thousand_graphs(case, flag):
    check(case, flag=flag)


def check(case, *, flag):
    """Compile a case, run it on every way, and look at its partitions."""
    options = with_eps(*case.eps)
    options.add_session_config_entry("ep.partition_without_computation", "keep")
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
        ).compile_to_file(written)
        results = [
            session_result(source, feeds, options),
            session_result(written, feeds),
        ]
        context = onnx.load(written)

    for result in results:
        for one, other in zip(result, expected, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            # Other groups of nodes may be fused to others: the last bit differs.
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    left = assert_partitions_are_whole(case.model, context, report)
    event(f"{len({partition.ep for partition in report.partitions})} EPs")
    for ep in case.eps:
        refused = {
            name
            for refusal in report.refusals
            if refusal.ep == ep
            for name in refusal.nodes
        }
        assert all(
            is_explained(name, refused) for name in plain_nodes(case.model.graph, left)
        )


def session_result(path, feeds, options=None):
    with epctx.InferenceSession(path, options) as session:
        return session.run(None, feeds)


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
