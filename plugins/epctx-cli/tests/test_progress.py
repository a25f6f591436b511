"""The line of progress of a stage."""

from __future__ import annotations

import io
import math
import subprocess
import sys
import time
from contextlib import contextmanager, redirect_stdout

import pytest
from epctx_cli.progress_line import ProgressLine

pytestmark = pytest.mark.internal

FORKING = """
import os, sys, threading
from epctx_cli.progress_line import ProgressLine

progress = ProgressLine(sys.stderr)
is_hidden, end = threading.Event(), threading.Event()

def hide():
    with progress.hidden():
        is_hidden.set()
        end.wait()

threading.Thread(target=hide, daemon=True).start()
is_hidden.wait()
child = os.fork()
if not child:
    progress("compile", 1, 3)
    with progress.span("optimise", "stage", {}):
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
end.set()
"""


DEADLINE = 30.0


def wait_until(is_met):
    end = time.monotonic() + DEADLINE
    while not is_met():
        assert time.monotonic() < end
        time.sleep(0.01)


class Terminal(io.TextIOWrapper):
    """File that calls itself a terminal."""

    def isatty(self):
        return True


@contextmanager
def printing_to(path):
    """Make standard output a terminal that writes a file."""
    with (
        path.open("wb") as raw,
        Terminal(raw, "ascii", "replace") as stream,
        redirect_stdout(stream),
    ):
        yield stream


class Clock:
    """Clock that goes on when it is told to."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def progress(clock, tmp_path):
    """Progress that writes lines."""
    with (tmp_path / "log").open("w") as log:
        yield ProgressLine(log, "compiling", in_lines=True, get_time=clock)


def test_the_time_left_is_estimated_from_what_this_stage_did(progress, clock):
    """The conformance kit counts on from group to group, and each is a stage."""
    progress("second group", 40, 50)
    assert "left" not in progress.describe()
    clock.seconds = 60
    progress("second group", 42, 50)

    assert progress.describe() == (
        "0:01:00  second group  42 of 50, about 0:04:00 left"
    )


@pytest.mark.parametrize("done", [-100, 50])
def test_no_more_is_done_than_all_whatever_an_ep_says(progress, done):
    progress("compile", done, 10)

    assert progress.describe().endswith(
        f"compiling  {min(max(done, 0), 10)} of 10 partitions"
    )


def test_only_what_is_written_is_counted_in_bytes(progress):
    progress("tune", 5, 0)
    assert progress.describe() == "0:00:00  tune"
    progress("write", 2048, 0)

    assert progress.describe() == "0:00:00  writing  2.0 KiB"


def test_bytes_have_a_speed(progress, clock):
    for done in (0, 1 << 20, 3 << 20):
        progress("download", done, 4 << 20, unit="bytes")
        clock.seconds += 2

    assert progress.describe() == (
        "0:00:06  download  3.0 MiB of 4.0 MiB, 1.0 MiB/s, about 0:00:01 left"
    )


def test_an_estimate_of_the_caller_replaces_that_of_the_counts(progress):
    progress("compile", 8, 10, unit="tasks", seconds_left=math.inf)
    assert "left" not in progress.describe()
    progress(
        "compile", 9, 10, unit="tasks", notes=["1 failed", "5 cached"], seconds_left=125
    )

    assert progress.describe().endswith(
        "9 of 10 tasks, about 0:02:05 left, 1 failed, 5 cached"
    )


def test_a_stage_ends_with_the_one_that_it_belongs_to(progress):
    progress("compile", 1, 3)
    with progress.span("optimise", "stage", {}):
        progress("tune\nlayers", 1, 5)
        assert progress.describe().endswith(r"tune\nlayers  1 of 5")

    assert progress.describe().endswith("compiling  1 of 3 partitions")


def test_a_log_gets_whole_lines_without_colours(monkeypatch, tmp_path, clock):
    monkeypatch.setattr("epctx_cli.progress_line._LINE_SECONDS", 0.01)
    path = tmp_path / "log"

    with path.open("w") as log:
        progress = ProgressLine(log, "compiling", in_lines=True, get_time=clock)
        progress("compile", 9, 10, unit="tasks", notes=["1 failed"])
        with progress.shown():
            wait_until(lambda: path.read_text().count("\n") >= 2)

    lines = {*path.read_text().splitlines()}
    assert lines == {"0:00:00  compiling  9 of 10 tasks, 1 failed"}


def test_a_stream_that_has_a_line_below_it_is_still_a_terminal(tmp_path):
    with printing_to(tmp_path / "shown") as terminal, ProgressLine(terminal).shown():
        facts = sys.stdout.encoding, sys.stdout.errors, sys.stdout.writable()

    assert facts == ("ascii", "replace", True)


def test_what_an_ep_prints_in_parts_stays_on_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr("epctx_cli.progress_line._SILENT_SECONDS", 0.01)
    path = tmp_path / "shown"

    def count_frames():
        return path.read_bytes().count(b"compiling")

    with printing_to(path) as terminal, ProgressLine(terminal, "compiling").shown():
        wait_until(count_frames)
        sys.stdout.write("\r30%")
        assert path.read_bytes().endswith(b"\r30%")
        sys.stdout.write("\r60%")
        sys.stdout.write(" done\n")
        before = count_frames()
        wait_until(lambda: count_frames() > before)

    assert b"\r30%\r60% done\n" in path.read_bytes()


def test_a_process_that_an_ep_forks_meanwhile_does_not_wait_for_the_line():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout == "7\n"
