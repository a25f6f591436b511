"""`epctx doctor` where the packages of real-hardware.md are installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from support.pages import FILES

GUIDE = FILES["real-hardware.md"]


def test_doctor_is_ok_after_the_guide_was_followed():
    exports = re.findall(
        r"^\$ export (\w+)=(\S+)", GUIDE.read_text("utf-8"), re.MULTILINE
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        [sys.executable, "-m", "epctx_core", "doctor", "--json"],
        capture_output=True,
        env={**os.environ, **dict(exports), "PATH": path},
        timeout=120,
        check=False,
    )

    findings = json.loads(done.stdout)["findings"]
    about_openvino = [
        f["message"] for f in findings if "epctx-sim-openvino" in f["message"]
    ]
    assert [f for f in findings if f["severity"] == "problem"] == []
    assert done.returncode == 0
    assert len(about_openvino) == 1
    assert "epctx-onnxruntime" in about_openvino[0]
