"""The tour: compile real networks with EPs found by their entry points, move them, run
them elsewhere.

Vendors' EPs come first, where there are some that work on this machine. The simulated
ones follow, which need no device; the last network is split over two of them and the
CPU. It ends with times to the first result, measured against onnxruntime with imports
and without, and with a page that shows how the last network is cut. Run it with
`make demo`, which installs simulated EPs only. Everything it writes goes to
`demo-output/`, or to the folder given as argument.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnxruntime
from epctx_bench.ratio import WIDEST_EQUALITY, estimate_ratio
from epctx_bench.units import format_seconds
from epctx_report import make_report

import epctx_core as epctx
from epctx_core.plugin import Purpose

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = ROOT / "tests/support/networks"
OUTPUT = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "demo-output"
TOLERANCE = 5e-4
HALF_PRECISION = 2e-2
"""Tolerance for devices, which may compute in 16 bits what a model has in 32."""
TARGET = {"soc_model": "60", "htp_arch": "73", "enable_htp_fp16_precision": "1"}
"""Device to compile for by an EP that compiles for others than this machine's."""
SOURCES = OUTPUT / "sources"
"""Where the sources are moved to; context models are loaded without them."""
TURNS = 3
MEASURING = 10.0
"""Seconds for measuring all networks; each is measured once at least."""


def main() -> int:
    """Walk through the tour; return the exit code."""
    # Imports are measured, too, as where pip has compiled all modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    shutil.rmtree(OUTPUT, ignore_errors=True)
    SOURCES.mkdir(parents=True)
    real, simulated = find_eps()
    if not real:
        print(
            "No vendor's EP works here, so all below is simulated. "
            "docs/how-to/eps/real-hardware.md says how to install one."
        )
    results = [
        tour(
            f"bert_on_{name.lower()}",
            copy_bert,
            {ep: choose_target(ep)},
            HALF_PRECISION,
        )
        for name, ep in real.items()
    ]
    print(
        "\nThe simulated EPs, for development without a device: vendors' rules and "
        "files, real results, computed on this\nCPU. Nothing here runs on an NPU."
    )
    qnn, openvino, vitisai = (
        simulated[name] for name in ("QNN", "OpenVINO", "VitisAI")
    )
    # With the option, QNN leaves what quantises the network's input to others, as the
    # real one does.
    several = {vitisai: {}, qnn: {"offload_graph_io_quantization": "1"}}
    networks = {
        "resnet50": (make_resnet50, {qnn: {"htp_arch": "73"}}),
        "bert": (copy_bert, {openvino: {"device_type": "CPU"}}),
        "shufflenet_int8": (make_quantised_shufflenet, several),
    }
    results += [tour(name, *network) for name, network in networks.items()]
    show_savings([*(f"bert_on_{name.lower()}" for name in real), *networks])
    page = write_page("shufflenet_int8", several)
    print(f"\nHow the last one is cut, and why, as a page for a browser:\n  {page}")
    command = shutil.which("epctx", path=str(Path(sys.executable).parent)) or "epctx"
    with suppress(ValueError):  # it is elsewhere
        command = str(Path(command).relative_to(Path.cwd()))
    print("\nThe same from the command line:")
    print(f"  {command} plugins list")
    print(
        f"  {command} compile tests/data/models/bert/model.onnx --ep OpenVINO "
        "-o demo-output/ --check"
    )
    print(
        f"  {command} inspect "
        "demo-output/shufflenet_int8-moved/shufflenet_int8_ctx.onnx"
    )
    return 0 if all(results) else 1


def find_eps() -> tuple[dict[str, str], dict[str, str]]:
    """Say which EPs are installed.

    Returns:
        The vendors' that work on this machine, and the simulated ones: short name to
        the name with its distribution, which is that of one EP even where several
        packages have the same.
    """
    print("Execution Providers found through entry points:")
    real: dict[str, str] = {}
    simulated: dict[str, str] = {}
    for record in epctx.plugins():
        try:
            cls = epctx.default_registry.load(record)
            said = epctx.default_registry.availability(record, Purpose.EXPORT)
        except epctx.EpctxError as error:
            kind = f"not in use: {error.message}"
        else:
            kind = "simulated" if cls.simulated else "a vendor's"
            kind += (
                ""
                if said.available
                else f", not available on this machine: {said.reason}"
            )
            if said.available:
                short = record.name.removesuffix("ExecutionProvider")
                eps = simulated if cls.simulated else real
                eps.setdefault(short, f"{record.distribution}:{record.name}")
        print(f"  {record.name:26} from {record.distribution} {record.version}: {kind}")
    return real, simulated


def choose_target(name: str) -> dict[str, str]:
    """Return the options of a vendor's EP that say what to compile for, as far as it
    has them.
    """
    cls = epctx.default_registry.load(epctx.default_registry.resolve(name))
    declared = {option.name for option in cls.options}
    return {option: value for option, value in TARGET.items() if option in declared}


def tour(
    name: str,
    make_model: Callable[[Path], Path],
    eps: dict[str, dict[str, str]],
    tolerance: float = TOLERANCE,
) -> bool:
    """Compile a network, move it, run it in another process, compare."""
    folder, moved = OUTPUT / name, OUTPUT / f"{name}-moved"
    folder.mkdir(parents=True)
    source = make_model(folder / f"{name}.onnx")
    expected = reference_run(source, folder / "input.npz")

    print(
        f"\n== {name}, {source.stat().st_size / 1e6:.1f} MB, for {' and '.join(eps)} =="
    )
    report = compile_for(source, eps)
    source.rename(SOURCES / source.name)
    folder.rename(moved)
    print(
        f"The source is taken away, the folder is now {moved.parent.name}/{moved.name}/"
        "; another process loads it."
    )
    outputs = run_elsewhere(
        moved / f"{name}_ctx.onnx", moved / "input.npz", moved / "output.npz"
    )

    worst = max(
        float(np.abs(got - want).max() / (np.abs(want).max() + 1e-6))
        for got, want in zip(outputs, expected, strict=True)
    )
    took_part = {partition.ep for partition in report.partitions}
    agrees = len(took_part) == len(eps) and worst <= tolerance
    print(
        f"Largest difference to onnxruntime's result: {worst:.1e} "
        f"{'(agrees)' if agrees else '(WRONG)'}"
    )
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
        print(
            f"  {ep:26}{nodes:4} nodes"
            + (f" in {pieces} partition{'s' * (pieces > 1)}" if pieces else "")
        )
    taken = {name for partition in report.partitions for name in partition.node_names}
    for refusal in report.refusals:
        # Constants that only such nodes read are left with them.
        own = [name for name in refusal.nodes if name not in refusal.follows]
        left = [name for name in own if name not in taken]
        if left:
            print(f"    {refusal.ep} left {len(left)} of them: {refusal.reason}")
    for file in report.outputs:
        print(f"  wrote {file.path}  {file.bytes / 1e6:.2f} MB")
    return report


def reference_run(model: Path, inputs: Path) -> list[np.ndarray]:
    """Run a model with onnxruntime on seeded inputs, which are stored beside it."""
    session = onnxruntime.InferenceSession(
        str(model), providers=["CPUExecutionProvider"]
    )
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
    # What is printed there comes after what was printed here, also into a pipe.
    sys.stdout.flush()
    subprocess.run([sys.executable, "-c", program, model, inputs, outputs], check=True)
    with np.load(outputs) as arrays:
        return [arrays[name] for name in arrays.files]


def show_savings(names: Sequence[str]) -> None:
    """Print for each network when the first result comes, with and without a compile
    ahead of time.
    """
    print(
        "\nTimes to the first result, measured just now in fresh processes, of the "
        "context model against the ONNX model\nin onnxruntime:"
    )
    for name in names:
        moved = OUTPUT / f"{name}-moved"
        context = moved / f"{name}_ctx.onnx"
        source = SOURCES / f"{name}.onnx"
        # This process has compiled, but not loaded a context model so far.
        with epctx.InferenceSession(context) as session:
            records = session.get_provider_records()
            simulated = sum(bool(each.simulated) for each in records)

        kind = f" (simulated EP{'s' * (simulated > 1)})" * bool(simulated)
        print(f"  {name}{kind}")
        for imports, words in (
            (True, "from process start, with imports"),
            (False, "without imports"),
        ):
            end = time.monotonic() + MEASURING / len(names) / 2
            ours: list[float] = []
            peers: list[float] = []
            while not ours or (len(ours) < TURNS and time.monotonic() < end):
                for library, model, seconds in (
                    ("epctx_core", context, ours),
                    ("onnxruntime", source, peers),
                ):
                    seconds.append(
                        measure_first_result(library, model, moved, imports=imports)
                    )
            print(f"    {words}: {describe_saving(ours, peers)}", flush=True)


def measure_first_result(
    library: str, model: Path, folder: Path, *, imports: bool
) -> float:
    """Return the seconds that a fresh process needs to create a session and run it
    once: from its start, or without imports.
    """
    program = (
        "import importlib, sys, time, numpy as np\n"
        "started, library, model, inputs, *names = sys.argv[1:]\n"
        "for name in names:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except Exception:\n"
        "        pass\n"
        "feeds = dict(np.load(inputs))\n"
        "start = time.monotonic() if names else float(started)\n"
        "eps = ['CPUExecutionProvider'] if library == 'onnxruntime' else None\n"
        "host = importlib.import_module(library)\n"
        "session = host.InferenceSession(model, providers=eps)\n"
        "session.run(None, feeds)\n"
        "print('seconds', time.monotonic() - start)\n"
    )
    arguments = (library, model, folder / "input.npz")
    names = () if imports else tuple(sys.modules)
    said = subprocess.run(
        [sys.executable, "-c", program, str(time.monotonic()), *arguments, *names],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    # Libraries print, too.
    return float(said.rpartition("seconds ")[2])


def write_page(name: str, eps: dict[str, dict[str, str]]) -> Path:
    """Write the page of a network that was compiled for these EPs; return its path."""
    options = epctx.SessionOptions()
    for ep, settings in eps.items():
        options.add_provider(ep, settings)
    report = make_report(SOURCES / f"{name}.onnx", sess_options=options)
    return report.write(OUTPUT / f"{name}.html")


def describe_saving(context: Sequence[float], source: Sequence[float]) -> str:
    """Return times to the first result and their ratio, in words.

    Args:
        context: seconds of each turn with the context model.
        source: those with its source.
    """
    ours, peers = (
        format_seconds(statistics.median(each)) for each in (context, source)
    )
    ratio = estimate_ratio(context, source)
    faster = 1 / ratio.estimate
    if max(faster, ratio.estimate) < WIDEST_EQUALITY:
        said = "about as fast"
    elif faster > 1:
        said = f"{faster:.2g} times faster"
    else:
        said = f"{ratio.estimate:.2g} times slower"

    # A single turn on a busy machine has no interval that could tell.
    if not (ratio.high < 1 or ratio.low > 1) and said != "about as fast":
        said += f", not certain after {ratio.pairs} turn{'s' * (ratio.pairs > 1)}"
    return f"{ours} against {peers}, {said}"


def make_resnet50(path: Path) -> Path:
    """Write resnet50 with seeded random weights; see fill.py."""
    command = [sys.executable, str(NETWORKS / "fill.py"), "resnet50", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def copy_bert(path: Path) -> Path:
    """Copy the small transformer that the tests use."""
    shutil.copyfile(ROOT / "tests/data/models" / "bert" / "model.onnx", path)
    return path


def make_quantised_shufflenet(path: Path) -> Path:
    """Write shufflenet with seeded random weights, quantised to INT8; see
    `tests/support/networks/quantise.py`.
    """
    command = [sys.executable, str(NETWORKS / "quantise.py"), "shufflenet", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


if __name__ == "__main__":
    sys.exit(main())
