"""Programs of tests, in processes of their own: what onnxruntime has registered is state
of the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SUITE = HERE.parents[2] / "tests"


def run_program(text, *args, code=0, env=None):
    """Run a Python program; return what it wrote to standard output.

    Memory that is freed is overwritten, so that a use of it is a wrong answer or an
    end by a signal.

    Args:
        text: the program; it can import the modules of this folder and of the suite.
        args: its arguments.
        code: the exit code that it must have.
        env: further environment variables.
    """
    env = {**os.environ, **(env or {})}
    folders = [*map(str, (HERE, SUITE)), env.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", text, *map(str, args)],
        capture_output=True,
        check=False,
        env={
            **env,
            "MALLOC_PERTURB_": "165",
            "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        },
        text=True,
        timeout=280,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout
