"""Runs a program that imports onnxruntime on the drop-in, unchanged."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_USAGE = """usage: python -m epctx_onnxruntime [--ep NAME ...] SCRIPT.py [ARGUMENT ...]
       python -m epctx_onnxruntime [--ep NAME ...] -m MODULE [ARGUMENT ...]

Runs a Python program with epctx in the place of onnxruntime: its sessions load context
models, and run on installed Execution Providers. Processes that it starts otherwise
than by a fork import onnxruntime itself.

  --ep NAME   put an EP before those that the program names for its sessions; most name
              the CPU alone, which loads no context model (`epctx plugins list`)"""
_FAILED = 2


def main() -> None:
    """Run the program that the command line names."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(_USAGE)  # noqa: T201 - the command's answer
        return

    eps = []
    while arguments[:1] == ["--ep"] and len(arguments) > 1:
        eps.append(arguments[1])
        del arguments[:2]
    if not arguments or arguments in (["-m"], ["--ep"]):
        print(_USAGE, file=sys.stderr)  # noqa: T201
        sys.exit(_FAILED)

    from epctx_onnxruntime.drop_in.substitution import install

    install(eps)
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
