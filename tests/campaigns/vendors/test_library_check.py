"""`epctx plugins check --library` over Qualcomm's library, on its simulator."""

from __future__ import annotations

import onnxruntime_qnn
import pytest
from epctx_onnxruntime.checking.check import check_library
from epctx_onnxruntime.checking.report import Verdict
from epctx_onnxruntime.checking.subject import Subject
from support.vendors_onnxruntime import qnn_options

CASES = {
    "test_relu": Verdict.PASS,
    "test_averagepool_2d_same_lower": Verdict.WRONG,
    "test_add_uint8": Verdict.UNSUPPORTED,
    # A constant that two partitions read, one of them before the other.
    "test_attention_local_window_ext_cache_rank4_batch_mask_expanded": Verdict.PASS,
    # A graph of which one partition is in a binary, and another one a model.
    "test_causal_conv_with_state_kernel_size_one_expanded": Verdict.PASS,
}


@pytest.fixture(scope="module")
def report():
    subject = Subject(
        ep="QNNExecutionProvider",
        library=onnxruntime_qnn.get_library_path(),
        options=qnn_options(),
        tolerance=5e-3,
        without=("compatibility",),  # verdicts are for machines with an NPU
    )
    return check_library(subject, only=[*CASES, "signatures"])


def test_outcomes_are_those_of_the_ep_in_onnxruntime_and_behind_the_hooks(report):
    assert report.cases == CASES
    assert {check.outcome for check in report.checks} == {"passed", "unclaimed"}


def test_what_passes_ran_on_the_ep_by_onnxruntimes_own_account(report):
    passed = [
        trial.notes["nodes"] for trial in report.trials if trial.outcome == "passed"
    ]

    assert all(nodes["taken"] and nodes["ran"] for nodes in passed)
    assert all(nodes["elsewhere"] == {} for nodes in passed)


def test_the_command_of_a_failure_names_library_options_case_and_way(report):
    command = report.reproduce(report.faults[0])

    assert (
        f"--library {onnxruntime_qnn.get_library_path()} --ep QNNExecutionProvider"
        in command
    )
    assert "-p QNNExecutionProvider.htp_arch=73" in command
    assert "--only test_averagepool_2d_same_lower --through onnxruntime" in command
