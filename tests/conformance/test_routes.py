"""A case on a route ends as what it does: right, wrong in one of several ways, or with the end of its process."""

from __future__ import annotations

import numpy as np
import pytest
from conformance import faulty_routes
from conformance.faulty_routes import CASE, CATALOGUE
from epctx_conformance.cases.campaign import run_all
from epctx_conformance.cases.case import Case, Data
from epctx_conformance.cases.routes import Route, run_case


@pytest.mark.parametrize(
    ("backend", "through", "outcome", "kind"),
    [
        ("Doubling", "direct", "passed", ""),
        ("Doubling", "embed", "passed", ""),
        ("Reused", "direct", "wrong", "aliasing"),
        ("Overwriting", "direct", "wrong", "inputs"),
        ("OnceOnly", "direct", "wrong", "second run, output 0: other values"),
        ("Refusing", "direct", "refused", "Fail"),
        ("Raising", "direct", "raised", "KeyError"),
        ("Unclaimed", "file", "unclaimed", ""),
    ],
)
def test_each_fault_is_an_outcome_with_its_kind(backend, through, outcome, kind):
    route = Route(eps="some", through=through, backend=getattr(faulty_routes, backend))

    result = run_case(CASE, route)

    assert (result.case, result.route) == ("double", f"some.{through}")
    assert (result.outcome, result.kind) == (outcome, kind)
    assert bool(result.bits) == (outcome in {"passed", "wrong"})
    assert "0x7" not in result.reason


@pytest.mark.parametrize(
    ("outputs", "kind"),
    [
        ([np.float32([0, 2, 4, 6.1])], "output 0: other values"),
        ([np.float64([0, 2, 4, 6])], "output 0: float32 instead of float64"),
        ([np.float32([[0, 2, 4, 6]])], "output 0: shape (4,) instead of (1, 4)"),
        ([np.float32([0, 2, 4, 6])] * 2, "another number of outputs"),
        ([], ""),
        ([[np.float32([0])]], "output 0: another length"),
        ([np.float32([0, 2, 4, 6.001])], ""),
    ],
)
def test_a_result_has_the_type_the_shape_and_the_values_that_its_case_expects(outputs, kind):
    data = [Data(inputs=faulty_routes.double()[0].inputs, outputs=outputs)]
    case = Case(name="double", model=bytes, data=lambda: data)

    result = run_case(case, Route(eps="some", through="direct", backend=faulty_routes.Doubling))

    assert (result.kind, result.outcome) == (kind, "wrong" if kind else "passed")


def test_a_case_that_ends_its_process_or_does_not_end_is_a_result_and_the_others_run(tmp_path):
    tasks = [("double", route) for route in CATALOGUE.routes]

    results = run_all(
        tasks, tmp_path / "kept", 1, catalogue="conformance.faulty_routes:CATALOGUE", seconds=1.5
    )

    assert [(result.route, result.outcome) for result in results] == [
        ("aborting.direct", "crashed"),
        ("hanging.direct", "hung"),
        ("good.direct", "passed"),
        ("good.file", "passed"),
        ("unclaimed.direct", "passed"),
        ("unclaimed.file", "unclaimed"),
    ]
    assert results[0].reason == "SIGABRT"


def test_a_child_that_does_not_start_is_no_result(tmp_path):
    with pytest.raises(RuntimeError, match="no_such_module"):
        run_all([("double", "good.direct")], tmp_path / "kept", 1, catalogue="no_such_module:CATALOGUE")
