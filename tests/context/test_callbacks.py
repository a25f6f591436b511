"""Payloads on their way through the host's functions."""

from __future__ import annotations

import pytest

from epctx_core.context.callbacks import CallbackSink, receive
from epctx_core.options import DataReader


@pytest.mark.entry(122)
def test_an_empty_payload_is_a_payload_on_the_way():
    given = []
    sink = CallbackSink(lambda name, data: given.append((name, data.size, data.read())), "m.bin")

    sink.deliver()
    payload = receive(DataReader(function=lambda _, buffer: buffer.allocate(0), max_size=1), "m.bin")

    assert given == [("m.bin", 0, b"")]
    assert (payload.size, bytes(payload.view)) == (0, b"")
