"""Measurement from the start of a process: imports, load and run are on its clocks, and
what measuring itself needs is not.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from epctx_bench import from_start
from epctx_bench.children import Request

pytestmark = pytest.mark.internal

STARTED = 1000.0
IMPORTS, LOAD, INPUTS, RUN = 5.0, 7.0, 100.0, 3.0


class Clock:
    """Clock of which every work takes a known time; half of it on the processor."""

    now = STARTED

    def monotonic(self):
        return self.now

    def process_time(self):
        return (self.now - STARTED) / 2

    def spend(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    """Have the measuring process measure with that clock."""
    clock = Clock()
    monkeypatch.setattr(from_start, "time", clock)
    return clock


@pytest.fixture
def answer(monkeypatch, clock):
    """Answer a request in this process, with a library whose work takes known times."""

    class Session:
        def __init__(self, *_, **__):
            clock.spend(LOAD)

        def get_inputs(self):
            clock.spend(INPUTS)
            return []

        def run(self, outputs, feeds):
            assert (outputs, feeds) == (None, {})
            clock.spend(RUN)

    options = SimpleNamespace(log_severity_level=0)
    library = SimpleNamespace(InferenceSession=Session, SessionOptions=lambda: options)

    def import_library(name):
        assert name == "onnxruntime"
        clock.spend(IMPORTS)
        return library

    request = Request(task="start", engine="onnxruntime", model="m.onnx")
    said = io.StringIO()
    said.close = lambda: None
    monkeypatch.setitem(sys.modules, "onnxruntime", library)
    monkeypatch.setattr(from_start, "import_module", import_library)
    monkeypatch.setattr(from_start, "take_output", lambda: said)
    monkeypatch.setattr(sys, "argv", ["-c", str(STARTED), "onnxruntime"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(asdict(request))))
    from_start.main()
    return json.loads(said.getvalue())["rows"]["first_result_from_start"]


def test_imports_load_and_first_run_count_and_inputs_do_not(answer):
    assert answer["seconds"] == IMPORTS + LOAD + RUN
    assert answer["cpu_seconds"] == (IMPORTS + LOAD + RUN) / 2


def test_what_passed_before_the_first_line_of_the_process_counts(clock):
    clock.spend(11.0)

    assert from_start.Clocks(STARTED).read() == (11.0, 5.5)


def list_modules(program):
    """Return the modules that a fresh process has after a program."""
    code = f"{program}\nimport sys; print(*sys.modules)"
    command = [sys.executable, "-P", "-c", code]
    return set(subprocess.check_output(command, text=True).split())


def test_before_the_library_nothing_is_imported_that_onnxruntime_does_without():
    ours = list_modules("from epctx_bench.from_start import main")
    theirs = list_modules("import onnxruntime")

    assert ours - theirs == {"epctx_bench", "epctx_bench.from_start"}
