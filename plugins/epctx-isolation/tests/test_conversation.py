"""Conversations with a child that does not keep to what it may send."""

from __future__ import annotations

import io
import threading

import pytest
from epctx_isolation.channel import Message, ProtocolError, send_message
from epctx_isolation.conversation import Conversation
from epctx_isolation.orders import keep_objects

import epctx_core as epctx

pytestmark = pytest.mark.internal


class Line(io.BytesIO):
    """Line on which a child has sent some bytes."""

    def sendall(self, data):
        """Take what the host sends."""


class Sent(bytearray):
    """What a child sends."""

    sendall = bytearray.extend


class Unsendable:
    """Result of a host's function that cannot be pickled."""

    def __reduce__(self):
        raise ValueError("not today")


@pytest.mark.parametrize("make", [threading.Lock, Unsendable])
def test_an_answer_that_cannot_be_sent_is_a_failure_to_the_child(make):
    """It waits for one, and would take the next order for it."""
    sent = []
    line = Line()
    line.sendall = lambda data: sent.append(bytes(data))
    # The end of the chunks that a question comes with.
    end = Sent()
    send_message(end, {"say": "chunk"})
    line.write(end)
    line.seek(0)
    objects = keep_objects(
        None,
        epctx.Registry(entry_points=False),
        locate=lambda *_: make(),
    )
    facts = {"name": "w", "present": None, "shape": [0], "elem_type": 1}
    question = Message({"say": "ask", "kind": "locate", **facts})

    Conversation(line, objects).answer(question, asks=True)

    (order,) = (each for each in sent if b"failed" in each)
    assert b"cannot be sent to another process" in order


@pytest.mark.parametrize(("pieces", "is_allowed"), [(10, True), (11, False)])
def test_a_payload_in_pieces_is_no_larger_than_a_message(pieces, is_allowed):
    sent = Sent()
    for _ in range(pieces):
        send_message(sent, {"say": "chunk"}, [bytes(1000)])
    send_message(sent, {"say": "chunk"})
    written = []
    objects = keep_objects(
        None,
        epctx.Registry(entry_points=False),
        write=lambda name, data: written.append((name, len(data.read()))),
    )
    conversation = Conversation(Line(sent), objects, limit=10_000)
    question = Message({"say": "ask", "kind": "write", "name": "p.bin"})

    if is_allowed:
        conversation.answer(question, asks=True)
    else:
        with pytest.raises(ProtocolError, match="10,000 bytes in pieces"):
            conversation.answer(question, asks=True)

    assert written == [("p.bin", 10_000)] * is_allowed
