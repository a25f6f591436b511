"""The ONNX project's cases end on every route as the baseline says; the runner misses nothing. Knows files and routes."""

from __future__ import annotations

import json
from dataclasses import replace

import onnx
import pytest
from conformance.baseline import BASELINE, as_baseline, differences, sample, versions
from conformance.catalogue import NAME, ROUTES
from conformance.greedy_eps import FirstTurn, Greedy, SecondTurn
from control_flow.agreement_of_routes import compiled, context_nodes_of, graphs_of, model_of
from epctx_conformance.cases.campaign import compared_with_direct, read, run_all
from epctx_conformance.cases.routes import Result

COUNT, SEED = 100, 9

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
def baseline():
    return json.loads(BASELINE.read_text("utf-8"))


@pytest.fixture
def for_these_versions(baseline):
    if baseline["versions"] != versions():
        pytest.skip(f"the baseline was made with {baseline['versions']}")


@pytest.fixture(scope="module")
def drawn(baseline, tmp_path_factory):
    """Drawn cases, after what ends a child and before what is known already; all in one go, as a child is slow to start."""
    kept = tmp_path_factory.mktemp("conformance") / "results.jsonl"
    known = Result(case="test_abs", route="qnn.file", outcome="wrong", kind="known")
    kept.write_text(json.dumps(known.as_dict()) + "\n" + '{"case": "test_abs", "rou')
    tasks = [("test_abs", "no such route"), *sample(baseline, COUNT, SEED), ("test_abs", "qnn.file")]
    results = run_all(tasks, kept, jobs=1, catalogue=NAME)
    assert len(read(kept)) == len(results) == len(tasks) > 3 * COUNT
    return results


@pytest.mark.usefixtures("for_these_versions")
def test_drawn_cases_end_as_the_baseline_says(baseline, drawn):
    assert differences(drawn[1:-1], baseline) == []


def test_what_ends_a_child_is_a_result_and_a_run_goes_on_from_what_is_kept(drawn):
    assert [drawn[0].outcome, drawn[-1].kind] == ["crashed", "known"]
    assert drawn[1].outcome == "passed"


@pytest.mark.stress
@pytest.mark.timeout(7200)
@pytest.mark.usefixtures("for_these_versions")
def test_all_cases_end_as_the_baseline_says(baseline, tmp_path):
    tasks = [(name, str(route)) for name in baseline["cases"] for route in ROUTES]

    results = run_all(tasks, tmp_path / "results.jsonl", jobs=2, catalogue=NAME)

    assert differences(results, baseline) == []
    assert as_baseline(results) == baseline


def test_other_outcomes_and_other_claims_are_differences_from_the_baseline():
    routes = ("cpu.direct", "qnn.direct", "qnn.file")
    results = [
        Result(case="a", route=route, outcome="passed", claimed=3 * ("qnn" in route)) for route in routes
    ]
    results += [
        replace(result, case="b", outcome="refused", kind="Fail", reason="Fail: x") for result in results
    ]
    before = as_baseline(results)

    assert differences(results, before) == []
    assert differences([replace(result, reason="Fail: in other words") for result in results], before) == []
    assert differences([replace(results[0], outcome="wrong", kind="shape")], before) == [
        "a cpu.direct: passed -> wrong: shape"
    ]
    assert differences([replace(results[3], outcome="passed")], before) == [
        "b cpu.direct: refused: Fail -> passed Fail: x"
    ]
    assert differences([replace(results[5], claimed=0)], before) == []
    assert differences([replace(results[2], claimed=2)], before) == ["a qnn.file: claims 2, not 3"]


def test_other_bits_than_the_direct_sessions_are_no_pass():
    direct, file = (
        Result(case="a", route=f"qnn.{how}", outcome="passed", bits=how) for how in ("direct", "file")
    )

    assert [result.outcome for result in compared_with_direct([direct, file])] == ["passed", "differs"]


def test_one_merciless_ep_takes_every_node_and_two_let_every_value_cross_a_border(tmp_path):
    values = {name for node in RESIDUAL.graph.node for name in node.output}
    all_taken = compiled(RESIDUAL, tmp_path / "greedy.onnx", Greedy)
    by_turns = compiled(RESIDUAL, tmp_path / "turns.onnx", FirstTurn, SecondTurn)

    (graph,) = graphs_of(all_taken.output)
    assert [node.op_type for node in graph.node] == ["EPContext"]
    (graph,) = graphs_of(by_turns.output)
    assert {name for node in graph.node for name in node.output} == values
    assert {onnx.helper.get_node_attr_value(node, "source") for node in context_nodes_of(graph)} == {
        b"FirstTurnExecutionProvider",
        b"SecondTurnExecutionProvider",
    }
