"""Processes of checks that are forks of one that has imported the kit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from conformance.small_ep import SmallProvider
from epctx_conformance.fork_server import IS_SUPPORTED
from epctx_conformance.harness import Harness
from epctx_conformance.other_process import ProcessEnded, call_in_other_process

from epctx_core.testing import Requirements

pytestmark = [
    pytest.mark.internal,
    pytest.mark.skipif(not IS_SUPPORTED, reason="nothing is forked here"),
]
SEEN: list[int] = []


@pytest.fixture
def harness():
    made = Harness(SmallProvider)
    yield made
    made.close()


def describe_process(_harness: Harness) -> dict[str, object]:
    """Return what a job finds, and leave something behind."""
    found = {
        "seen": list(SEEN),
        "process": os.getpid(),
        "parent": os.getppid(),
        "variable": os.environ.get("ACME_DEVICE"),
        "input": sys.stdin.read(),
    }
    SEEN.append(1)
    os.environ["ACME_DEVICE"] = "left behind"
    return found


def end_process(_harness: Harness) -> None:
    sys.stderr.write("the driver met a wrong byte\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGSEGV)


def wait_long(_harness: Harness) -> None:
    time.sleep(600)


def test_each_job_has_a_process_without_anything_of_the_job_before(harness):
    first, second = (call_in_other_process(harness, describe_process) for _ in "12")

    assert first["parent"] == second["parent"] != os.getpid()
    assert first["process"] != second["process"]
    assert first["seen"] == second["seen"] == []
    assert first["variable"] is second["variable"] is None
    assert first["input"] == ""


def test_a_job_has_the_environment_of_its_time(harness, monkeypatch):
    call_in_other_process(harness, describe_process)
    monkeypatch.setenv("ACME_DEVICE", "sim")

    assert call_in_other_process(harness, describe_process)["variable"] == "sim"


def test_a_job_with_variables_of_its_own_has_a_process_that_was_started_with_them(
    harness,
):
    found = call_in_other_process(
        harness, describe_process, environment={"PYTHONHASHSEED": "1"}
    )

    assert found["parent"] == os.getpid()


def test_a_job_that_ends_its_process_is_told_with_its_output_and_the_next_one_runs(
    harness,
):
    with pytest.raises(ProcessEnded, match=r"-11\)[\s\S]*met a wrong byte"):
        call_in_other_process(harness, end_process)

    assert call_in_other_process(harness, describe_process)["seen"] == []


def test_a_job_that_takes_too_long_is_ended_and_the_next_one_runs():
    harness = Harness(SmallProvider, requirements=Requirements(seconds=8))
    call_in_other_process(harness, describe_process)

    with pytest.raises(subprocess.TimeoutExpired):
        call_in_other_process(harness, wait_long)

    assert call_in_other_process(harness, describe_process)["seen"] == []
    harness.close()


def test_a_server_that_was_killed_is_replaced(harness):
    first = call_in_other_process(harness, describe_process)
    os.kill(first["parent"], signal.SIGKILL)

    second = call_in_other_process(harness, describe_process)
    third = call_in_other_process(harness, describe_process)

    assert second["seen"] == third["seen"] == []
    assert third["parent"] not in {first["parent"], os.getpid()}


def test_the_end_of_a_harness_ends_its_server(harness):
    server = call_in_other_process(harness, describe_process)["parent"]

    harness.close()

    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    job = {"environment": os.environ, "stdout": server, "stderr": server}
    assert harness.fork_server.run([], **job, seconds=1) is None
