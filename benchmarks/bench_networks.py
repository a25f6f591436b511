"""Networks and chains measured by epctx_bench, plotted in benchmarks-loads.md.

The networks are the demo's, the chains have 100 to 10,000 nodes. EPs are simulated.
Reports are saved into the folder `benchmarks/data/reports`; `plot.py` draws them.

    python benchmarks/bench_networks.py
    TURNS=3 python benchmarks/bench_networks.py bert chains
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_chain import make_chain
from harness import DATA, show_noise

ROOT = Path(__file__).resolve().parent.parent
REPORTS = DATA / "reports"
TURNS = int(os.environ.get("TURNS", "5"))
NODES = (100, 1_000, 10_000)
EPS: Mapping[str, Sequence[str]] = {
    "resnet50": ("QNN",),
    "bert": ("OpenVINO",),
    "shufflenet_int8": ("VitisAI", "QNN"),
}
"""Each network of the demo to its EPs, in order of priority."""
WORDS = {
    "load_warm": ("loads", "onnxruntime creates a session for the source"),
    "first_result": (
        "gives the first result, without imports,",
        "onnxruntime from the source",
    ),
    "first_result_from_start": (
        "gives the first result, from process start with imports,",
        "onnxruntime from the source",
    ),
}
"""Rows of a report to the words for ours and for the peer's."""


def make_network(name: str) -> Path:
    """Write a network of the demo, once."""
    path = DATA / f"{name}.onnx"
    if path.exists():
        return path
    DATA.mkdir(exist_ok=True)
    given = ROOT / "tests/data/models" / name / "model.onnx"
    if given.exists():
        shutil.copyfile(given, path)
        return path

    quantised = name.endswith("_int8")
    script = (
        ROOT / "tests/support/networks" / ("quantise.py" if quantised else "fill.py")
    )
    subprocess.check_call(
        [sys.executable, script, name.removesuffix("_int8"), path],
        stdout=subprocess.DEVNULL,
    )
    return path


def measure_models(name: str, models: Sequence[Path], eps: Sequence[str]) -> None:
    """Measure models, save the report, and print its sentences."""
    from epctx_bench import BenchSettings, bench
    from epctx_bench.ratio import describe_ratio, estimate_ratio
    from epctx_bench.saved import save_report
    from epctx_bench.units import format_seconds

    settings = BenchSettings(turns=TURNS, runs=3, time_limit=600.0)
    # A report has the paths, and is read on other machines.
    paths = [os.path.relpath(model) for model in models]
    measured = bench(paths, eps=[tuple(eps)], settings=settings)
    report = measured.as_dict()
    REPORTS.mkdir(parents=True, exist_ok=True)
    save_report(report, REPORTS / f"{name}.json")

    columns = {column["name"]: column for column in report["columns"]}
    for column in columns.values():
        if column["error"]:
            sys.exit(f"{column['name']}: {column['error']}")
        if column["peer"] is None:
            continue
        rows, peer_rows = column["rows"], columns[column["peer"]]["rows"]
        for row, (ours, peer) in WORDS.items():
            ratio = estimate_ratio(rows[row]["samples"], peer_rows[row]["samples"])
            described = describe_ratio(ratio, ours, peer)
            print(f"{column['name']} {described}", flush=True)
        # Other work on the machine disturbs it less than wall times.
        cpu, peer_cpu = (
            each["first_result_from_start"]["cpu_seconds"] for each in (rows, peer_rows)
        )
        print(
            f"{column['name']} takes {format_seconds(cpu)} of processor time from "
            f"process start, onnxruntime {format_seconds(peer_cpu)}: "
            f"{cpu / peer_cpu:.2f} times"
        )
    show_noise(measured.noise)


def main(chosen: Sequence[str]) -> None:
    """Measure the networks, then the chains, or those of them that were chosen."""
    if unknown := set(chosen) - {*EPS, "chains"}:
        sys.exit(f"no such network: {', '.join(unknown)}")
    for name, eps in EPS.items():
        if name in (chosen or EPS):
            measure_models(f"network_{name}", [make_network(name)], eps)
    if not chosen or "chains" in chosen:
        measure_models("chains", [make_chain(nodes) for nodes in NODES], ["QNN"])


if __name__ == "__main__":
    main(sys.argv[1:])
