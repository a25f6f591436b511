"""Onnx's own cases, made by a process beside the checks."""

from __future__ import annotations

import sys
import time

import pytest
from conformance.small_ep import SmallProvider
from epctx_conformance import node_cases
from epctx_conformance.cases.making import CaseMaker, has_another_cpu
from epctx_conformance.harness import Harness, disagreement
from epctx_conformance.node_cases import choose_parts

from epctx_core.testing import Outcome, check_provider


def test_cases_made_by_another_process_are_those_that_this_one_makes(tmp_path):
    maker = CaseMaker(tmp_path, full=False)
    ours = choose_parts(full=False)
    theirs = maker.take()
    maker.close()

    assert theirs.keys() == ours.keys()
    for letters, cases in ours.items():
        assert [case.name for case in theirs[letters]] == [case.name for case in cases]
        for made, case in zip(theirs[letters], cases, strict=True):
            (one,), (other,) = made.data(), case.data()
            assert made.model() == case.model()
            assert (made.rtol, made.atol) == (case.rtol, case.atol)
            assert one.inputs.keys() == other.inputs.keys()
            for left, right in (
                (list(one.inputs.values()), list(other.inputs.values())),
                (one.outputs, other.outputs),
            ):
                assert disagreement(left, right, tolerance=0) is None


def test_a_process_that_fails_leaves_the_cases_to_the_check(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    harness = Harness(SmallProvider)
    harness.case_maker = CaseMaker(tmp_path, full=False)

    assert harness.case_maker.take() is None
    harness.close()


def test_the_end_of_a_harness_ends_the_process(tmp_path):
    harness = Harness(SmallProvider)
    harness.case_maker = CaseMaker(tmp_path, full=False)
    begun = time.monotonic()

    harness.close()

    assert time.monotonic() - begun < 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("only", [["node_models"], ["claims", "node_models"]])
def test_the_cases_are_checked_whether_or_not_they_are_made_beside_other_checks(
    only, monkeypatch
):
    started = []
    start = Harness.make_cases
    monkeypatch.setattr(
        Harness, "make_cases", lambda self: (started.append(1), start(self))
    )

    if len(only) > 1 and has_another_cpu():
        # Then the check itself makes none.
        monkeypatch.setattr(node_cases, "_choose", None)

    report = check_provider(SmallProvider, only=only)

    cases = [result for result in report.results if result.group == "node_models"]
    assert {result.outcome for result in cases} <= {Outcome.PASSED, Outcome.SKIPPED}
    assert Outcome.PASSED in {result.outcome for result in cases}
    assert len(started) == len(only) - 1
