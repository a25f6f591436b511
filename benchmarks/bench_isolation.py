"""Isolation: the cost of a process of its own for a compile, a load, and each run, as
ratios to none.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from harness import measure, report, seconds, show
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx

EP = "QNNExecutionProvider"
SIDE = 2048
WEIGHTS = 16
"""Matrices of 16 MiB each."""
RUNS = {"1 KiB": (1, 256, 300), "1 MiB": (1024, 256, 100), "32 MiB": (32768, 256, 10)}
"""What goes in and comes out of a run: rows, columns, how many runs are timed."""


def network(folder: Path) -> Path:
    """Write a chain of matrix products with 256 MiB of weights in a file; return its
    path.
    """
    generator = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for number in range(WEIGHTS):
        array = generator.standard_normal((SIDE, SIDE), dtype=np.float32)
        weights.append(numpy_helper.from_array(array, f"w{number}"))
        nodes.append(
            helper.make_node("MatMul", [value, f"w{number}"], [value := f"v{number}"])
        )
    return written(folder, nodes, (1, SIDE), value, weights)


def small(folder: Path, rows: int, columns: int) -> Path:
    """Write a model of one operator over so many elements."""
    return written(
        folder, [helper.make_node("Relu", ["x"], ["y"])], (rows, columns), "y", []
    )


def written(
    folder: Path,
    nodes: list[onnx.NodeProto],
    shape: tuple[int, int],
    output: str,
    weights: list[TensorProto],
) -> Path:
    """Write a model; return its path."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in ("x", output)
    ]
    graph = helper.make_graph(nodes, "bench", [ends[0]], [ends[1]], weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )
    path = folder / "bench.onnx"
    onnx.save(
        model,
        path,
        save_as_external_data=bool(weights),
        location="bench.weights",
        size_threshold=0,
    )
    return path


def options(mode: str) -> epctx.SessionOptions:
    """Return session options with the EP, isolated or not."""
    found = epctx.SessionOptions()
    found.add_provider(EP)
    found.add_session_config_entry("ep.isolate", mode)
    return found


def compile_network(mode: str, path: str) -> None:
    """Time one compile of a model, the first one of a process."""
    with tempfile.TemporaryDirectory() as folder:
        compiler = epctx.ModelCompiler(options(mode), path)
        report(s=seconds(lambda: compiler.compile_to_file(Path(folder) / "m_ctx.onnx")))


def load_small(mode: str, path: str) -> None:
    """Time a session of a tiny model, and one run."""
    session: epctx.InferenceSession | None = None

    def load() -> None:
        nonlocal session
        session = epctx.InferenceSession(path, options(mode))

    taken = seconds(load)
    if session is not None:
        session.close()
    report(s=taken)


def run(mode: str, path: str, rows: str, columns: str, count: str) -> None:
    """Time runs of one operator."""
    x = np.ones((int(rows), int(columns)), np.float32)
    with epctx.InferenceSession(path, options(mode)) as session:
        session.run(None, {"x": x})
        taken = seconds(
            lambda: [session.run(None, {"x": x}) for _ in range(int(count))]
        ) / int(count)
    report(s=taken)


def main() -> None:
    """Measure and print the tables."""
    modes = {"in the host's process": "", "isolated": "all"}
    with tempfile.TemporaryDirectory(dir=os.environ.get("EPCTX_BENCH_DIR")) as folder:
        large = str(network(Path(folder)))
        show(
            f"compile {WEIGHTS * SIDE * SIDE * 4 >> 20} MiB of weights",
            measure(__file__, {n: ("compile", m, large) for n, m in modes.items()}),
        )
        for name, (rows, columns, count) in RUNS.items():
            inner = Path(folder) / name.replace(" ", "")
            inner.mkdir()
            path = str(small(inner, rows, columns))
            if name == "1 KiB":
                show(
                    "a session",
                    measure(__file__, {n: ("load", m, path) for n, m in modes.items()}),
                )
            arguments = (path, str(rows), str(columns), str(count))
            show(
                f"a run, {name} in and out",
                measure(
                    __file__, {n: ("run", m, *arguments) for n, m in modes.items()}
                ),
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        children: dict[str, Callable[..., None]] = {
            "compile": compile_network,
            "load": load_small,
            "run": run,
        }
        children[sys.argv[1]](*sys.argv[2:])
    else:
        main()
