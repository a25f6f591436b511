"""Cost of a plain session, without any EP, or of a context model: one `run` against
onnxruntime's at its default settings, on 20 networks.

Networks are made here from seeds, nothing is downloaded. The sessions live in one
process and take turns, so that what else the machine does hits all; a process gives the
ratio of neighbouring turns, and some processes, which create the sessions in another
order each, a network's ratio with its interval of 95 %. A second session of onnxruntime
is the control: its ratio to the first is what the machine's noise amounts to.

    python benchmarks/bench_plain.py              # all networks
    python benchmarks/bench_plain.py mobilenet_qdq gru
    python benchmarks/bench_plain.py --one-thread # processor time of sessions with one
    thread, for a machine that is busy
    python benchmarks/bench_plain.py --context # context models of the simulated QNN
    instead, against onnxruntime's session for the source
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import (
    DATA,
    combine_processes,
    format_ratio,
    measure,
    pair_turns,
    report,
    show_worst,
)

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from epctx_bench.noise import Noise
    from epctx_bench.ratio import Ratio

ROOT = Path(__file__).parent.parent
FOLDER = DATA / "plain"
BAR = 1.05
ROUNDS = int(os.environ.get("ROUNDS", "5"))
"""Fresh processes for each network."""
SECONDS = float(os.environ.get("SECONDS", "3"))
"""How long a process takes turns."""
TURN = 0.02
"""Seconds of one library's turn, at least one run."""


class Network:
    """A graph under construction, its weights drawn from a seed."""

    def __init__(self, seed: int) -> None:
        import numpy as np

        self._draw = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Add a drawn weight, by default scaled so that a sum over all but the first
        dimension keeps its strength.
        """
        import math

        import numpy as np

        deviation = (
            1 / math.sqrt(max(1, math.prod(shape[1:]))) if scale is None else scale
        )
        return self.constant(
            (self._draw.standard_normal(shape) * deviation).astype(np.float32)
        )

    def constant(self, array: np.ndarray) -> str:
        """Add a constant."""
        from onnx import numpy_helper

        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node and return its first result."""
        from onnx import helper

        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(
            helper.make_node(
                op, list(inputs), names, name=f"n{len(self.nodes)}_{op}", **attributes
            )
        )
        return names[0]

    def model(
        self, shape: Sequence[int], result: str, elem_type: int = 1
    ) -> onnx.ModelProto:
        """Return the finished model; its only input is called x."""
        from onnx import helper, shape_inference

        self.nodes.append(helper.make_node("Identity", [result], ["y"], name="last"))
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("x", elem_type, list(shape))],
            [helper.make_tensor_value_info("y", 1, None)],
            self.weights,
        )
        made = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        return shape_inference.infer_shapes(made)


def mobilenet() -> onnx.ModelProto:
    """Return convolutions by channel and by point in turn, with Clip between 0 and
    6.
    """
    import numpy as np

    net = Network(1)
    bounds = [net.constant(np.array(n, np.float32)) for n in (0, 6)]

    def convolution(
        x: str, channels: int, inputs: int, size: int, stride: int = 1, group: int = 1
    ) -> str:
        weight, bias = (
            net.weight(channels, inputs // group, size, size),
            net.weight(channels, scale=0.1),
        )
        return net.add(
            "Conv", x, weight, bias,
            kernel_shape=[size, size], strides=[stride] * 2, pads=[size // 2] * 4,
            group=group,
        )  # fmt: skip

    x = net.add("Clip", convolution("x", 32, 3, 3, stride=2), *bounds)
    channels = 32
    for width, stride in (
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        *((512, 1),) * 3,
        (1024, 2),
    ):
        x = net.add(
            "Clip", convolution(x, channels, channels, 3, stride, channels), *bounds
        )
        x = net.add("Clip", convolution(x, width, channels, 1), *bounds)
        channels = width
    flat = net.add("Flatten", net.add("GlobalAveragePool", x))
    return net.model(
        [1, 3, 160, 160], net.add("Gemm", flat, net.weight(100, 1024), transB=1)
    )


def transformer(
    width: int = 256, heads: int = 4, length: int = 64, layers: int = 4
) -> onnx.ModelProto:
    """Return an encoder, as exporters write it: normalisation and Gelu in single
    operators.
    """
    import numpy as np

    net = Network(2)
    two, root, half, one, tiny = (
        net.constant(np.array(n, np.float32)) for n in (2, 2**0.5, 0.5, 1, 1e-5)
    )

    def dense(x: str, inputs: int, outputs: int) -> str:
        product = net.add("MatMul", x, net.weight(inputs, outputs, scale=inputs**-0.5))
        return net.add("Add", product, net.weight(outputs, scale=0.1))

    def normalised(x: str) -> str:
        centred = net.add("Sub", x, net.add("ReduceMean", x, axes=[-1]))
        variance = net.add("ReduceMean", net.add("Pow", centred, two), axes=[-1])
        scaled = net.add(
            "Div", centred, net.add("Sqrt", net.add("Add", variance, tiny))
        )
        return net.add(
            "Add", net.add("Mul", scaled, net.weight(width)), net.weight(width)
        )

    def split(x: str, order: Sequence[int]) -> str:
        shape = net.constant(np.array([1, length, heads, width // heads]))
        return net.add("Transpose", net.add("Reshape", x, shape), perm=order)

    x = "x"
    for _ in range(layers):
        q, k, v = (dense(x, width, width) for _ in range(3))
        scores = net.add("MatMul", split(q, (0, 2, 1, 3)), split(k, (0, 2, 3, 1)))
        depth = net.constant(np.array((width // heads) ** 0.5, np.float32))
        weights = net.add("Softmax", net.add("Div", scores, depth), axis=-1)
        mixed = net.add(
            "Transpose",
            net.add("MatMul", weights, split(v, (0, 2, 1, 3))),
            perm=(0, 2, 1, 3),
        )
        joined = net.add("Reshape", mixed, net.constant(np.array([1, length, width])))
        x = normalised(net.add("Add", x, dense(joined, width, width)))
        inner = dense(x, width, 4 * width)
        bent = net.add("Add", net.add("Erf", net.add("Div", inner, root)), one)
        inner = net.add("Mul", net.add("Mul", inner, bent), half)
        x = normalised(net.add("Add", x, dense(inner, 4 * width, width)))
    return net.model([1, length, width], x)


def recurrent(operator: str, width: int = 128, length: int = 64) -> onnx.ModelProto:
    """Return two layers of a recurrent operator and a dense one."""
    import numpy as np

    net = Network(3)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
    x = "x"
    for _ in range(2):
        given = [
            net.weight(1, gates * width, width, scale=width**-0.5) for _ in range(2)
        ]
        bias = net.weight(1, 2 * gates * width, scale=0.1)
        x = net.add(
            "Squeeze",
            net.add(operator, x, *given, bias, hidden_size=width),
            net.constant(np.array([1])),
        )
    return net.model(
        [length, 1, width], net.add("MatMul", x, net.weight(width, 50, scale=0.1))
    )


def small() -> onnx.ModelProto:
    """Return a Gelu in single operators: few nodes without heavy ones."""
    import numpy as np

    net = Network(4)
    root, one, half = (net.constant(np.array(n, np.float32)) for n in (2**0.5, 1, 0.5))
    bent = net.add("Add", net.add("Erf", net.add("Div", "x", root)), one)
    return net.model([64, 1024], net.add("Mul", net.add("Mul", "x", bent), half))


def filled(name: str) -> onnx.ModelProto:
    """Return a light network of the onnx package with weights."""
    sys.path.insert(0, str(ROOT / "tests/support/networks"))
    from fill import fill  # type: ignore[import-not-found]  # a script of the tests

    return fill(name)


def exported(name: str) -> onnx.ModelProto:
    """Return a network of tests/data/models."""
    import onnx

    return onnx.load(ROOT / "tests/data/models" / name / "model.onnx")


def quantised(
    make: Callable[[], onnx.ModelProto], form: str, **options: Any
) -> onnx.ModelProto:
    """Return a network as onnxruntime.quantization writes it: QDQ, QOperator or
    dynamic.
    """
    import onnx
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.disable(logging.WARNING)
    scratch = FOLDER / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    source, prepared, output = (
        scratch / f"{n}.onnx" for n in ("source", "prepared", "output")
    )
    onnx.save(make(), source)
    if form == "dynamic":
        q.quantize_dynamic(source, output, **options)
    else:
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        generator = inputs_of(onnx.load(prepared))

        class Calibration(q.CalibrationDataReader):  # type: ignore[misc]
            left = iter([next(generator) for _ in range(2)])

            def get_next(self) -> dict[str, np.ndarray] | None:
                return next(self.left, None)

        q.quantize_static(
            prepared, output, Calibration(), quant_format=q.QuantFormat[form], **options
        )
    made = onnx.load(output)
    shutil.rmtree(scratch)
    return made


def inputs_of(model: onnx.ModelProto) -> Iterator[dict[str, np.ndarray]]:
    """Yield drawn inputs without end; indices are below 100 and open dimensions 2."""
    import numpy as np
    from onnx import helper

    generator = np.random.default_rng(0)
    weights = {tensor.name for tensor in model.graph.initializer}
    while True:
        feeds = {}
        for value in model.graph.input:
            if value.name in weights:
                continue
            kind = value.type.tensor_type
            shape = [d.dim_value or 2 for d in kind.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            drawn = (
                generator.standard_normal(shape)
                if dtype.kind == "f"
                else generator.integers(0, 2, shape)
            )
            feeds[value.name] = drawn.astype(dtype)
        yield feeds


_SIGNED = {"per_channel": True, "reduce_range": True}
NETWORKS: dict[str, Callable[[], Any]] = {
    "mobilenet": mobilenet,
    "mobilenet_qdq": lambda: quantised(mobilenet, "QDQ"),
    "mobilenet_qdq_per_channel": lambda: quantised(mobilenet, "QDQ", **_SIGNED),
    "mobilenet_qoperator": lambda: quantised(mobilenet, "QOperator"),
    "mobilenet_dynamic": lambda: quantised(mobilenet, "dynamic"),
    "squeezenet": lambda: filled("squeezenet"),
    "squeezenet_qdq": lambda: quantised(lambda: filled("squeezenet"), "QDQ"),
    "squeezenet_qoperator": lambda: quantised(
        lambda: filled("squeezenet"), "QOperator"
    ),
    "shufflenet": lambda: filled("shufflenet"),
    "densenet121": lambda: filled("densenet121"),
    "inception_v1": lambda: filled("inception_v1"),
    "resnet50": lambda: filled("resnet50"),
    "alexnet": lambda: filled("bvlc_alexnet"),
    "transformer": transformer,
    "transformer_qdq": lambda: quantised(transformer, "QDQ"),
    "transformer_dynamic": lambda: quantised(transformer, "dynamic"),
    "bert": lambda: exported("bert"),
    "lstm": lambda: exported("lstm"),
    "lstm_dynamic": lambda: quantised(functools.partial(recurrent, "LSTM"), "dynamic"),
    "gru": lambda: recurrent("GRU"),
    "resnet_exported": lambda: exported("resnet"),
    "small": small,
}


def make(name: str) -> None:
    """Write a network."""
    import onnx

    FOLDER.mkdir(parents=True, exist_ok=True)
    onnx.save(NETWORKS[name](), FOLDER / f"{name}.onnx")


def compile_network(name: str, ep: str) -> None:
    """Write the context model of a network for an EP."""
    import epctx_core

    options = epctx_core.SessionOptions()
    options.add_provider(ep)
    epctx_core.ModelCompiler(options, FOLDER / f"{name}.onnx").compile_to_file(
        FOLDER / f"{name}_{ep}_ctx.onnx"
    )


def compare(name: str, first: str, threads: str = "0", ep: str = "") -> None:
    """Report ratios of neighbouring turns, each library's fastest turn, and how far
    results are apart.

    Args:
        name: the network.
        first: the number of the session that is created first.
        threads: of each session; 0 for the default, and then wall time counts.
        ep: the EP whose context model ours runs; empty for the network itself.
    """
    import numpy as np
    import onnx
    import onnxruntime

    import epctx_core

    path = FOLDER / f"{name}.onnx"
    feeds = next(inputs_of(onnx.load(path)))
    libraries = (epctx_core, onnxruntime, onnxruntime)
    order = [(int(first) + i) % len(libraries) for i in range(len(libraries))]
    runs: dict[int, Callable[[], Any]] = {}
    for who in order:
        options = libraries[who].SessionOptions()
        options.intra_op_num_threads = int(threads)
        if who == 0 and ep:
            context = FOLDER / f"{name}_{ep}_ctx.onnx"
            session = epctx_core.InferenceSession(context, options, providers=[ep])
        else:
            session = libraries[who].InferenceSession(
                path, options, providers=["CPUExecutionProvider"]
            )
        runs[who] = functools.partial(session.run, None, feeds)
    error = max(
        float(
            np.max(np.abs(a - b), initial=0)
            / max(1e-9, float(np.max(np.abs(b), initial=0)))
        )
        for a, b in zip(runs[0](), runs[1](), strict=True)
    )
    clock = time.perf_counter if threads == "0" else time.thread_time
    count = max(
        1, int(TURN / max(1e-9, min(turn(run, 3, clock) for run in runs.values())))
    )
    times: dict[int, list[float]] = {who: [] for who in order}
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times[0]) < len(order):
        order = [*order[1:], order[0]]
        for who in order:
            times[who].append(turn(runs[who], count, clock))
    report(
        ratio=pair_turns(times[0], times[1]),
        control=pair_turns(times[2], times[1]),
        ours=min(times[0]),
        theirs=min(*times[1], *times[2]),
        error=error,
    )


def turn(run: Callable[[], object], count: int, clock: Callable[[], float]) -> float:
    """Return the mean seconds of some runs in a row."""
    start = clock()
    for _ in range(count):
        run()
    return (clock() - start) / count


def child(*arguments: str) -> str:
    """Run this script in a fresh process and return what it prints."""
    return subprocess.check_output([sys.executable, __file__, *arguments], text=True)


def main(names: Sequence[str], *, threads: str, ep: str) -> None:
    """Measure the networks and print the table."""
    print("| network | ours | onnxruntime | ratio | control | largest difference |")
    print("|---|---:|---:|---:|---:|---:|")
    found: list[tuple[Ratio, Noise]] = []
    for name in names:
        if not (FOLDER / f"{name}.onnx").exists():
            child("make", name)
        if ep:
            child("compile", name, ep)
        rounds = {str(i): ("compare", name, str(i), threads, ep) for i in range(ROUNDS)}
        measurement = measure(__file__, rounds, runs=1)
        ratio, control = (
            combine_processes(measurement.gather(key)) for key in ("ratio", "control")
        )
        found.append((ratio, measurement.noise))
        ours, theirs = (
            min(measurement.gather(who)) * 1e3 for who in ("ours", "theirs")
        )
        error = max(measurement.gather("error"))
        print(
            f"| {name} | {ours:.3g} ms | {theirs:.3g} ms | {format_ratio(ratio)} | "
            f"{format_ratio(control)} | {error:.1g} |",
            flush=True,
        )
    show_worst("worst", found, BAR)


if __name__ == "__main__":
    children: dict[str, Callable[..., None]] = {
        "make": make,
        "compile": compile_network,
        "compare": compare,
    }
    if sys.argv[1:2] and sys.argv[1] in children:
        children[sys.argv[1]](*sys.argv[2:])
    else:
        one = "--one-thread" in sys.argv
        main(
            [n for n in sys.argv[1:] if n in NETWORKS] or list(NETWORKS),
            threads="1" if one else "0",
            ep="QNN" if "--context" in sys.argv else "",
        )
