"""Bytes that pass through protobuf into a context model; and the suite sees what
onnxruntime could not resolve.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper
from support.compiling import compiler
from support.engine_eps import Alpha
from support.small_models import finished, saved, tensor

pytestmark = pytest.mark.internal

LARGE = 2000


@pytest.fixture
def source(tmp_path):
    """Two large weights: Alpha takes one, the other stays."""
    weights = [
        numpy_helper.from_array(np.full(LARGE, n, np.float32), name)
        for n, name in enumerate(["taken", "left"])
    ]
    nodes = [
        helper.make_node("Add", ["x", "taken"], ["a"]),
        helper.make_node("Mul", ["a", "left"], ["y"]),
    ]
    return saved(
        finished(
            nodes, [tensor("x", shape=["N"])], [tensor("y", shape=["N"])], weights
        ),
        tmp_path / "m.onnx",
    )


def test_weights_that_stay_do_not_pass_through_protobuf(source, monkeypatch):
    sizes = []
    monkeypatch.setattr("epctx_core.compiling.emit.embed", remember(sizes))

    report = compiler(source, Alpha).compile_to_file()

    assert sizes[0] < 4 * LARGE < report.output.stat().st_size


def remember(sizes):
    from epctx_core.context.payload_writer import embed

    def measured(model, contents):
        sizes.append(len(model))
        return embed(model, contents)

    return measured


@pytest.mark.parametrize("route", ["file", "bytes"])
def test_a_model_that_onnxruntime_cannot_resolve_fails_the_test_that_wrote_it(
    source, monkeypatch, route
):
    # Without it the type of what an EPContext node makes is nobody's knowledge.
    monkeypatch.setattr("epctx_core.graph.splice._splice_values", lambda *_: None)
    made = compiler(source, Alpha, embed_compiled_data_into_model=True)

    with pytest.raises(
        pytest.fail.Exception, match="onnxruntime does not resolve what was written"
    ):
        made.compile_to_file() if route == "file" else made.compile_to_bytes()
