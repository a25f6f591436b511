"""Killed at any moment over an older state, while another process reads: every load
gives the old or the new one.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from faults.pairs import HARNESSES, NEW, OLD, files, staging

PROGRAM = Path(__file__).with_name("in_other_processes.py")


@contextmanager
def program(*arguments):
    """Run the program until the block is left; gives a function that says a line (None
    ends) and returns the answer.
    """
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def told(*words):
        if words:
            print(*words, file=process.stdin, flush=True)
        else:
            process.stdin.close()
        return process.stdout.readline()

    with process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield told
        finally:
            process.stdin.close()
            process.wait(timeout=60)


def moments(count, seconds, calls):
    """Return orders, seeded: half spread over the whole time of a compile, half over
    its changing calls.
    """
    generator = random.Random(count)  # noqa: S311 - a seed, no secret
    half = count // 2
    by_time = [
        ("time", f"{(n + generator.random()) / half * seconds:.5f}")
        for n in range(half)
    ]
    rest = count - half
    by_call = [
        ("call", str(1 + int((n + generator.random()) / rest * calls)))
        for n in range(rest)
    ]
    orders = by_time + by_call
    generator.shuffle(orders)
    return orders


@pytest.mark.parametrize("count", [16, pytest.param(300, marks=pytest.mark.stress)])
@pytest.mark.parametrize("harness", HARNESSES)
def test_a_kill_at_any_moment_leaves_the_old_or_the_new_state_for_whoever_reads(
    harness, count, tmp_path
):
    killed, staged, kept, replaced = 0, 0, 0, 0
    with (
        program("compile", harness, tmp_path) as told,
        program("watch", harness, tmp_path) as watch,
    ):
        pairs = HARNESSES[harness](tmp_path)
        _, seconds, calls = told("whole", "-", OLD).split()
        before = [OLD] * len(pairs.answers[OLD])

        for number, (kind, amount) in enumerate(
            moments(count, float(seconds), int(calls))
        ):
            which = NEW if before[0] == OLD else OLD
            fate = told(kind, amount, which).split()[0]
            after = pairs.loaded()

            assert fate == "killed" or set(after) == {which}, (number, kind, amount)
            killed += fate == "killed"
            replaced += after == [which] * len(after)
            kept += after == before
            staged += bool(staging(pairs.out))
            if len(set(after)) > 1:
                # A group of which one member got its name: the next compile finishes it.
                told("whole", "-", which)
                after = pairs.loaded()
            before = after

        # Each kill may have met the recovery from the one before. From a whole state the
        # last call comes after the new one is in its place.
        told("whole", "-", OLD)
        _, _, last = told("whole", "-", NEW).split()
        told("whole", "-", OLD)
        assert told("call", last, NEW).split()[0] == "killed"
        assert set(pairs.loaded()) == {NEW}
        told("whole", "-", NEW)
        seen = json.loads(watch())

    sys.stdout.write(
        f"{harness}: {killed} kills of {count}, {staged} while it published; after "
        f"them {kept} times the old state, {replaced} times the new one\n"
    )
    assert seen["problems"] == []
    assert set(seen["found"]) - set(map(str, pairs.between)) == {str(OLD), str(NEW)}
    assert kept >= count / 8
    assert staged >= count / 8  # that many were killed while they published
    assert files(pairs.out) == pairs.states[NEW]
    assert staging(pairs.out) == []


@pytest.mark.parametrize(
    "harness", [name for name, harness in HARNESSES.items() if not harness.between]
)
def test_two_processes_that_compile_into_one_folder_take_turns_while_a_third_reads(
    harness, tmp_path
):
    with (
        program("compile", harness, tmp_path) as one,
        program("compile", harness, tmp_path) as other,
        program("watch", harness, tmp_path) as watch,
        ThreadPoolExecutor(2) as pool,
    ):
        pairs = HARNESSES[harness](tmp_path)
        for _ in range(3):
            answers = pool.map(
                lambda told, which: told("whole", "-", which), (one, other), (OLD, NEW)
            )
            assert [answer.split()[0] for answer in answers] == ["finished", "finished"]
            assert len(set(pairs.loaded())) == 1
        seen = json.loads(watch())

    assert seen["problems"] == []
    assert set(seen["found"]) <= {str(OLD), str(NEW)}
    assert files(pairs.out) in pairs.states
    assert staging(pairs.out) == []
