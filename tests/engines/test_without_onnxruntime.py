"""Real networks where onnxruntime is not installed: the reference runs them, slowly and
rightly.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support.agreement import TOLERANCE, worst_relative_error
from support.models_for_engines import WITHOUT_ONNXRUNTIME

PROGRAM = (
    WITHOUT_ONNXRUNTIME
    + """
import numpy as np
import epctx_core as epctx
with epctx.InferenceSession(sys.argv[1]) as session:
    np.savez(sys.argv[3], *session.run(None, dict(np.load(sys.argv[2]))))
"""
)


@pytest.mark.parametrize("name", ["bert", "lstm", "resnet"])
def test_the_exported_networks_run_on_the_reference_alone(network, name, tmp_path):
    net = network(name)
    np.savez(tmp_path / "in.npz", **net.inputs)

    command = [
        sys.executable,
        "-c",
        PROGRAM,
        net.path,
        tmp_path / "in.npz",
        tmp_path / "out.npz",
    ]
    subprocess.run(command, check=True, timeout=120)

    with np.load(tmp_path / "out.npz") as arrays:
        results = [arrays[key] for key in arrays.files]
    assert worst_relative_error(results, net.reference) <= TOLERANCE
