"""Cancellations of models of one share group, which one process compiles."""

from __future__ import annotations

import queue
import threading

import pytest
from epctx_isolation.channel import Message
from epctx_isolation.service import Host


class Line:
    """Channel whose messages a test gives."""

    def __init__(self):
        self.messages = queue.SimpleQueue()

    def receive(self, *, nodes):
        message = self.messages.get()
        if message is None:
            threading.Event().wait()
        return message


@pytest.fixture
def host():
    line = Line()
    made = Host(line)

    def cancel(instance):
        line.messages.put(Message({"do": "cancel", "instance": instance}, []))
        # Messages are read in order: when this one is, so is the other.
        line.messages.put(Message({"do": "call"}, []))
        made.next_message()

    made.cancel = cancel
    yield made
    line.messages.put(None)


def test_a_cancellation_that_arrives_late_does_not_cancel_another_model(host):
    host.begin(2)
    host.begin(1)

    host.cancel(2)

    assert not host.session.cancellation.requested
    host.begin(2)
    assert host.session.cancellation.requested


def test_a_cancellation_reaches_the_model_that_is_being_compiled(host):
    host.begin(2)

    host.cancel(2)

    assert host.session.cancellation.requested


def test_a_cancellation_that_arrives_early_waits_for_its_call(host):
    host.cancel(2)

    assert not host.session.cancellation.requested
    host.begin(2)
    assert host.session.cancellation.requested
