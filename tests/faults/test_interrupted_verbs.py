"""Ctrl-C at a random moment of every verb: it ends soon, says so in a word, and leaves
the older results or the new ones.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from faults.verbs import (
    DAILY,
    LARGE,
    SMALL,
    VERBS,
    begin,
    list_litter,
    read_files,
)

IMPORT = "onnx/__init__.py"
SECONDS = 30.0
"""In which a verb ends, on a machine with much other work."""


def finished(verb, source, out):
    """Let a verb finish; return how long it took."""
    began = time.monotonic()
    process = begin(verb, source, out)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return time.monotonic() - began


def interrupted(verb, source, out, after):
    """Interrupt a verb and all that it began, as a terminal does; return its exit code
    and its standard error.
    """
    process = begin(verb, source, out)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
    try:
        _, said = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said


@pytest.mark.usefixtures("interruptible")
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, 1) for name in DAILY),
        *(pytest.param(name, 10, marks=pytest.mark.stress) for name in VERBS),
    ],
)
def test_a_verb_that_is_interrupted_leaves_the_older_result_or_the_new_one(
    name, count, sources, tmp_path
):
    verb = VERBS[name]
    states = []
    for size in (SMALL, LARGE):
        out = tmp_path / size
        out.mkdir()
        verb.before(sources / size, out)
        whole = finished(name, sources / size, out)
        states.append(read_files(out))
    chance = random.Random(f"{name} {count}")  # noqa: S311 - for a test
    codes = Counter()

    for number in range(count):
        out = tmp_path / str(number)
        out.mkdir()
        verb.before(sources / SMALL, out)
        if verb.is_rewritten:
            for file, content in states[0].items():
                (out / file).write_bytes(content)
        moment = chance.uniform(0.2 * whole, whole)
        code, said = interrupted(name, sources / LARGE, out, moment)
        codes[code] += 1

        # onnx's native module ends the process if it is interrupted while it is imported.
        is_of_onnx = code in {-signal.SIGABRT, -signal.SIGSEGV} and IMPORT in said
        assert is_of_onnx or code in {0, 130, -signal.SIGINT}, said
        # Before the command line has begun, Python says what it says.
        assert is_of_onnx or "Traceback" not in said or "in main" not in said, said
        # If it comes while a publication tidies up, the next run does that. So it does
        # after the processes of a batch, which are killed.
        litter = list_litter(out)
        codes["with litter"] += bool(litter)
        if verb.is_rewritten and name not in {"report", "bench"} and not litter:
            assert read_files(out) in states, code
        finished(name, sources / LARGE, out)
        assert list_litter(out) == []
    sys.stdout.write(f"{name}: exit codes of {count} interrupts: {dict(codes)}\n")
