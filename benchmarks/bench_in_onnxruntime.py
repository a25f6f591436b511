"""EPs of epctx inside onnxruntime: a small run beside the CPU EP's, and networks beside
epctx's own session.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from harness import DATA, Bar, measure, report, seconds, show

import epctx_core as epctx
from epctx_core.plugin import (
    CompiledPartition,
    ExecutionProvider,
    hookimpl,
    supported_partitions,
)

ROOT = Path(__file__).parent.parent
QNN = "QNNExecutionProvider"
MUL = (
    '<ir_version: 9, opset_import: ["": 17]> g (float[16] x) => (float[16] y) { y = '
    "Mul(x, x) }"
)
NETWORKS = ("resnet", "bert")


class MulProvider(ExecutionProvider):
    """EP that multiplies by numpy: what is measured is the way to it."""

    name: ClassVar[str] = "MulExecutionProvider"
    vendor: ClassVar[str] = "benchmark"

    @hookimpl
    def get_capability(self, graph: Any) -> Any:
        """Take all."""
        return supported_partitions(graph, lambda node: node.op_type == "Mul")

    @hookimpl
    def compile(self, partitions: Any) -> Any:
        """Return what runs the only partition."""
        return [CompiledPartition(_multiply) for _ in partitions]


def _multiply(inputs: Any, outputs: Any = None) -> Any:
    if outputs is None:
        return [inputs[0] * inputs[0]]
    np.multiply(inputs[0], inputs[0], out=outputs[0])
    return outputs


def make_models() -> None:
    """Write the models, and context models of the networks, once."""
    from onnx import parser, save

    DATA.mkdir(exist_ok=True)
    save(parser.parse_model(MUL), DATA / "mul.onnx")
    options = epctx.SessionOptions()
    options.add_provider(QNN)
    for name in NETWORKS:
        path = DATA / f"{name}_exported.onnx"
        shutil.copyfile(ROOT / "tests/data/models" / name / "model.onnx", path)
        epctx.ModelCompiler(options, path).compile_to_file()


def open_session(who: str, path: Path) -> Any:
    """Return a session of onnxruntime, with an EP of epctx or the CPU EP alone, or of
    epctx.
    """
    import onnxruntime

    if who == "epctx":
        options = epctx.SessionOptions()
        options.add_provider(QNN)
        return epctx.InferenceSession(path, options)
    options = onnxruntime.SessionOptions()
    if who != "CPU EP":
        devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == who]
        options.add_provider_for_devices(devices, {})
    return onnxruntime.InferenceSession(str(path), options)


def _register(ep: str) -> None:
    import onnxruntime_ep_epctx

    epctx.default_registry.register(MulProvider)
    onnxruntime_ep_epctx.register([ep])


def time_mul(who: str) -> None:
    """Report the processor time of one run of a Mul of 16."""
    if who != "CPU EP":
        _register(who)
    session = open_session(who, DATA / "mul.onnx")
    feeds = {"x": np.arange(16, dtype=np.float32)}
    count = 20_000
    for _ in range(count // 10):
        session.run(None, feeds)
    start = time.thread_time()
    for _ in range(count):
        session.run(None, feeds)
    report(s=(time.thread_time() - start) / count)


def time_network(who: str, name: str) -> None:
    """Report the load of a context model, and one run of it."""
    if who == QNN:
        _register(who)
    with np.load(ROOT / "tests/data/models" / name / "input.npz") as stored:
        feeds = dict(stored)
    path = DATA / f"{name}_exported_ctx.onnx"
    open_session(who, path).run(None, feeds)
    load = seconds(lambda: open_session(who, path))
    session = open_session(who, path)
    session.run(None, feeds)
    report(
        load=load, s=min(seconds(lambda: session.run(None, feeds)) for _ in range(20))
    )


CHILDREN: dict[str, Callable[..., None]] = {"mul": time_mul, "network": time_network}


def main() -> None:
    """Measure everything and print the tables."""
    make_models()
    ep = MulProvider.name
    small = measure(__file__, {who: ("mul", who) for who in (ep, "CPU EP")})
    bar = Bar(ours=ep, peer="CPU EP", at_most=3.0)
    show("one run of a Mul of 16, processor time", small, [bar])

    for name in NETWORKS:
        children = {who: ("network", who, name) for who in (QNN, "epctx")}
        measurement = measure(__file__, children)
        bar = Bar(ours=QNN, peer="epctx", at_most=1.1)
        show(f"{name} in onnxruntime, and in epctx", measurement, [bar])
        show(f"load of its context model, {name}", measurement, [bar], "load")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CHILDREN[sys.argv[1]](*sys.argv[2:])
    else:
        main()
