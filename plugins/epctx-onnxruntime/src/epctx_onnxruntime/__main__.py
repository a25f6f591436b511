"""Runs a program that imports onnxruntime on the drop-in, unchanged."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from epctx_core.errors import EpctxError

_PURPOSE = """Run a Python program with epctx in the place of onnxruntime: its sessions
load context models, and run on installed Execution Providers. Processes that it starts
otherwise than by a fork import onnxruntime itself."""


def main() -> None:
    """Run the program that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m epctx_onnxruntime",
        usage="%(prog)s [--ep NAME ...] [--free-dimension NAME=LENGTH ...] "
        "(SCRIPT.py | -m MODULE) [ARGUMENT ...]",
        description=_PURPOSE,
    )
    parser.add_argument(
        "--ep",
        action="append",
        default=[],
        metavar="NAME",
        help="put an EP before those that the program names for its sessions; most "
        "name the CPU alone, which loads no context model (`epctx plugins list`)",
    )
    parser.add_argument(
        "--free-dimension",
        action="append",
        default=[],
        type=_read_dimension,
        metavar="NAME=LENGTH",
        help="the length of an open dimension, such as batch=1, for each model whose "
        "inputs have it; most compilers take static shapes only",
    )
    parser.add_argument(
        "-m", nargs=argparse.REMAINDER, dest="module", help="run a module by its name"
    )
    parser.add_argument("script", nargs=argparse.REMAINDER, help="run a file")
    arguments = parser.parse_args()
    program = arguments.module or arguments.script
    if not program:
        parser.error("there is no script and no module to run.")
    if not arguments.module and not Path(program[0]).exists():
        parser.error(f"there is no script {program[0]}.")

    from epctx_onnxruntime.drop_in.substitution import install

    try:
        install(arguments.ep, dict(arguments.free_dimension))
    except EpctxError as error:
        parser.error(str(error))
    sys.argv = program
    if arguments.module:
        sys.path[0] = str(Path.cwd())
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


def _read_dimension(text: str) -> tuple[str, int]:
    """Return name and length of `NAME=LENGTH`; a name may contain `=`."""
    name, _, length = text.rpartition("=")
    if not name or not length.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=LENGTH")
    return name, int(length)


if __name__ == "__main__":
    main()
