"""Runs a program that imports onnxruntime on the drop-in, unchanged."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_USAGE = """usage: python -m epctx_onnxruntime SCRIPT.py [ARGUMENT ...]
       python -m epctx_onnxruntime -m MODULE [ARGUMENT ...]

Runs a Python program with epctx in the place of onnxruntime: its sessions find
installed Execution Providers, and load context models."""
_FAILED = 2


def main() -> None:
    """Run the program that the command line names."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(_USAGE)  # noqa: T201 - the command's answer
        return
    if not arguments or arguments == ["-m"]:
        print(_USAGE, file=sys.stderr)  # noqa: T201
        sys.exit(_FAILED)

    from epctx_onnxruntime.drop_in.substitution import install

    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = Path(arguments[0])
    if not script.exists():
        sys.exit(f"epctx_onnxruntime: there is no script {script}.")
    sys.argv = arguments
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
