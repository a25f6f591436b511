"""Programs that run in processes of their own: what is registered in onnxruntime stays
in a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent
SUITE = HERE.parents[2] / "tests"


def run_program(
    text: str, *args: object, code: int = 0, env: Mapping[str, str] | None = None
) -> str:
    """Run a Python program that can import the modules of this folder; return what it
    wrote to its standard output.

    Args:
        text: the program.
        args: its arguments.
        code: the exit code that it must end with.
        env: environment variables of its own.
    """
    paths = [HERE, SUITE, SUITE / "api"]
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, args)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            **(env or {}),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout
