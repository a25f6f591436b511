"""A payload's writer alone: what is too large for a model, and what is nothing."""

from __future__ import annotations

import io

import pytest

from epctx_core.context.payload_writer import PayloadWriter
from epctx_core.errors import Fail

pytestmark = pytest.mark.internal


def test_nothing_written_is_a_payload_of_no_bytes():
    entry = PayloadWriter("n", io.BytesIO(), embedded=True).make_entry()

    assert (entry.size, entry.segments) == (0, ())


def test_a_payload_too_large_for_a_model_is_refused_while_it_is_written(monkeypatch):
    monkeypatch.setattr("epctx_core.context.payload_writer.EMBEDDED_LIMIT", 10)
    sink = io.BytesIO()
    writer = PayloadWriter("n", sink, embedded=True)
    writer.write(bytes(10))

    with pytest.raises(Fail, match="'n' has more than 10 bytes") as caught:
        writer.write(b"x")

    assert "ep.context_embed_mode=0" in caught.value.hint
    assert len(sink.getvalue()) == 10


def test_a_file_too_large_for_a_model_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "binary"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    sink = io.BytesIO()

    with pytest.raises(Fail, match=r"'n' has more than 2,147,483,647 bytes"):
        PayloadWriter("n", sink, embedded=True).add_file(path)

    assert not sink.getvalue()
