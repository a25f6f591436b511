"""The ONNX project's own runner drives epctx over drawn cases, less those that are known to be wrong."""

from __future__ import annotations

import json
import random
import unittest

import pytest
from conformance.baseline import BASELINE
from epctx_conformance.cases.onnx_cases import load_cases
from onnx.backend.test import BackendTest

from epctx_core.backend import make_backend

COUNT, SEED = 60, 13


@pytest.fixture(scope="module", autouse=True)
def _cases_of_single_nodes():
    """Made with warnings off: their data overflows on purpose."""
    load_cases()


def run(backend, names):
    """Run cases with the official runner; return its result."""
    tests = BackendTest(backend, __name__)
    for name in names:
        tests.include(f"^{name}_cpu$")
    result = unittest.TestResult()
    tests.test_suite.run(result)
    return result


@pytest.mark.parametrize(("eps", "through"), [("cpu", "direct"), ("qnn", "file")])
def test_drawn_cases_pass(eps, through):
    baseline = json.loads(BASELINE.read_text("utf-8"))
    wrong = {name for names in baseline["not_passed"][f"{eps}.{through}"].values() for name in names}
    passing = [name for name in baseline["cases"] if name not in wrong]
    drawn = random.Random(SEED).sample(passing, COUNT)  # noqa: S311 - no secret

    result = run(make_backend(["QNN"] if eps == "qnn" else None, through), drawn)

    assert [*result.failures, *result.errors] == []
    assert result.testsRun - len(result.skipped) == COUNT


def test_a_wrong_result_is_a_failure():
    class Wrong(make_backend()):
        @classmethod
        def prepare(cls, *given, **options):
            rep = super().prepare(*given, **options)
            rep.run = lambda inputs: [-x for x in type(rep).run(rep, inputs)]
            return rep

    result = run(Wrong, ["test_abs", "test_exp"])

    assert result.testsRun - len(result.skipped) == len(result.failures) == 2
