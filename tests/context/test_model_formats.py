"""Formats of model files: how much of a file is read before its format is known."""

import pytest

import epctx_core as epctx
from epctx_core.graph import wire


def test_of_millions_of_fields_without_a_graph_few_are_looked_at(tmp_path, monkeypatch):
    hostile = tmp_path / "hostile.onnx"
    hostile.write_bytes(b"\x10\x01" * (1 << 20))
    seen, walk = [], wire.walk_fields
    monkeypatch.setattr(
        wire, "walk_fields", lambda *a: (seen.append(f) or f for f in walk(*a))
    )

    with pytest.raises((epctx.errors.InvalidGraph, epctx.errors.InvalidProtobuf)):
        epctx.InferenceSession(hostile)

    assert 0 < len(seen) < 3000
