"""Payloads on their way through the host's functions."""

from __future__ import annotations

import gc

import pytest

from epctx_core.context.callbacks import MemorySink, deliver, receive
from epctx_core.options import DataReader

pytestmark = pytest.mark.internal


@pytest.mark.entry(122)
def test_an_empty_payload_is_a_payload_on_the_way():
    given = []

    deliver(
        lambda name, data: given.append((name, data.size, data.read())),
        "m.bin",
        MemorySink(),
    )
    payload = receive(
        DataReader(function=lambda _, buffer: buffer.allocate(0), max_size=1), "m.bin"
    )

    assert given == [("m.bin", 0, b"")]
    assert bytes(payload) == b""


def test_bytes_in_memory_may_be_garbage_together_with_a_view_of_them():
    """`io.BytesIO` alone ends Python 3.12.1 here, and leaves an error that nobody
    catches on 3.13.0.
    """
    sink = MemorySink()
    sink.write(b"payload")
    cycle = [sink, sink.getbuffer()]
    cycle.append(cycle)

    del sink, cycle

    assert gc.collect() > 0


def test_a_view_keeps_the_bytes_of_a_sink_that_was_closed():
    sink = MemorySink()
    sink.write(b"payload")
    view = sink.getbuffer()

    sink.close()

    assert bytes(view) == b"payload"
