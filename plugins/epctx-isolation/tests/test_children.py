"""Children between two of their users, and between two calls."""

from __future__ import annotations

import threading

import pytest
from epctx_isolation import children, process
from epctx_isolation.limits import Limits
from epctx_isolation.process import ChildProcess
from support.engine_eps import Alpha
from support.faulty_eps import Faulty
from support.isolation import nothing_left, options_for, registry_of, source, wait_for
from support.small_models import example

import epctx_core as epctx

pytestmark = pytest.mark.internal

LIMITS = Limits(seconds=60, between=60, max_bytes=None)


def test_a_session_that_is_collected_while_a_child_is_taken_leaves_its_own(
    tmp_path, monkeypatch
):
    registry = registry_of(Alpha)
    options = options_for(Alpha, isolate="all")
    sessions = [
        epctx.InferenceSession(source(tmp_path), options, registry=registry),
    ]

    def collect_and_start(limits):
        sessions.clear()
        return ChildProcess(limits)

    monkeypatch.setattr(children, "ChildProcess", collect_and_start)
    taken = []

    def take():
        taken.append(children.take_child(LIMITS, registry, "a test"))

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(60)

    assert taken
    taken[0].leave()
    assert taken[0].process.is_over


def test_a_child_that_its_last_user_leaves_is_no_child_for_another(monkeypatch):
    registry = registry_of(Alpha)
    child = children.take_child(LIMITS, registry, "another test")
    taken = []
    close = child.process.close

    def take_and_close():
        taken.append(children.take_child(LIMITS, registry, "another test"))
        close()

    monkeypatch.setattr(child.process, "close", take_and_close)

    child.leave()

    assert not taken[0].process.is_over
    taken[0].leave()


def test_a_child_is_left_while_another_one_starts(monkeypatch):
    registry = registry_of(Alpha)
    child = children.take_child(LIMITS, registry, "a first test")
    starts, may_start = threading.Event(), threading.Event()

    def start_later(limits):
        starts.set()
        may_start.wait(60)
        return ChildProcess(limits)

    monkeypatch.setattr(children, "ChildProcess", start_later)

    def take():
        children.take_child(LIMITS, registry, "a second test").leave()

    taker = threading.Thread(target=take)
    taker.start()
    assert starts.wait(60)
    leaver = threading.Thread(target=child.leave, daemon=True)
    leaver.start()
    leaver.join(60)
    is_left = child.process.is_over
    may_start.set()
    taker.join()

    assert is_left


def test_a_wish_reaches_its_call_after_one_that_could_not_be_sent(
    tmp_path, monkeypatch
):
    note = tmp_path / "note"
    monkeypatch.setenv("EPCTX_TEST_NOTE", str(note))
    faulty = {"fault": "note-slowly", "hook": "run"}
    options = options_for(Faulty, isolate="all", provider_options=faulty)
    wishes = epctx.RunOptions()

    def terminate():
        wait_for(note.exists)
        wishes.terminate = True

    with epctx.InferenceSession(
        source(tmp_path), options, registry=registry_of(Faulty)
    ) as session:
        with pytest.raises(epctx.InvalidArgument, match="cannot be sent"):
            session.set_ep_dynamic_options({"key": threading.Lock()})
        threading.Thread(target=terminate).start()

        with pytest.raises(epctx.RuntimeException, match="terminate"):
            session.run(None, {"x": example()}, wishes)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(RuntimeError("no thread"), epctx.Fail), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_a_process_whose_start_fails_half_way_leaves_nothing(
    monkeypatch, temporary, raised, expected
):
    def fail(*_):
        raise raised

    monkeypatch.setattr(process.ChildProcess, "_begin_call", fail)

    with nothing_left(temporary), pytest.raises(expected):
        ChildProcess(LIMITS)
