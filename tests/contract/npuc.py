"""A vendor's kit, as the test's own: the command `npuc MODEL.onnx PROGRAM` and a run
time that takes paths.

A program is `NPUC0001` and a compressed model; the run time decompresses it and runs it
on the core's kernels. The command refuses Softmax and hangs on Tan.
"""

from __future__ import annotations

import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from support.folders import TESTS

if TYPE_CHECKING:
    from epctx_core.plugin import Engine, PreparedModel

MAGIC = b"NPUC0001"
LAUNCHER = """#!{python}
import sys
sys.path.insert(0, {tests!r})
from contract.npuc import main
main(*sys.argv[1:], started={started!r})
"""


def install(folder: Path) -> Path:
    """Install the command; it makes the file `started` beside itself when it begins to
    hang.
    """
    command = folder / "npuc"
    started = str(folder / "started")
    command.write_text(
        LAUNCHER.format(python=sys.executable, tests=str(TESTS), started=started)
    )
    command.chmod(0o755)
    return command


def main(source: str, program: str, *, started: str) -> None:
    """Compile a model with its weights to a program."""
    sys.stdout.write("npuc 1.0\n")
    model = onnx.load(source)
    for node in model.graph.node:
        if node.op_type == "Softmax":
            sys.exit(f"npuc: error: no pattern matches {node.name} (Softmax)")
        if node.op_type == "Tan":
            Path(started).touch()
            time.sleep(600)
    Path(program).write_bytes(MAGIC + zlib.compress(model.SerializeToString()))


def open_program(
    path: str | Path, offset: int, length: int, engine: Engine
) -> PreparedModel:
    """Open the program at a place in a file.

    Raises:
        ValueError: there is none.
    """
    if offset < 0 or length < 0:
        raise ValueError("it does not begin or end inside of the file")
    with Path(path).open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    if len(data) != length or not data.startswith(MAGIC):
        raise ValueError("this is not what npuc writes")
    try:
        model = onnx.load_from_string(zlib.decompress(data[len(MAGIC) :]))
    except zlib.error as error:
        raise ValueError(f"the program is damaged: {error}") from error
    return engine.prepare(model)
