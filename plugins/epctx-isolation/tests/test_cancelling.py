"""A host's wishes to cancel and to terminate concern the call that they name, and no
other one of the same child.
"""

from __future__ import annotations

import math
import signal
import socket

import pytest
from epctx_isolation import calls
from epctx_isolation.channel import decode_error, receive_message
from epctx_isolation.limits import Limits
from epctx_isolation.orders import STOP, TERMINATE, WISH, keep_objects, send_order
from epctx_isolation.service import Service
from epctx_isolation.shared_memory import ChildMemory, HostMemory
from support.small_models import chain, example

import epctx_core as epctx

pytestmark = pytest.mark.internal


class Child(Service):
    """Child's side that does its calls, and takes the host's wishes, when a test says
    so.
    """

    def __init__(self, line, control, memory):
        super().__init__(line, memory)
        self.control = control
        control.setblocking(False)

    def take_wishes(self):
        """Do what the host wants as far as it has said so."""
        with pytest.raises(BlockingIOError):
            self.obey(self.control)


class Pair:
    """Child and its host in one process, one call after the other."""

    def __init__(self):
        self.memory = HostMemory()
        self._line, far_line = socket.socketpair()
        self._control, far_control = socket.socketpair()
        self._ends = [self._line, far_line, self._control, far_control]
        memory = ChildMemory(self.memory.descriptor)
        self.child = Child(far_line, far_control, memory)
        self._answers = self._line.makefile("rb")
        self._objects = keep_objects(None, epctx.Registry(entry_points=False))

    def close(self):
        self._answers.close()
        for end in self._ends:
            end.close()
        self.memory.close()

    def want(self, wish, call):
        self._control.send(WISH.pack(wish, call))

    def do(self, function, *arguments):
        """Do a call; return the child's message about it."""
        memory = self.memory if function is calls.run else None
        send_order(self._line, (function, arguments, ""), self._objects, memory)
        self.child.do_call()
        return receive_message(self._answers, None)

    def is_cancelled(self):
        """Return whether a call finds that it was cancelled."""
        return self.do(look, epctx.SessionOptions().cancellation).head["result"]


@pytest.fixture
def pair(monkeypatch):
    # A child ends by its alarm; in this process the alarm is pytest's.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(signal, "setitimer", lambda *_: None)
    made = Pair()
    made.child.objects[1] = epctx.InferenceSession(chain(["Relu"]).SerializeToString())
    yield made
    made.child.objects[1].close()
    made.close()


def look(service, cancel):
    service.take_wishes()
    return cancel.requested


def run(pair):
    """Return the message about a run."""
    return pair.do(calls.run, 1, {"x": example()}, "tag")


def test_a_wish_to_cancel_reaches_the_call_that_is_under_way(pair):
    assert not pair.is_cancelled()

    pair.want(STOP, 2)

    assert pair.is_cancelled()


@pytest.mark.parametrize("call", [0, 1, 3, (1 << 32) - 1])
def test_a_wish_to_cancel_another_call_does_not_cancel_the_one_that_is_under_way(
    pair, call
):
    assert not pair.is_cancelled()

    pair.want(STOP, call)

    assert not pair.is_cancelled()


def test_a_call_that_was_cancelled_leaves_the_next_one_alone(pair):
    pair.want(STOP, 1)
    assert pair.is_cancelled()

    assert not pair.is_cancelled()


def test_a_wish_to_cancel_that_arrives_before_its_call_waits_for_it(pair):
    assert not pair.is_cancelled()
    pair.want(STOP, 2)
    pair.child.take_wishes()

    assert pair.is_cancelled()


def test_a_wish_that_arrives_after_its_call_concerns_no_other(pair):
    assert not pair.is_cancelled()
    pair.want(STOP, 1)
    pair.child.take_wishes()

    assert not pair.is_cancelled()


def test_a_wish_after_a_call_that_failed_concerns_no_other(pair):
    assert pair.do(calls.run, 99, {}, None).text("say") == "error"
    pair.want(STOP, 1)
    pair.child.take_wishes()

    assert not pair.is_cancelled()


def test_a_wish_to_terminate_ends_the_run_that_it_names_and_no_other(pair):
    assert run(pair).text("say") == "result"
    pair.want(TERMINATE, 1)
    pair.want(TERMINATE, 3)
    pair.child.take_wishes()
    assert run(pair).text("say") == "result"

    pair.want(TERMINATE, 3)
    pair.child.take_wishes()
    error = decode_error(run(pair))

    assert "terminate" in str(error)
    assert run(pair).text("say") == "result"


def test_a_wish_to_terminate_cancels_no_load(pair):
    pair.want(TERMINATE, 1)

    assert not pair.is_cancelled()


def test_a_limit_for_compiles_sets_no_alarm_for_a_run(pair, monkeypatch):
    alarms = set()
    monkeypatch.setattr(signal, "setitimer", lambda _, seconds: alarms.add(seconds))
    limits = Limits(
        seconds=math.inf, between=math.inf, max_bytes=None, compile_seconds=1
    )
    monkeypatch.setattr(pair.child, "_limits", limits)

    assert run(pair).text("say") == "result"

    assert alarms == {0}
