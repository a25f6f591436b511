"""`epctx plugins check --ep`: the kit and cases on EPs of onnxruntime, in child
processes; here on its own CPU EP.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from types import SimpleNamespace

import library_cases
import pytest
from epctx_onnxruntime.checking.check import check_library
from epctx_onnxruntime.checking.report import Verdict, judge
from epctx_onnxruntime.checking.subject import Subject
from epctx_onnxruntime.checking.trial import try_case
from epctx_onnxruntime.checking.ways import Way
from library_cases import HOSTILE
from support import cli_fixtures as fixtures

from epctx_core.errors import InvalidArgument, NotImplementedByProvider

pytestmark = pytest.mark.internal

epctx, process = fixtures.epctx, fixtures.process
CASES = "library_cases:load_cases"
CPU = Subject(ep="CPU", cases=CASES)
FINE = ("right", "near", "lacking", "refused", HOSTILE)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("library") / "results.jsonl"


@pytest.fixture(scope="module")
def report(kept):
    return check_library(CPU, only=(*FINE, "signatures"), results=kept)


def verdicts(report):
    found = {}
    for trial in report.trials:
        found.setdefault(trial.case, {})[report.find_way(trial)] = judge(trial).name
    return found


def trial_of(report, case, way):
    return next(t for t in report.trials if (t.case, report.find_way(t)) == (case, way))


def test_a_check_leaves_no_variable_in_the_environment(report):
    assert report.trials
    assert not [name for name in os.environ if name.startswith("EPCTX_CHECKED")]


def test_each_case_has_an_outcome_in_each_way(report):
    everywhere = dict.fromkeys(("onnxruntime", "direct", "file", "embed"))

    assert verdicts(report) == {
        "right": dict.fromkeys(everywhere, "PASS"),
        "near": dict.fromkeys(everywhere, "WRONG"),
        "lacking": dict.fromkeys(everywhere, "UNSUPPORTED"),
        "refused": dict.fromkeys(everywhere, "REFUSED"),
        HOSTILE: dict.fromkeys(everywhere, "WRONG"),
    }
    assert {judge(check) for check in report.checks} <= {
        Verdict.PASS,
        Verdict.UNSUPPORTED,
    }
    assert not report.ok


def test_the_report_has_the_nodes_of_the_ep_and_kernels_that_onnxruntime_ran_on_it(
    report,
):
    nodes = trial_of(report, "right", "file").notes["nodes"]

    assert nodes == {"taken": ["Relu_0"], "left": [], "ran": 2, "elsewhere": {}}
    assert report.count_passes()["file"] == {
        "whole": 1,
        "lenient": 0,
        "elsewhere": 0,
        "other bits": 0,
    }


def test_wrong_numbers_have_a_size_and_the_outcome_without_the_ep_stands_beside_a_failure(
    report,
):
    assert "off by 0.005 of the largest" in report.explain(
        trial_of(report, "near", "direct")
    )
    assert "Gather" in report.explain(trial_of(report, "refused", "onnxruntime"))
    assert "without the EP, too" in report.explain(
        trial_of(report, "lacking", "onnxruntime")
    )


def test_a_tolerance_lets_close_results_pass_and_is_told():
    lenient = check_library(
        Subject(ep="CPU", cases=CASES, tolerance=0.01),
        only=["near"],
        ways=["onnxruntime"],
    )

    assert lenient.ok
    assert lenient.count_passes()["onnxruntime"]["lenient"] == 1
    assert "--tolerance 0.01" in lenient.reproduce()


def test_cases_may_have_unknown_results_and_a_tolerance_for_each_output():
    report = check_library(CPU, only=("unknown", "two_tolerances"), ways=("direct",))

    assert verdicts(report) == {
        "unknown": {"direct": "PASS"},
        "two_tolerances": {"direct": "PASS"},
    }


def test_a_crash_is_an_outcome_and_the_next_case_runs():
    report = check_library(CPU, only=["crash", "right"], ways=["onnxruntime"])

    assert [(trial.case, judge(trial).name) for trial in report.trials] == [
        ("crash", "CRASH"),
        ("right", "PASS"),
    ]
    (crash,) = report.faults
    assert report.explain(crash) == "the process ended: SIGABRT"
    assert not report.ok


def test_a_hang_is_an_outcome():
    # The limit is that of the other work, too, which takes long on a busy machine.
    report = check_library(CPU, only=["hang"], ways=["onnxruntime"], seconds=20)

    (hang,) = report.faults
    assert judge(hang).name == "CRASH"
    assert report.explain(hang) == "a hang: no end within 20 s"


def test_results_that_are_kept_are_not_computed_again_but_for_another_subject(
    kept, report, tmp_path
):
    again, seen = tmp_path / "again.jsonl", []
    again.write_bytes(kept.read_bytes())

    known = check_library(
        CPU, only=FINE, results=again, progress=lambda *told: seen.append(told)
    )
    other = Subject(ep="CPU", cases=CASES, tolerance=0.5)
    check_library(
        other,
        only=["near"],
        ways=["direct"],
        results=again,
        progress=lambda *told: seen.append(told),
    )

    assert verdicts(known) == verdicts(report)
    assert seen == [("cases", 1, 1)]


def test_work_that_other_eps_do_for_the_ep_is_no_pass():
    class Lent(Subject):
        @property
        def plugin(self):
            found = super().plugin
            return SimpleNamespace(
                ep="AcmeExecutionProvider",
                list_devices=lambda _name=None: found.list_devices(),
                get_name=lambda _devices: "AcmeExecutionProvider",
                add_to=found.add_to,
            )

    case = library_cases.load_cases()["right"]
    results = [
        try_case(case, Way(way, "0"), Lent(ep="CPU", cases=CASES))
        for way in ("onnxruntime", "file")
    ]

    assert [result.outcome for result in results] == ["unclaimed", "unclaimed"]
    assert (
        results[1].reason
        == "it takes 1 nodes, but runs none: Relu ran on other EPs instead"
    )


def test_nodes_that_onnxruntime_gives_the_ep_and_a_way_loses_are_named():
    name = "behind_a_sequence"
    report = check_library(CPU, ways=("onnxruntime", "direct", "file"), only=[name])

    lost = {way: ["SequenceAt_1", "Relu_2"] for way in report.ways[1:]}
    assert report.lost_nodes == {name: lost}
    assert report.as_dict()["lost_nodes"] == report.lost_nodes


def test_the_command_line_of_a_failure_reproduces_it(report, process):
    result = trial_of(report, HOSTILE, "direct")
    words = shlex.split(report.reproduce(result))
    assert words[:3] == ["epctx", "plugins", "check"]

    folders = [Path(library_cases.__file__).parent]
    said = process(*words[1:], "--json", path=folders)

    assert said.code == 1
    (case,) = said.json["cases"]
    assert (case["case"], case["verdict"], list(case["ways"])) == (
        HOSTILE,
        "WRONG",
        ["direct"],
    )
    assert shlex.split(case["ways"]["direct"]["command"]) == words
    assert said.json["counts"]["cases"]["WRONG"] == 1
    json.dumps(said.json, allow_nan=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give NAME or --ep"),
        (["QNN", "--ep", "CPU"], "NAME and --ep do not go together"),
        (["QNN", "--cases", "os:getcwd"], "--cases needs --ep"),
        (["QNN", "--seconds", "1"], "--seconds needs --ep"),
        (["--ep", "CPU", "--full"], "--full needs NAME"),
        (["--ep", "CPU", "--tolerance", "-1"], "'-1' is not a number from 0"),
        (["--ep", "CPU", "--cases", "no_such_module:load"], "cannot be imported"),
        (["--ep", "CPU", "--cases", "os:getcwd"], "returns no cases by name"),
        (["--ep", "CPU", "--seconds", "0"], "'0' is no time"),
        (
            ["--ep", "CPU", "--only", "test_add", "--results", "none/kept.jsonl"],
            "results cannot be kept in none/kept",
        ),
        (
            ["--ep", "CPU", "--without", "dynamic_shape"],
            "Did you mean 'dynamic_shapes'?",
        ),
        (
            ["--ep", "epctx-sim-qnn:QNN", "-p", "QNN.htp_arhc=1"],
            "Did you mean 'htp_arch'?",
        ),
    ],
)
def test_wrong_usage_is_exit_2(epctx, arguments, words):
    said = epctx("plugins", "check", *arguments)

    assert said.code == 2
    assert words in said.err


def test_names_that_nobody_has_are_refused_with_the_closest():
    with pytest.raises(InvalidArgument, match="Did you mean 'right'"):
        check_library(CPU, only=["rihgt"])
    with pytest.raises(InvalidArgument, match="Did you mean 'direct'"):
        check_library(CPU, only=["right"], ways=["dirct"])


def test_a_library_that_is_none_cannot_be_used_and_the_reason_says_so(tmp_path):
    path = tmp_path / "libacme_ep.so"
    path.write_bytes(b"not a library")

    with pytest.raises(
        NotImplementedByProvider,
        match=r"libacme_ep\.so of AcmeExecutionProvider does not load",
    ):
        check_library(Subject(ep="Acme", library=str(path), cases=CASES))
    with pytest.raises(NotImplementedByProvider, match="missing"):
        check_library(
            Subject(ep="Acme", library=str(tmp_path / "absent.so"), cases=CASES)
        )


def test_an_installed_ep_that_onnxruntime_does_not_run_has_no_session_there():
    report = check_library(
        Subject(ep="epctx-sim-qnn:QNN", cases=CASES), only=["in_part"]
    )

    assert report.ways == ("direct", "file", "embed")
    assert report.cases == {"in_part": Verdict.PASS}
    assert trial_of(report, "in_part", "file").notes["nodes"] == {
        "taken": ["Relu_0", "Relu_4"],
        "left": ["SequenceConstruct_1", "Constant_2", "SequenceAt_3"],
        "ran": None,
        "elsewhere": {},
    }
    assert report.count_passes()["file"]["whole"] == 0
