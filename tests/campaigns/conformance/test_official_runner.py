"""The ONNX project's own runner drives epctx over drawn cases, less those that are
known to be wrong.
"""

from __future__ import annotations

import random
import unittest
import warnings

import numpy as np
import onnxruntime
import pytest
from conformance.known_failures import read_known_failures
from epctx_conformance.cases.onnx_cases import load_cases
from numpy.lib import NumpyVersion
from onnx.backend.test import BackendTest

from epctx_core.backend import make_backend

COUNT, SEED = 60, 13


@pytest.fixture(scope="module", autouse=True)
def passing():
    """Names of cases that pass on every route.

    Made first, with warnings off: their data overflows on purpose.
    """
    known = {case for entry in read_known_failures().entries for case in entry.cases}
    return [name for name in load_cases() if name not in known]


def run(backend, names):
    """Run cases with the official runner; return its result.

    Data of some overflow on purpose, of which libraries may warn.
    """
    tests = BackendTest(backend, __name__)
    for name in names:
        tests.include(f"^{name}_cpu$")
    result = unittest.TestResult()
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        tests.test_suite.run(result)
    return result


@pytest.mark.skipif(
    NumpyVersion(np.__version__) < "2.0.0"
    or NumpyVersion(onnxruntime.__version__) < "1.32.0",
    reason="the list of known failures is that of newer libraries",
)
@pytest.mark.parametrize(("eps", "through"), [("cpu", "direct"), ("qnn", "file")])
def test_drawn_cases_pass(eps, through, passing):
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
