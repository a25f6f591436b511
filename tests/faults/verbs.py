"""Every verb of the command line that writes, as a row: what it is given, and what it
leaves in a folder. A small model first, then a large one over it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from support.sim_eps import QNN, with_eps
from support.small_models import saved

import epctx_core as epctx

SMALL, LARGE = "small", "large"
WIDTHS = {SMALL: 32, LARGE: 512}
"""A weight has 4 KiB or 1 MiB."""
FLEET = """
[batch]
cache_dir = "cache"
workers = 1

[[model]]
path = "m.onnx"

[[target]]
name = "phone"
eps = ["QNN"]
"""


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb of the command line.

    Attributes:
        arguments: what it is given, for a folder of sources and one of results.
        room: bytes of a disk that are too few for its result with the large model.
        before: puts more into the folder of results, before the verb is called there.
        reason: what it says of a disk without room.
        is_rewritten: whether its result is to be the older one or the new one; a cache
            and a batch go on from what was reached.
    """

    arguments: Callable[[Path, Path], list[str | Path]]
    room: int = 64 << 10
    before: Callable[[Path, Path], None] = lambda source, out: None
    is_rewritten: bool = True
    reason: str = "No space left on device"


def write_sources(folder: Path) -> None:
    """Write all that the verbs are given, in a folder for each size."""
    for size, width in WIDTHS.items():
        source = folder / size
        source.mkdir(parents=True)
        for name, values in (("m", "xy"), ("a", "xy"), ("b", "yz")):
            saved(_product(width, *values), source / f"{name}.onnx")
            for embed in (False, True):
                epctx.ModelCompiler(
                    with_eps(QNN), source / f"{name}.onnx", embed
                ).compile_to_file(
                    source / (f"{name}_whole.onnx" if embed else f"{name}_ctx.onnx")
                )
        unsealed = onnx.load(source / "m_whole.onnx")
        del unsealed.metadata_props[:]
        saved(unsealed, source / "unsealed.onnx")


def _product(width: int, x: str, y: str) -> onnx.ModelProto:
    weight = np.random.default_rng(width).standard_normal((width, width), np.float32)
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, width])
        for name in (x, y)
    ]
    node = helper.make_node("MatMul", [x, "w"], [y])
    graph = helper.make_graph(
        [node], "g", values[:1], values[1:], [numpy_helper.from_array(weight, "w")]
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )


def _put_fleet(source: Path, out: Path) -> None:
    (out / "m.onnx").symlink_to(source / "m.onnx")
    (out / "fleet.toml").write_text(FLEET)


def _fill_cache(source: Path, out: Path) -> None:
    epctx.compile_cached(source / "m.onnx", with_eps(QNN), out / "cache")


VERBS = {
    "compile": Verb(
        arguments=lambda s, o: [s / "m.onnx", "--ep", "QNN", "-o", o / "m_ctx.onnx"]
    ),
    "share": Verb(
        arguments=lambda s, o: [s / "a.onnx", s / "b.onnx", "--ep", "QNN", "-o", o]
    ),
    "merge": Verb(
        arguments=lambda s, o: [s / "a.onnx", s / "b.onnx", "-o", o / "m.onnx"]
    ),
    "extract": Verb(
        arguments=lambda s, o: [
            s / "m.onnx", "--outputs", "y", "-o", o / "part.onnx",
        ]
    ),
    "embed": Verb(arguments=lambda s, o: [s / "m_ctx.onnx", "-o", o / "one.onnx"]),
    "externalize": Verb(
        arguments=lambda s, o: [s / "m_whole.onnx", "-o", o / "m_ctx.onnx"]
    ),
    "seal": Verb(
        arguments=lambda s, o: [s / "unsealed.onnx", "-o", o / "sealed.onnx"]
    ),
    "convert": Verb(
        arguments=lambda s, o: [s / "m.onnx", o / "m.ort"],
        reason="onnxruntime could not save the model there",
    ),
    "report": Verb(
        arguments=lambda s, o: [s / "m_ctx.onnx", "-o", o / "page.html"], room=4096
    ),
    "run": Verb(
        arguments=lambda s, o: [s / "m.onnx", "--output", o / "out.npz"], room=0
    ),
    "bench": Verb(
        arguments=lambda s, o: [
            s / "m.onnx", "--ep", "QNN", "--turns", "1", "--runs", "1",
            "--no-onnxruntime", "--save", o / "bench.json",
        ],
        room=0,
    ),
    "cache": Verb(
        arguments=lambda s, o: ["verify", "--cache-dir", o / "cache"],
        before=_fill_cache,
        is_rewritten=False,
    ),
    "batch": Verb(
        arguments=lambda s, o: [o / "fleet.toml"],
        before=_put_fleet,
        is_rewritten=False,
    ),
}  # fmt: skip


DAILY = ("compile", "merge", "batch")
"""Verbs that the suite has of them all."""


def begin(verb: str, source: Path, out: Path) -> subprocess.Popen[str]:
    """Begin a verb in a process, and a group of processes, of its own."""
    words = [str(word) for word in VERBS[verb].arguments(source, out)]
    program = [str(Path(sys.executable).with_name("epctx"))]
    return subprocess.Popen(
        [*program, verb, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )


def read_files(folder: Path) -> dict[str, bytes]:
    """Return what lies in a folder and below."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def list_litter(folder: Path) -> list[str]:
    """Return staging folders, locks, and files that are neither results nor entries."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.name.startswith((".epctx-", ".tmp", "tmp"))
        or path.suffix in {".part", ".tmp"}
        or path.parent.name in {"staging", "locks"}
    ]
