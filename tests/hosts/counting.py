"""Program: runs a script and writes which sessions it made.

    python counting.py SESSIONS EP (onnxruntime | epctx_onnxruntime) SCRIPT ARGUMENT...

With `onnxruntime` as `python SCRIPT` does, with `epctx_onnxruntime` as
`python -m epctx_onnxruntime SCRIPT` does. SESSIONS gets, as JSON, the names of each
session's EPs: those of onnxruntime's sessions or of epctx's, not those that epctx's own
engine makes. EP is put before the providers of each session that names others; an empty
one changes nothing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
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
    count_sessions(made, sessions, ep)
    sys.argv = program
    sys.path[0] = str(Path(program[0]).parent)
    try:
        if runtime == "onnxruntime":
            runpy.run_path(program[0], run_name="__main__")
        else:
            sys.argv = ["", *program]
            runpy.run_module(runtime, run_name="__main__", alter_sys=True)
    finally:
        Path(written).write_text(json.dumps(sessions), "utf-8")


def count_sessions(of: Any, sessions: list[list[str]], ep: str) -> None:
    """Have a class note the EPs of each session that it makes, and use one more."""
    make = of.__init__
    find = inspect.signature(make).bind

    @functools.wraps(make)
    def make_and_note(self: Any, *args: Any, **kwargs: Any) -> None:
        given = find(self, *args, **kwargs)
        if ep and given.arguments.get("providers") and not _names(given.arguments, ep):
            given.arguments["providers"] = [ep, *given.arguments["providers"]]
            if options := given.arguments.get("provider_options"):
                given.arguments["provider_options"] = [{}, *options]
        make(*given.args, **given.kwargs)
        sessions.append(list(self.get_providers()))

    of.__init__ = make_and_note


def _names(arguments: dict[str, Any], ep: str) -> bool:
    return any(
        ep == (each if isinstance(each, str) else each[0])
        for each in arguments["providers"]
    )


if __name__ == "__main__":
    main()
