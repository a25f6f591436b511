"""Does one thing in a process of its own, and prints what it cost in counts.

Called by `test_counts.py`.

epctx does it as for any host: nothing is replaced, only looked at on its way.
"""

from __future__ import annotations

import json
import os
import sys
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from epctx_onnxruntime.engine import OnnxRuntimeEngine
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx
from epctx_core.registry.instances import ProviderHooks

SIDE = 3072
WEIGHTS = 2 * SIDE * SIDE * 4
"""Bytes of the two weights: the unit of bytes read, written and copied. A quarter of
them is far more than the buffers and modules of a case, some 8 MiB.
"""

SOURCE, DATA, CONTEXT, BINARY = "net.onnx", "net.data", "net_ctx.onnx", "net_qnn.bin"
INLINE = "net_inline.onnx"


def write_networks(folder: Path) -> None:
    """Write MatMul, Erf, MatMul with its weights in a file: two partitions for QNN, one
    node for the CPU. Once more with its weights in the model.
    """
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal((SIDE, SIDE), np.float32), name)
        for name in "vw"
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("Erf", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIDE])
        for name in "xy"
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )
    onnx.save(model, folder / INLINE)
    onnx.save(model, folder / SOURCE, save_as_external_data=True, location=DATA)


def with_qnn() -> epctx.SessionOptions:
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    # Prepacking is a copy that a host may ask for; by default small models have it.
    options.add_session_config_entry("ep.prefer_latency", "0")
    return options


def compiled(folder: Path, *, embedded: bool) -> None:
    epctx.ModelCompiler(with_qnn(), folder / SOURCE, embedded).compile_to_file(
        folder / CONTEXT
    )


def opened(path: Path) -> epctx.InferenceSession:
    return epctx.InferenceSession(path, with_qnn())


def warm_up() -> None:
    """Import what epctx imports late, and have onnxruntime allocate what it keeps."""
    relu = helper.make_node("Relu", ["x"], ["y"])
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"
    ]
    model = helper.make_model(
        helper.make_graph([relu], "g", ends[:1], ends[1:]),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    with epctx.InferenceSession(model.SerializeToString(), with_qnn()) as session:
        session.run(None, {"x": np.ones(1, np.float32)})


class Counts:
    """Counts of what happens meanwhile."""

    def __init__(self) -> None:
        self._on = False
        self.opens: Counter[str] = Counter()
        self.mappings: Counter[str] = Counter()
        self.hooks: Counter[str] = Counter()
        self.engines = 0
        self.read = self.written = self.copied = self._in_kernel = 0
        sys.addaudithook(self._heard)
        self._look_at(
            ProviderHooks, "call", lambda hook, _arguments: self.hooks.update([hook])
        )
        self._look_at(OnnxRuntimeEngine, "prepare", self._count_engine)
        self._copy = os.copy_file_range
        os.copy_file_range = self._copy_file_range

    @contextmanager
    def counting(self):
        read, written = transferred()
        memory = anonymous_memory()
        tracemalloc.start()
        self._on = True
        yield
        self._on = False
        _, peak = tracemalloc.get_traced_memory()
        self.copied = max(peak, anonymous_memory() - memory)
        now_read, now_written = transferred()
        self.read, self.written = (
            now_read - read - self._in_kernel,
            now_written - written,
        )

    def _count_engine(self, *_args, **_keywords) -> None:
        self.engines += 1

    def _copy_file_range(self, *args) -> int:
        """Linux counts what it copies as read and written, though no process sees
        it.
        """
        copied = self._copy(*args)
        self._in_kernel += copied if self._on else 0
        return copied

    def _look_at(self, cls: type, name: str, count) -> None:
        inner = getattr(cls, name)

        def counted(owner, *args, **keywords):
            if self._on:
                count(*args, **keywords)
            return inner(owner, *args, **keywords)

        setattr(cls, name, counted)

    def _heard(self, event: str, args) -> None:
        if not self._on or event not in {"open", "mmap.__new__"}:
            return
        if event == "open":
            name = Path(str(args[0])).name if not isinstance(args[0], int) else ""
            if name.startswith("net"):
                self.opens[name] += 1
        elif args[0] >= 0:
            self.mappings[Path(f"/proc/self/fd/{args[0]}").readlink().name] += 1


def transferred() -> tuple[int, int]:
    """Return the bytes that this process has read and written by calls."""
    counters = dict(
        line.split(": ") for line in Path("/proc/self/io").read_text().splitlines()
    )
    return int(counters["rchar"]), int(counters["wchar"])


def anonymous_memory() -> int:
    """Return the resident bytes that no file lies behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(
        int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")
    )


def halves(size: int) -> float:
    """Return bytes in units of the weights, to the half: structure and noise are far
    less.
    """
    return round(2 * size / WEIGHTS) / 2


def main(case: str, folder: Path) -> None:
    counts, session = Counts(), None
    warm_up()
    feeds = {"x": np.ones((1, SIDE), np.float32)}
    if case.startswith("run"):
        session = opened(folder / (SOURCE if case == "run from source" else CONTEXT))
    with counts.counting():
        if case.startswith("compile"):
            compiled(folder, embedded=case == "compile embedded")
        elif case.startswith("session"):
            files = {"session from source": SOURCE, "session without an EP": INLINE}
            path = folder / files.get(case, CONTEXT)
            session = (
                epctx.InferenceSession(path) if path.name == INLINE else opened(path)
            )
        else:
            session.run(None, feeds)
    sys.stdout.write(
        json.dumps(
            {
                "read": halves(counts.read),
                "written": halves(counts.written),
                "copied": halves(counts.copied),
                "opens": counts.opens,
                "mappings": counts.mappings,
                "engines": counts.engines,
                "hooks": counts.hooks,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
