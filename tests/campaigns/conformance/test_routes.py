"""A case on a route ends as what it does: right, wrong in one of several ways, or with
the end of its process.
"""

from __future__ import annotations

import json
import os
import signal
import threading

import numpy as np
import pytest
from conformance import faulty_routes
from conformance.faulty_routes import CASE, ROUTES
from conformance.routes import Route, run_case
from epctx_conformance.cases.case import Case, Data
from epctx_onnxruntime.checking.campaign import read, run_all

from epctx_core.errors import Fail, InvalidArgument


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
def test_a_result_has_the_type_the_shape_and_the_values_that_its_case_expects(
    outputs, kind
):
    data = [Data(inputs=faulty_routes.double()[0].inputs, outputs=outputs)]
    case = Case(name="double", model=bytes, data=lambda: data)

    result = run_case(
        case, Route(eps="some", through="direct", backend=faulty_routes.Doubling)
    )

    assert (result.kind, result.outcome) == (kind, "wrong" if kind else "passed")


def test_a_case_that_ends_its_process_or_does_not_end_is_a_result_and_the_others_run(
    tmp_path,
):
    tasks = [("double", str(route)) for route in ROUTES]

    results = run_all(
        tasks,
        tmp_path / "kept",
        1,
        catalogue="conformance.faulty_routes:CATALOGUE",
        seconds=1.5,
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


def test_a_catalogue_that_a_child_cannot_import_is_no_result(tmp_path):
    with pytest.raises(Fail, match="no_such_module"):
        run_all(
            [("double", "good.direct")],
            tmp_path / "kept",
            1,
            catalogue="no_such_module:CATALOGUE",
        )


@pytest.mark.skipif(
    os.name == "nt", reason="a process cannot send Ctrl-C to itself alone there"
)
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_children_at_once_and_is_no_result(tmp_path):
    kept = tmp_path / "kept"
    tasks = [
        ("double", "good.direct"),
        ("double", "hanging.direct"),
        ("double", "good.file"),
    ]
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))

    with pytest.raises(KeyboardInterrupt):
        run_all(
            tasks,
            kept,
            1,
            catalogue="conformance.faulty_routes:CATALOGUE",
            seconds=20,
            progress=lambda _: interrupt.start(),
        )

    assert [result.route for result in read(kept)] == ["good.direct"]


def test_a_child_that_ends_in_the_middle_of_a_line_has_crashed(tmp_path):
    tasks = [("double", "stuttering.direct"), ("double", "good.file")]

    results = run_all(
        tasks, tmp_path / "kept", 1, catalogue="conformance.faulty_routes:CATALOGUE"
    )

    assert [result.outcome for result in results] == ["crashed", "passed"]


@pytest.mark.parametrize(
    "tail",
    ['{"case": "double", "route": "good.file", "operators": {"Add": 1}', "{", ""],
)
def test_a_line_that_was_cut_off_is_run_again_wherever_it_was_cut(tail, tmp_path):
    kept = tmp_path / "kept"
    first = json.dumps({"case": "double", "route": "good.direct", "outcome": "wrong"})
    kept.write_text(f"{first}\n{tail}", "utf-8")
    tasks = [("double", "good.direct"), ("double", "good.file")]

    results = run_all(tasks, kept, 1, catalogue="conformance.faulty_routes:CATALOGUE")

    assert [result.outcome for result in results] == ["wrong", "passed"]
    assert read(kept) == results


@pytest.mark.parametrize(
    "content",
    [b"# Notes\n\nof mine\n", b"\x08\x07\xff\n", b"[]\n", b'{"case": "double"}\n'],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(content, tmp_path):
    kept = tmp_path / "notes.md"
    kept.write_bytes(content)

    with pytest.raises(InvalidArgument, match=r"line 1 of .*notes.md is no result"):
        run_all(
            [("double", "good.direct")],
            kept,
            1,
            catalogue="conformance.faulty_routes:CATALOGUE",
        )
    with pytest.raises(InvalidArgument, match="No such file"):
        run_all(
            [],
            tmp_path / "none" / "kept",
            1,
            catalogue="conformance.faulty_routes:CATALOGUE",
        )

    assert kept.read_bytes() == content
