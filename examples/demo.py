"""The tour: compile real networks with EPs found by their entry points, move them, run them elsewhere.

The last network is split over two EPs and the CPU. Run it with `make demo`. Everything it writes goes to
`demo-output/`, or to the folder given as argument.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime

import epctx_core as epctx

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = ROOT / "tests" / "networks"
OUTPUT = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "demo-output"
TOLERANCE = 1e-4


def main() -> int:
    """Walk through the tour; return the exit code."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    show_plugins()
    # With the option, QNN leaves what quantizes the network's input to others, as the real one does.
    several = {"VitisAI": {}, "QNN": {"offload_graph_io_quantization": "1"}}
    results = [
        tour("resnet50", make_resnet50, {"QNN": {"htp_arch": "73"}}),
        tour("bert", copy_bert, {"OpenVINO": {"device_type": "CPU"}}),
        tour("shufflenet_int8", make_quantised_shufflenet, several),
    ]
    print("\nThe same from the command line:")
    print("  epctx plugins list")
    print("  epctx compile tests/models/bert/model.onnx --ep OpenVINO -o demo-output/ --check")
    print("  epctx inspect demo-output/shufflenet_int8-moved/shufflenet_int8_ctx.onnx")
    return 0 if all(results) else 1


def show_plugins() -> None:
    """Say which EPs are installed; nothing is imported for it."""
    print("Execution Providers found through entry points:")
    for record in epctx.plugins():
        print(f"  {record.name:26} from {record.distribution} {record.version}")
    print(
        "They stand for vendors' hardware: real results, computed on this CPU. Nothing here runs on an NPU."
    )


def tour(name: str, make_model, eps: dict[str, dict[str, str]]) -> bool:  # noqa: ANN001 - a function below
    """Compile a network, move it, run it in another process, compare."""
    folder, moved = OUTPUT / name, OUTPUT / f"{name}-moved"
    folder.mkdir(parents=True)
    source = make_model(folder / f"{name}.onnx")
    expected = reference_run(source, folder / "input.npz")

    print(f"\n== {name}, {source.stat().st_size / 1e6:.1f} MB, for {' and '.join(eps)} ==")
    report = compile_for(source, eps)
    source.unlink()
    folder.rename(moved)
    print(
        f"The source is deleted, the folder is now {moved.parent.name}/{moved.name}/; another process loads it."
    )
    outputs = run_elsewhere(moved / f"{name}_ctx.onnx", moved / "input.npz", moved / "output.npz")

    worst = max(
        float(np.abs(got - want).max() / (np.abs(want).max() + 1e-6))
        for got, want in zip(outputs, expected, strict=True)
    )
    took_part = {partition.ep for partition in report.partitions}
    agrees = len(took_part) == len(eps) and worst <= TOLERANCE
    print(f"Largest difference to onnxruntime's result: {worst:.1e} {'(agrees)' if agrees else '(WRONG)'}")
    return agrees


def compile_for(source: Path, eps: dict[str, dict[str, str]]) -> epctx.CompileReport:
    """Compile a model for EPs in order of priority, and say what happened."""
    options = epctx.SessionOptions()
    for ep, settings in eps.items():
        options.add_provider(ep, settings)
    report = epctx.ModelCompiler(options, source).compile_to_file()

    print(f"Compiled in {sum(report.timings.values()):.2f} s:")
    for ep, nodes in report.assignments.items():
        pieces = sum(partition.ep == ep for partition in report.partitions)
        print(f"  {ep:26}{nodes:4} nodes" + (f" in {pieces} partition{'s' * (pieces > 1)}" if pieces else ""))
    taken = {name for partition in report.partitions for name in partition.node_names}
    for refusal in report.refusals:
        left = [name for name in refusal.nodes if name not in taken]
        if left:
            print(f"    {refusal.ep} left {len(left)} of them: {refusal.reason}")
    for file in report.outputs:
        print(f"  wrote {file.path}  {file.bytes / 1e6:.2f} MB")
    return report


def reference_run(model: Path, inputs: Path) -> list[np.ndarray]:
    """Run a model with onnxruntime on seeded inputs, which are stored beside it."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    feeds = {
        value.name: random.standard_normal(value.shape, np.float32)
        if value.type == "tensor(float)"
        else random.integers(0, 2, value.shape)
        for value in session.get_inputs()
    }
    np.savez(inputs, **feeds)
    return session.run(None, feeds)


def run_elsewhere(model: Path, inputs: Path, outputs: Path) -> list[np.ndarray]:
    """Run a context model in a process of its own, as a host that only loads would."""
    program = (
        "import sys, numpy as np, epctx_core as epctx\n"
        "with epctx.InferenceSession(sys.argv[1]) as session:\n"
        "    np.savez(sys.argv[3], *session.run(None, dict(np.load(sys.argv[2]))))\n"
        "    print('Loaded by', ', '.join(session.get_providers()))\n"
    )
    subprocess.run([sys.executable, "-c", program, model, inputs, outputs], check=True)
    with np.load(outputs) as arrays:
        return [arrays[name] for name in arrays.files]


def make_resnet50(path: Path) -> Path:
    """Write resnet50 with seeded random weights; see `tests/networks/fill.py`."""
    command = [sys.executable, str(NETWORKS / "fill.py"), "resnet50", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def copy_bert(path: Path) -> Path:
    """Copy the small transformer that the tests use."""
    shutil.copyfile(ROOT / "tests" / "models" / "bert" / "model.onnx", path)
    return path


def make_quantised_shufflenet(path: Path) -> Path:
    """Write shufflenet with seeded random weights, quantised to INT8; see `tests/networks/quantise.py`."""
    command = [sys.executable, str(NETWORKS / "quantise.py"), "shufflenet", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


if __name__ == "__main__":
    sys.exit(main())
