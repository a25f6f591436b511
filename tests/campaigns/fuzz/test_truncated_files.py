"""A mapped binary that someone cuts ends the process; with `ep.context_file_mapping=0`
nothing happens to the session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from support.sim_eps import QNN, with_eps
from support.small_models import finished, saved, tensor

import epctx_core as epctx

ROWS = 1 << 16
CHILD = """
import os, sys
import numpy as np
import epctx_core as epctx
options = epctx.SessionOptions()
options.add_session_config_entry("ep.context_file_mapping", sys.argv[2])
x = np.ones((65536, 4), np.float32)
with epctx.InferenceSession(sys.argv[1] + "/m_ctx.onnx", options) as session:
    os.truncate(sys.argv[1] + "/m_qnn.bin", 100)
    (y,) = session.run(None, {"x": x})
print(float(y.sum()))
"""


@pytest.fixture
def folder(tmp_path):
    """A context model whose binary is a MiB of weights that are used where they lie."""
    shape = (ROWS, 4)
    weight = numpy_helper.from_array(np.full(shape, 2, np.float32), "w")
    model = finished(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor("x", shape=shape)],
        [tensor("y", shape=shape)],
        [weight],
    )
    source = saved(model, tmp_path / "m.onnx")
    epctx.ModelCompiler(with_eps(QNN), source).compile_to_file(tmp_path / "m_ctx.onnx")
    return tmp_path


def cut_and_run(folder: Path, mapping: str) -> subprocess.CompletedProcess[str]:
    """Load in a child, cut the binary under it, run."""
    command = [sys.executable, "-c", CHILD, str(folder), mapping]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ,
    )


def test_a_session_with_a_copy_of_its_binary_goes_on_when_the_file_is_cut(folder):
    ended = cut_and_run(folder, "0")

    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) == 3 * 4 * ROWS


@pytest.mark.skipif(
    sys.platform != "linux",
    reason="what a system does to a process that reads behind a file",
)
def test_a_session_over_a_mapped_binary_is_ended_by_the_system_when_the_file_is_cut(
    folder,
):
    ended = cut_and_run(folder, "1")

    assert ended.returncode == -signal.SIGBUS
