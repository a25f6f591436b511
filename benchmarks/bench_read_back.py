"""What reading back before publishing adds to a compile: with and without it in turn,
in one process, by each EP.

Processor time: the wall clock of a compile is the disk's, too, and wanders by more than
what is looked for.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import bench_chain
import bench_weights
from harness import DATA, format_ratio, judge_bar, measure, report, show_noise

ROOT = Path(__file__).parent.parent
KEY = "ep.context_read_back"
PAIRS = 5
AT_MOST = 1.1
CASES = {
    "bert, QNN": ("bert", "QNN"),
    "bert, OpenVINO": ("bert", "OpenVINO"),
    "64 MiB of int8 layers, VitisAI": ("int8", "VitisAI"),
    "the same, encrypted": ("int8", "VitisAI", "encryption_key=" + "ab" * 32),
    "lstm, OpenVINO": ("lstm", "OpenVINO"),
    "100,000-node chain, 20,000 partitions": ("chain", "QNN"),
    "1 GiB of external weights, QNN": ("weights", "QNN"),
}


def source_of(case: str) -> Path:
    """Return a model that the repository has, or one that another benchmark makes."""
    if case == "chain":
        return bench_chain.make_chain(bench_chain.NODES)
    if case == "int8":
        return make_int8_layers(DATA / "int8_layers.onnx")
    if case == "weights":
        return bench_weights.make_matmuls(1024)
    return ROOT / "tests/data/models" / case / "model.onnx"


def make_int8_layers(path: Path) -> Path:
    """Write 16 quantised products of 2048 x 2048, once."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    if path.exists():
        return path
    DATA.mkdir(exist_ok=True)
    random, size, layers = np.random.default_rng(0), 2048, 16
    weights = [
        numpy_helper.from_array(np.array(2**-5, np.float32), "scale"),
        numpy_helper.from_array(np.array(0, np.int8), "zero"),
    ]
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q0"])]
    for i in range(layers):
        weights.append(
            numpy_helper.from_array(
                random.integers(-8, 8, (size, size), np.int8), f"w{i}"
            )
        )
        for source, target in ((f"q{i}", f"d{i}"), (f"w{i}", f"dw{i}")):
            nodes.append(
                helper.make_node(
                    "DequantizeLinear", [source, "scale", "zero"], [target]
                )
            )
        nodes.append(helper.make_node("MatMul", [f"d{i}", f"dw{i}"], [f"m{i}"]))
        nodes.append(
            helper.make_node(
                "QuantizeLinear", [f"m{i}", "scale", "zero"], [f"q{i + 1}"]
            )
        )
    nodes.append(
        helper.make_node("DequantizeLinear", [f"q{layers}", "scale", "zero"], ["y"])
    )
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])
        for name in "xy"
    ]
    graph = helper.make_graph(nodes, "layers", values[:1], values[1:], weights)
    save(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        ),
        path,
    )
    return path


def compile_in_turn(case: str, ep: str, *options: str) -> None:
    """Compile with and without reading back, in turn; report both, and the time of
    reading alone.
    """
    import epctx_core as epctx

    output = DATA / f"read_back_{case}" / "m_ctx.onnx"
    output.parent.mkdir(parents=True, exist_ok=True)
    shares: list[float] = []

    unread = bench_chain.options() if case == "chain" else epctx.SessionOptions()
    if case != "chain":
        unread.add_provider(ep, dict(option.split("=") for option in options))
    read = unread.copy()
    unread.add_session_config_entry(KEY, "0")

    def once(so: epctx.SessionOptions) -> None:
        for path in output.parent.iterdir():
            path.unlink()
        report = epctx.ModelCompiler(so, source_of(case)).compile_to_file(output)
        shares.append(report.timings["read_back"])

    def processor_seconds(so: epctx.SessionOptions) -> float:
        start = time.process_time()
        once(so)
        return time.process_time() - start

    once(read)
    shares.clear()
    pairs = [(processor_seconds(unread), processor_seconds(read)) for _ in range(PAIRS)]
    without, with_it = zip(*pairs, strict=True)
    report(without_s=without, with_s=with_it, read_back_s=shares[1::2])


def main() -> None:
    """Measure every case and print the table."""
    from epctx_bench.ratio import estimate_ratio

    noises = []
    print(
        "| | processor time of a compile, unread | read back | ratio | reading alone, "
        "wall clock | |\n|---|---:|---:|---:|---:|---|"
    )
    for name, arguments in CASES.items():
        measurement = measure(__file__, {name: arguments}, runs=1)
        samples = measurement.samples[name]
        ratio = estimate_ratio(samples["with_s"], samples["without_s"])
        times = [
            f"{measurement.median(name, key):.4g} s"
            for key in ("without_s", "with_s", "read_back_s")
        ]
        print(
            f"| {name} | {times[0]} | {times[1]} | {format_ratio(ratio)} | {times[2]} "
            f"| {judge_bar(ratio, AT_MOST, measurement.noise)} |",
            flush=True,
        )
        noises.append(measurement.noise)
    # The busiest case is told: a line between the rows would end the table.
    show_noise(max(noises, key=lambda noise: noise.share))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compile_in_turn(*sys.argv[1:])
    else:
        main()
