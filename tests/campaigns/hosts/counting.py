"""Program: runs a script and writes which sessions it made.

    python counting.py SESSIONS EP (onnxruntime | epctx_onnxruntime) SCRIPT ARGUMENT...

With `onnxruntime` as `python SCRIPT` does, with `epctx_onnxruntime` as
`python -m epctx_onnxruntime SCRIPT` does. SESSIONS gets, as JSON, the names of each
session's EPs: those of onnxruntime's sessions or of epctx's, not those that epctx's own
engine makes. EP is given to epctx as `--ep EP`; an empty one is not.
"""

from __future__ import annotations

import functools
import importlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any

CORE = {"onnxruntime": "onnxruntime", "epctx_onnxruntime": "epctx_core"}


def main() -> None:
    """Run the script, and write in any case."""
    written, ep, runtime, *program = sys.argv[1:]
    sessions: list[list[str]] = []
    made = importlib.import_module(CORE[runtime]).InferenceSession
    count_sessions(made, sessions)
    sys.argv = program
    sys.path[0] = str(Path(program[0]).parent)
    try:
        if runtime == "onnxruntime":
            runpy.run_path(program[0], run_name="__main__")
        else:
            sys.argv = ["", *(["--ep", ep] if ep else []), *program]
            runpy.run_module(runtime, run_name="__main__", alter_sys=True)
    finally:
        Path(written).write_text(json.dumps(sessions), "utf-8")


def count_sessions(of: Any, sessions: list[list[str]]) -> None:
    """Have a class note the EPs of each session that it makes."""
    make = of.__init__

    @functools.wraps(make)
    def make_and_note(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        sessions.append(list(self.get_providers()))

    of.__init__ = make_and_note


if __name__ == "__main__":
    main()
