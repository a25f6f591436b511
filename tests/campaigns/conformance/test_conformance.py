"""Drawn cases end on every route as it is known; the runner misses nothing.

Knows files and routes.
"""

from __future__ import annotations

import json
import random

import onnx
import pytest
from conformance.catalogue import NAME, ROUTES, SUITES
from conformance.greedy_eps import FirstTurn, Greedy, SecondTurn
from conformance.known_failures import find_differences, read_known_failures, versions
from epctx_onnxruntime.checking.campaign import compared_with_direct, read, run_all
from epctx_onnxruntime.checking.result import Result
from support.agreement_of_routes import (
    compiled,
    context_nodes_of,
    graphs_of,
    model_of,
)

COUNT, SEED = 80, 9

RESIDUAL = model_of("""
    agraph (float[4] x, float[4] z) => (float[4] y) {
        a = Relu(x)
        b = Neg(a)
        c = Exp(z)
        d = Add(a, c)
        e = Mul(b, d)
        f = Abs(e)
        y = Sub(f, a)
    }""")


@pytest.fixture(scope="module")
def known():
    return read_known_failures()


def draw(known):
    """Draw cases that do not fail, each on the routes of all EPs in one of the three
    ways by turns, and without EPs.

    None that fails: at the edge of a tolerance it may depend on the processor on which
    side.
    """
    fail = {case for entry in known.entries for case in entry.cases}
    names = [name for name in SUITES["onnx"]() if name not in fail]
    tasks = []
    for turn, name in enumerate(random.Random(SEED).sample(names, COUNT)):  # noqa: S311 - no secret
        ways = [("direct", "file", "embed")[turn % 3]]
        direct_only = [route.eps for route in ROUTES].count
        tasks += [
            (name, str(r))
            for r in ROUTES
            if r.through in ways or direct_only(r.eps) == 1
        ]
    return tasks


@pytest.fixture(scope="module")
def drawn(known, tmp_path_factory):
    """Drawn cases, after what ends a child and before what is known already; all in one
    go, as a child is slow to start.
    """
    kept = tmp_path_factory.mktemp("conformance") / "results.jsonl"
    done = Result(case="test_abs", route="qnn.file", outcome="wrong", kind="kept")
    kept.write_text(json.dumps(done.as_dict()) + "\n" + '{"case": "test_abs", "rou')
    tasks = [("test_abs", "no such route"), *draw(known), ("test_abs", "qnn.file")]
    results = run_all(tasks, kept, jobs=1, catalogue=NAME)
    assert len(read(kept)) == len(results) == len(tasks) > 5 * COUNT
    return results


def test_drawn_cases_pass_on_every_route(known, drawn):
    if known.versions != versions():
        pytest.skip(f"failures are known with {known.versions}")
    assert find_differences(drawn[1:-1], known) == []
    assert sum(bool(result.claimed) for result in drawn) > COUNT


def test_what_ends_a_child_is_a_result_and_a_run_goes_on_from_what_is_kept(drawn):
    assert [drawn[0].outcome, drawn[-1].kind] == ["crashed", "kept"]
    assert drawn[1].outcome == "passed"


def test_other_bits_than_the_direct_sessions_are_no_pass():
    direct, file = (
        Result(case="a", route=f"qnn.{how}", outcome="passed", bits=how)
        for how in ("direct", "file")
    )

    assert [result.outcome for result in compared_with_direct([direct, file])] == [
        "passed",
        "differs",
    ]


def test_one_merciless_ep_takes_every_node_and_two_let_every_value_cross_a_border(
    tmp_path,
):
    values = {name for node in RESIDUAL.graph.node for name in node.output}
    all_taken = compiled(RESIDUAL, tmp_path / "greedy.onnx", Greedy)
    by_turns = compiled(RESIDUAL, tmp_path / "turns.onnx", FirstTurn, SecondTurn)

    (graph,) = graphs_of(all_taken.output)
    assert [node.op_type for node in graph.node] == ["EPContext"]
    (graph,) = graphs_of(by_turns.output)
    assert {name for node in graph.node for name in node.output} == values
    assert {
        onnx.helper.get_node_attr_value(node, "source")
        for node in context_nodes_of(graph)
    } == {
        b"FirstTurnExecutionProvider",
        b"SecondTurnExecutionProvider",
    }
