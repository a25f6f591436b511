"""The demo does what the README says, in a folder of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


def test_the_demo_compiles_moves_and_runs_three_real_networks_one_of_them_on_two_eps(tmp_path):
    command = [sys.executable, DEMO, tmp_path / "out"]

    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("(agrees)") == 3
    assert "Loaded by QNNExecutionProvider, CPUExecutionProvider" in finished.stdout
    assert "Loaded by OpenVINOExecutionProvider, CPUExecutionProvider" in finished.stdout
    split = finished.stdout.split("== shufflenet_int8")[1]
    for ep in ("VitisAIExecutionProvider", "QNNExecutionProvider", "CPUExecutionProvider"):
        assert int(re.search(rf"{ep} +(\d+) nodes", split)[1]) > 0
    assert "Nothing here runs on an NPU" in finished.stdout
