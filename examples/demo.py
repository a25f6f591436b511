"""The tour: compile real networks with an EP found by its entry point, move them, run them elsewhere.

Run it with `make demo`. Everything it writes goes to `demo-output/`, or to the folder given as argument.
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
OUTPUT = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "demo-output"
TOLERANCE = 1e-4


def main() -> int:
    """Walk through the tour; return the exit code."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    show_plugins()
    results = [tour("resnet50", make_resnet50), tour("bert", copy_bert)]
    print("\nThe same from the command line:")
    print("  epctx plugins list")
    print("  epctx compile tests/models/bert/model.onnx --ep QNN -o demo-output/ --check")
    print("  epctx inspect demo-output/bert-moved/bert_ctx.onnx")
    return 0 if all(results) else 1


def show_plugins() -> None:
    """Say which EPs are installed; nothing is imported for it."""
    print("Execution Providers found through entry points:")
    for record in epctx.plugins():
        print(f"  {record.name}  from {record.distribution} {record.version} ({record.state.value})")
    print(
        "The sim EPs stand for vendors' hardware: real results, computed on this CPU. Nothing here runs on an NPU."
    )


def tour(name: str, make_model) -> bool:  # noqa: ANN001 - one of the two functions below
    """Compile a network, move it, run it in another process, compare."""
    folder, moved = OUTPUT / name, OUTPUT / f"{name}-moved"
    folder.mkdir(parents=True)
    source = make_model(folder / f"{name}.onnx")
    expected = reference_run(source, folder / "input.npz")

    print(f"\n== {name}: {source.stat().st_size / 1e6:.1f} MB ==")
    report = compile_with_qnn(source)
    source.unlink()
    folder.rename(moved)
    print(
        f"source deleted, folder moved to {moved.parent.name}/{moved.name}/; now another process loads and runs it"
    )
    outputs = run_elsewhere(moved / report.output.name, moved / "input.npz", moved / "output.npz")

    worst = max(
        float(np.abs(got - want).max() / (np.abs(want).max() + 1e-6))
        for got, want in zip(outputs, expected, strict=True)
    )
    agrees = bool(report.partitions) and worst <= TOLERANCE
    print(
        f"largest relative difference to onnxruntime's CPU result: {worst:.1e} {'(agrees)' if agrees else '(WRONG)'}"
    )
    return agrees


def compile_with_qnn(source: Path) -> epctx.CompileReport:
    """Compile a model for the (simulated) QNN EP and say what happened."""
    options = epctx.SessionOptions()
    options.add_provider("QNN", {"htp_arch": "73"})
    report = epctx.ModelCompiler(options, source).compile_to_file()
    total = sum(report.assignments.values())
    for ep, nodes in report.assignments.items():
        print(
            f"{ep} runs {nodes} of {total} nodes"
            + (f" in {len(report.partitions)} partition(s)" if "QNN" in ep else "")
        )
    for refusal in report.refusals[:3]:
        print(f"  left to the CPU: {len(refusal.nodes)} nodes: {refusal.reason}")
    for file in report.outputs:
        print(f"  wrote {file.path}  {file.bytes / 1e6:.2f} MB")
    print(f"  in {sum(report.timings.values()):.2f} s")
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
        "    print('loaded by', ', '.join(session.get_providers()))\n"
    )
    subprocess.run([sys.executable, "-c", program, model, inputs, outputs], check=True)
    with np.load(outputs) as arrays:
        return [arrays[name] for name in arrays.files]


def make_resnet50(path: Path) -> Path:
    """Write resnet50 with seeded random weights; see `tests/networks/fill.py`."""
    script = ROOT / "tests" / "networks" / "fill.py"
    subprocess.run([sys.executable, script, "resnet50", path], check=True, stdout=subprocess.DEVNULL)
    return path


def copy_bert(path: Path) -> Path:
    """Copy the small transformer that the tests use."""
    shutil.copyfile(ROOT / "tests" / "models" / "bert" / "model.onnx", path)
    return path


if __name__ == "__main__":
    sys.exit(main())
