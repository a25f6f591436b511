"""Formats of model files: how much of a file is read before its format is known."""

import pytest
from support.routes import with_qnn
from support.small_models import chain, saved

import epctx_core as epctx
from epctx_core.graph import wire
from epctx_core.registry import installed

pytestmark = pytest.mark.internal


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


def test_a_file_beside_the_output_in_a_format_that_nobody_decodes_stops_no_compile(
    tmp_path, monkeypatch
):
    """A compile looks in it for whether it names the binary that is replaced."""
    source = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")
    (tmp_path / "m_qnn.bin").write_bytes(b"of nobody")
    (tmp_path / "other.onnx").write_bytes(b"\0\0\0\0ORTM m_qnn.bin")
    options = with_qnn()
    options.add_session_config_entry("session.engine", "onnx.reference")
    registry = epctx.Registry()
    registry.records()
    monkeypatch.setattr(installed, "list_distributions", lambda _paths=None: [])

    report = epctx.ModelCompiler(options, source, registry=registry).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )

    assert report.compiled
