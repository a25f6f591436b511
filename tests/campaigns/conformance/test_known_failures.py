"""Known failures: what the command tells of results that are not as the file says, and
what a file must not say.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from conformance.known_failures import (
    KnownFailure,
    KnownFailures,
    find_differences,
    read_known_failures,
    versions,
)
from epctx_onnxruntime.checking.result import Result

ENTRY = KnownFailure(
    cause="onnxruntime refuses it.",
    cases=("a",),
    eps=("cpu", "qnn"),
    outcome="refused: Fail",
    onnxruntime="raised: Fail",
)
KNOWN = KnownFailures(versions=versions(), entries=(ENTRY,))


def ended(outcome, kind="", case="a", eps="qnn", through="file", **more):
    return Result(
        case=case, route=f"{eps}.{through}", outcome=outcome, kind=kind, **more
    )


ALONE = ended("raised", "Fail", eps="onnxruntime", through="direct")
REFUSED = ended("refused", "Fail", reason="Fail: no kernel")
FILE = """
[versions]
onnx = "1"
[eps]
some = ["cpu", "qnn"]
[[failure]]
cause = "No kernel."
outcome = "refused: Fail"
onnxruntime = "passed"
eps = "some"
cases = ["a", "b"]
"""


def test_failures_that_are_known_are_no_differences():
    results = [
        ALONE,
        REFUSED,
        replace(REFUSED, reason="Fail: in other words"),
        ended("refused", "Fail", eps="cpu"),
    ]

    assert find_differences(results, KNOWN, ["a", "b"]) == []


def test_a_new_failure_is_told_with_its_reason_and_what_onnxruntime_does():
    fresh = ended("refused", "Fail", case="b", reason="Fail: no kernel")
    alone = ended("passed", case="b", eps="onnxruntime", through="direct")

    assert find_differences([alone, fresh], KNOWN) == [
        (
            "b qnn.file: refused: Fail, known as: passed (onnxruntime: passed) Fail: "
            "no kernel"
        )
    ]


def test_a_known_failure_on_other_eps_is_new():
    (line,) = find_differences([ended("refused", "Fail", eps="openvino")], KNOWN)

    assert line.startswith("a openvino.file: refused: Fail, known as: passed")


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ("wrong", "shape"),
        ("refused", "PluginError"),
        ("crashed", "SIGABRT"),
        ("differs", "bits"),
    ],
)
def test_a_known_failure_that_ends_otherwise_is_told(outcome, kind):
    (line,) = find_differences([ended(outcome, kind)], KNOWN)

    assert line.startswith(f"a qnn.file: {outcome}")
    assert "known as: refused: Fail" in line


def test_a_known_failure_that_passes_is_told():
    assert find_differences([ended("passed")], KNOWN) == [
        "a qnn.file: passed, known as: refused: Fail"
    ]


def test_a_route_of_a_known_failure_on_which_eps_take_nothing_is_no_difference():
    assert find_differences([ended("unclaimed")], KNOWN) == []


def test_another_outcome_with_onnxruntime_alone_is_told_also_if_it_passes():
    assert find_differences(
        [replace(ALONE, outcome="passed", kind=""), REFUSED], KNOWN
    ) == ["a ends with onnxruntime alone as: passed, known as: raised: Fail"]


def test_what_onnxruntime_alone_fails_at_is_no_failure_of_ours():
    assert find_differences([replace(ALONE, case="b")], KNOWN) == []


def test_a_known_failure_of_a_case_that_does_not_exist_is_told():
    assert find_differences([], KNOWN, ["b"]) == [
        "a is known as a failure, and no case"
    ]


def test_a_file_names_sets_of_eps_once(tmp_path):
    path = tmp_path / "known.toml"
    path.write_text(FILE)

    (entry,) = read_known_failures(path).entries

    assert (entry.eps, entry.cases, entry.cause) == (
        ("cpu", "qnn"),
        ("a", "b"),
        "No kernel.",
    )


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('["a", "b"]', '["a", "a"]'),
        ('cause = "No kernel."', ""),
        ('"No kernel."', '""'),
        ('outcome = "refused: Fail"', 'outcome = "refused: Fail"\nalways = true'),
    ],
    ids=["a case twice", "no cause", "an empty cause", "an unknown key"],
)
def test_a_file_that_says_too_little_or_something_twice_is_refused(
    tmp_path, was, becomes
):
    path = tmp_path / "known.toml"
    path.write_text(FILE.replace(was, becomes))

    with pytest.raises(ValueError, match=r"has a case twice|lacks, or has too much"):
        read_known_failures(path)


def test_every_known_failure_has_a_cause_in_a_sentence():
    for entry in read_known_failures().entries:
        assert entry.cause.endswith(".")
        assert len(entry.cause) > 30
