"""A payload in the model is in memory twice at the most while the model is loaded: as
the file's bytes and decoded once.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from onnx import helper, numpy_helper
from support.sim_eps import QNN, with_eps
from support.small_models import finished, saved, tensor

import epctx_core as epctx

SHAPE = (1 << 11, 1 << 12)
PAYLOAD = 4 << 23

LOAD = """
import sys
from pathlib import Path
import epctx_core as epctx

def memory(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) << 10

epctx.InferenceSession(sys.argv[1]).close()  # what is imported and looked up once does not count
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
with epctx.InferenceSession(sys.argv[2]):
    print(memory("VmHWM") - before)
"""
"""A process of its own: in the suite's, memory of earlier tests may be given back
meanwhile.
"""


def compiled(path, shape):
    weight = numpy_helper.from_array(
        np.random.default_rng(0).standard_normal(shape, dtype=np.float32), "w"
    )
    add = helper.make_node("Add", ["x", "w"], ["y"])
    source = saved(
        finished(
            [add], [tensor("x", shape=shape)], [tensor("y", shape=shape)], [weight]
        ),
        path,
    )
    compiler = epctx.ModelCompiler(
        with_eps(QNN), source, embed_compiled_data_into_model=True
    )
    return compiler.compile_to_file(path.with_suffix(".ctx.onnx")).output


@pytest.mark.skipif(
    sys.platform != "linux", reason="Linux can be told to forget a peak"
)
def test_an_embedded_payload_is_decoded_once_at_a_time(tmp_path):
    small, large = (
        compiled(tmp_path / "small.onnx", (1, 1)),
        compiled(tmp_path / "large.onnx", SHAPE),
    )

    grown = int(subprocess.check_output([sys.executable, "-c", LOAD, small, large]))

    assert PAYLOAD < grown < 2.5 * PAYLOAD
