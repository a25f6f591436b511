"""A payload in the model is in memory twice at the most while the model is loaded: as the file's bytes and decoded once."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from end_to_end.sim_eps import QNN, with_eps
from end_to_end.small_models import finished, saved, tensor
from onnx import helper, numpy_helper

import epctx_core as epctx

SHAPE = (1 << 12, 1 << 12)
PAYLOAD = 4 << 24


def memory(what: str) -> int:
    """A size in bytes out of the system's account of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) << 10


@pytest.mark.skipif(sys.platform != "linux", reason="Linux can be told to forget a peak")
def test_an_embedded_payload_is_decoded_once_at_a_time(tmp_path):
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32), "w")
    add = helper.make_node("Add", ["x", "w"], ["y"])
    source = saved(
        finished([add], [tensor("x", shape=SHAPE)], [tensor("y", shape=SHAPE)], [weight]), tmp_path / "m.onnx"
    )
    compiler = epctx.ModelCompiler(with_eps(QNN), source, embed_compiled_data_into_model=True)
    compiled = compiler.compile_to_file(tmp_path / "m_ctx.onnx").output
    del weight, compiler
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = memory("VmRSS")

    with epctx.InferenceSession(compiled):
        grown = memory("VmHWM") - before

    assert PAYLOAD < grown < 2.5 * PAYLOAD
