"""Many processes, one compile; and what becomes of it when a process is killed, waits,
or is asked to stop.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from epctx_cache import lock
from epctx_cache.lock import FileLock, holders, read_holder
from support.sim_eps import QNN, with_eps
from support.small_models import chain, example, saved

import epctx_core as epctx

pytestmark = pytest.mark.internal

PROGRAM = Path(__file__).with_name("asking.py")
KILLED = Path(__file__).with_name("killed.py")


def started(*arguments, program=PROGRAM):
    return subprocess.Popen(
        [sys.executable, str(program), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_that_ask_fifty_times_each_compile_once(cache, model):
    processes = [started(model, cache.folder, 50) for _ in range(8)]

    said = [json.loads(process.communicate(timeout=300)[0]) for process in processes]

    assert sum(answer["compiles"] for answer in said) == 1
    assert {tuple(answer["answers"]) for answer in said} == {tuple(said[0]["answers"])}
    assert len(said[0]["answers"]) == 1
    assert len(cache.keys) == 1
    assert list((cache.folder / "v1" / "locks").iterdir()) == []


@pytest.fixture
def hanging(cache, model):
    """A process that holds the lock and never ends its compile."""
    process = started(model, cache.folder, "hang")
    assert process.stdout.readline() == "compiling\n"
    yield process
    process.kill()
    process.communicate()


def lock_of(cache):
    (path,) = (cache.folder / "v1" / "locks").iterdir()
    return path


def test_the_lock_describes_the_process_that_compiles(cache, hanging):
    holder = read_holder(lock_of(cache))

    assert holder.startswith(
        f"process {hanging.pid} on {os.uname().nodename}, which compiles small.onnx "
        "since "
    )
    assert holders(cache.store.locks_folder) == [holder]


def test_a_lock_file_that_is_not_locked_has_no_holder(cache, hanging):
    left = lock_of(cache).read_text()
    hanging.kill()
    hanging.wait()

    assert lock_of(cache).read_text() == left
    assert holders(cache.store.locks_folder) == []


def test_when_the_compiling_process_is_killed_one_that_waits_takes_over(
    cache, model, hanging
):
    answers = []

    def ask():
        with cache.session(model, with_eps("QNN")) as session:
            answers.append(session.run(None, {"x": example()})[0])

    waiting = [threading.Thread(target=ask) for _ in range(3)]
    for thread in waiting:
        thread.start()
    time.sleep(0.2)
    assert answers == []
    assert len(cache.keys) == 0
    os.kill(hanging.pid, signal.SIGKILL)
    for thread in waiting:
        thread.join(60)

    with epctx.InferenceSession(model) as session:
        expected = session.run(None, {"x": example()})[0]
    assert len(answers) == 3
    assert all(np.allclose(answer, expected, atol=1e-6) for answer in answers)
    assert cache.compiles == 1
    assert list((cache.folder / "v1" / "staging").iterdir()) == []


def test_a_process_that_waits_says_for_whom(cache, model, hanging, monkeypatch):
    monkeypatch.setattr(lock, "LOGGED_AFTER", 0.0)
    options = with_eps("QNN")
    waiting = threading.Thread(target=cancelled, args=(cache, model, options))
    waiting.start()

    while not cache.warnings and waiting.is_alive():
        time.sleep(0.01)
    options.set_load_cancellation_flag(True)
    waiting.join(60)

    (warning,) = cache.warnings
    assert f"waiting for process {hanging.pid} on " in warning
    assert "which compiles small.onnx since" in warning


def cancelled(cache, model, options):
    with pytest.raises(epctx.ModelLoadCanceled):
        cache.session(model, options)


def test_who_waits_can_be_cancelled(cache, model, hanging):
    options = with_eps("QNN")
    options.set_load_cancellation_flag(True)

    with pytest.raises(epctx.ModelLoadCanceled):
        cache.session(model, options)
    with pytest.raises(epctx.ModelLoadCanceled):
        cache.path(model, options)


def test_others_are_not_kept_waiting_by_a_compile_of_another_key(cache, model, hanging):
    assert cache.key(model, with_eps(QNN)) in cache.keys


def test_a_lock_file_that_was_left_is_no_lock(cache, model):
    key = cache.key(model)
    cache.store.remove(key)
    left = cache.folder / "v1" / "locks" / key
    left.write_text("process 1 on h, which compiles m since 00:00:00")

    assert cache.key(model) == key
    assert not left.exists()


@pytest.mark.parametrize("data", [None, b""])
def test_a_lock_without_a_text_is_of_another_process(tmp_path, data):
    path = tmp_path / "lock"
    if data is not None:
        path.write_bytes(data)

    assert read_holder(path) == "another process that compiles the same model"


def test_what_a_locked_file_says_is_replaced_whole(tmp_path):
    with FileLock.take(tmp_path / "lock", create=True) as held:
        held.write(b"a long text")

        held.write(b"short")

    assert (tmp_path / "lock").read_bytes() == b"short"


def killed(model, cache, *arguments):
    """Return what came of each kill."""
    process = started(model, cache.folder, *arguments, program=KILLED)
    said, _ = process.communicate(timeout=1200)
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines()]


def assert_nothing_lost(kills):
    assert all(kill["answers"] == kills[0]["answers"] for kill in kills)
    assert [(kill["entries"], kill["faults"], kill["left"]) for kill in kills] == [
        (1, [], [])
    ] * len(kills)


def test_killed_at_any_change_the_next_one_who_asks_gets_a_whole_entry(cache, model):
    kills = killed(model, cache, 1, 1000, 6)

    assert sum(kill["killed"] for kill in kills) >= 5
    assert_nothing_lost(kills)


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.stress)])
def test_killed_at_any_moment_the_next_one_who_asks_gets_a_whole_entry(
    cache, model, count
):
    kills = killed(model, cache, "moments", count)

    died = [kill for kill in kills if kill["killed"]]
    reached = Counter(" ".join(dict.fromkeys(kill["reached"])) for kill in died)
    sys.stdout.write(
        f"{len(died)} kills of {len(kills)}; folders then: {dict(reached)}\n"
    )
    assert len(died) == count
    assert_nothing_lost(kills)


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.stress)])
def test_killed_at_any_change_whoever_reads_finds_whole_entries_old_or_new(
    cache, model, step
):
    older = saved(chain(["Sigmoid", "Add"]), model.with_name("older.onnx"))

    kills = killed(model, cache, 1, 1000, step, older)

    assert sum(kill["killed"] for kill in kills) >= 30 // step
    assert all(kill["answers"] == kills[0]["answers"] for kill in kills)
    assert [(kill["entries"], kill["faults"], kill["left"]) for kill in kills] == [
        (2, [], [])
    ] * len(kills)
    for kill in kills:
        assert kill["older"] != kill["answers"][0]
        assert kill["older"] in kill["read"]
        assert all(
            answer in (kill["older"], kill["answers"][0]) for answer in kill["read"]
        )
    assert any(kill["answers"][0] in kill["read"] for kill in kills)


@pytest.mark.stress
def test_killed_at_every_change_the_next_one_who_asks_gets_a_whole_entry(cache, model):
    kills = killed(model, cache, 1, 1000, 1)

    assert [kill["killed"] for kill in kills] == [True] * (len(kills) - 1) + [False]
    assert len(kills) > 30
    assert_nothing_lost(kills)
