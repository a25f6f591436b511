"""The demo does what the README says, in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parent.parent / "examples" / "demo.py"


def test_the_demo_compiles_moves_and_runs_two_real_networks(tmp_path):
    command = [sys.executable, DEMO, tmp_path / "out"]

    finished = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("(agrees)") == 2
    assert finished.stdout.count("loaded by QNNExecutionProvider") == 2
    assert "Nothing here runs on an NPU" in finished.stdout
