"""Cost of epctx around real vendors' compilers: compile, load and run against the
vendor's own, on five networks.

The QNN EP of the package onnxruntime-qnn, on its simulator, is compared with
onnxruntime's own ModelCompiler and InferenceSession; epctx-openvino with the openvino
package. Both sides live in one process and take turns, so that what else the machine
does hits both; a process gives medians over neighbouring turns, and the median of some
processes counts.

    make .venv-vendors/.installed
    .venv-vendors/bin/python benchmarks/bench_vendors.py
    .venv-vendors/bin/python benchmarks/bench_vendors.py qnn bert
    .venv-vendors/bin/python benchmarks/bench_vendors.py --cpu

Without names all networks of both vendors are measured. `--cpu` takes processor time
instead of wall time, for a machine that is busy.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench_plain import FOLDER, inputs_of
from bench_plain import child as make_by
from harness import (
    combine_processes,
    format_ratio,
    measure,
    pair_turns,
    report,
    show_noise,
)

if TYPE_CHECKING:
    import numpy as np
    from epctx_bench.ratio import Ratio
    from harness import Measurement

NETWORKS = ("bert", "resnet_exported", "mobilenet", "squeezenet", "transformer")
PACKAGES = {
    "qnn": ("onnxruntime-qnn", "onnxruntime"),
    "openvino": ("openvino", "epctx-openvino"),
}
ROUNDS = 3
"""Fresh processes for each network."""
PAIRS = {"compile": 3, "load": 7, "cold": 3}
"""Turns of each side in a process."""
RUN_SECONDS = 1.0
"""How long both sides take turns in running."""
TURN = 0.02
"""Seconds of one side's turn in running, at least one run."""
MEASURES = ("compile", "load", "run")
QUIET = 4
SIMULATOR = {"soc_model": "60", "htp_arch": "73", "enable_htp_fp16_precision": "1"}
"""Options for Qualcomm's simulator, in half precision."""
PLAIN_OPENVINO = {"EXECUTION_MODE_HINT": "ACCURACY", "NUM_STREAMS": 1}
"""What epctx-openvino asks of OpenVINO for a CPU by default."""

CLOCK = time.process_time if "--cpu" in sys.argv else time.perf_counter
Run = Callable[[], Any]


class Side(NamedTuple):
    """One way to compile, load and run a network.

    Attributes:
        compile: writes what is loaded later to a path, and beside it.
        load: returns a run of what was compiled.
        start: returns a run of the network itself, compiled for this process.
    """

    compile: Callable[[Path], object]
    load: Callable[[Path], Run]
    start: Callable[[], Run]


def by_sessions(
    library: Any, options: Callable[[], Any], source: Path, feeds: dict[str, np.ndarray]
) -> Side:
    """Return how epctx or onnxruntime, which have the same names, does it.

    Args:
        library: the module.
        options: makes session options with the EP.
        source: the network.
        feeds: its inputs.
    """

    def open_session(model: Path) -> Run:
        session = library.InferenceSession(str(model), options())
        return lambda: session.run(None, feeds)

    def compile_to(output: Path) -> None:
        library.ModelCompiler(options(), str(source)).compile_to_file(str(output))

    return Side(compile_to, open_session, lambda: open_session(source))


def by_openvino(source: Path, feeds: dict[str, np.ndarray]) -> Side:
    """Return how the openvino package does it: export to a file, import from it."""
    import openvino

    core = openvino.Core()

    def compile_to(output: Path) -> None:
        compiled = core.compile_model(source, "CPU", PLAIN_OPENVINO)
        output.write_bytes(compiled.export_model().getbuffer())

    def run_of(compiled: Any) -> Run:
        request = compiled.create_infer_request()
        return lambda: request.infer(feeds, share_inputs=True)

    return Side(
        compile_to,
        lambda compiled: run_of(
            core.import_model(compiled.read_bytes(), "CPU", PLAIN_OPENVINO)
        ),
        lambda: run_of(core.compile_model(source, "CPU", PLAIN_OPENVINO)),
    )


def sides(vendor: str, network: str) -> tuple[Side, Side]:
    """Return ours and the vendor's own."""
    import onnx

    import epctx_core as epctx

    source = FOLDER / f"{network}.onnx"
    feeds = next(inputs_of(onnx.load(source)))

    def with_ep(ep: str, given: dict[str, str]) -> epctx.SessionOptions:
        options = epctx.SessionOptions()
        options.add_provider(ep, given)
        return options

    if vendor == "openvino":
        ours = by_sessions(
            epctx, lambda: with_ep("epctx-openvino:OpenVINO", {}), source, feeds
        )
        return ours, by_openvino(source, feeds)
    import onnxruntime
    import onnxruntime_qnn

    name = onnxruntime_qnn.get_ep_name()
    given = {**SIMULATOR, "backend_path": onnxruntime_qnn.get_qnn_htp_path()}
    if not any(device.ep_name == name for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(
            name, onnxruntime_qnn.get_library_path()
        )

    def with_qnn() -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = QUIET
        listed = [
            device for device in onnxruntime.get_ep_devices() if device.ep_name == name
        ]
        options.add_provider_for_devices(listed[:1], given)
        return options

    ours = by_sessions(
        epctx, lambda: with_ep("epctx-onnxruntime:QNN", given), source, feeds
    )
    return ours, by_sessions(onnxruntime, with_qnn, source, feeds)


def compare(vendor: str, network: str, first: str) -> None:
    """Report each side's median seconds of each measure, and the median of ratios and
    differences of turns.

    Args:
        vendor: a key of `PACKAGES`.
        network: one of `NETWORKS`.
        first: 0 or 1, the side that takes the first turn.
    """
    both = sides(vendor, network)
    order = [int(first), 1 - int(first)]
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, str(who), "m_ctx.onnx") for who in order]
        for output in outputs:
            output.parent.mkdir()
        outputs.sort()
        works: dict[str, list[Callable[[], object]]] = {
            "compile": [
                lambda who=who: both[who].compile(outputs[who])  # type: ignore[misc]
                for who in (0, 1)
            ],
            "load": [lambda who=who: both[who].load(outputs[who]) for who in (0, 1)],  # type: ignore[misc]
            "cold": [lambda who=who: both[who].start() for who in (0, 1)],  # type: ignore[misc]
        }
        for name, work in works.items():
            for who in order:
                # imports, receipts of checked files, what the vendor makes once for a
                # process
                work[who]()
            figures |= take_turns(name, work, order, PAIRS[name])
        runs = [both[who].load(outputs[who]) for who in (0, 1)]
        error = largest_difference(runs[0](), runs[1]())
        count = max(1, int(TURN / max(1e-9, min(turn(run, 3) for run in runs))))
        pairs = max(
            3,
            int(
                RUN_SECONDS
                / (2 * count * max(1e-9, min(turn(run, count) for run in runs)))
            ),
        )
        figures |= take_turns("run", runs, order, pairs, count)
    report(**figures, error=error)


def take_turns(
    name: str,
    works: Sequence[Callable[[], object]],
    order: list[int],
    pairs: int,
    count: int = 1,
) -> dict[str, float]:
    """Return figures of a measure: medians of `ours` and `theirs`, their ratio, and
    what ours takes beyond 1.1 of theirs.
    """
    found: list[dict[int, float]] = []
    for _ in range(pairs):
        found.append({who: turn(works[who], count) for who in order})
        order.reverse()
    return {
        f"{name} ours": statistics.median(f[0] for f in found),
        f"{name} theirs": statistics.median(f[1] for f in found),
        f"{name} ratio": pair_turns([f[0] for f in found], [f[1] for f in found]),
        f"{name} more": statistics.median(f[0] - f[1] for f in found),
        f"{name} beyond": statistics.median(f[0] - 1.1 * f[1] for f in found),
    }


def turn(work: Callable[[], object], count: int) -> float:
    """Return the mean seconds of some calls in a row; what a call returned is freed
    within its time.
    """
    start = CLOCK()
    for _ in range(count):
        work()
    return (CLOCK() - start) / count


def largest_difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference of results, relative to the largest number."""
    import numpy as np

    theirs = list(theirs.values()) if hasattr(theirs, "values") else theirs
    return max(
        float(
            np.max(np.abs(a - b), initial=0)
            / max(1e-9, float(np.max(np.abs(b), initial=0)))
        )
        for a, b in zip(ours, theirs, strict=True)
    )


def show(vendor: str, found: Mapping[str, Measurement]) -> None:
    """Print a vendor's table, and which bars were missed."""
    packages = [f"{package} {version(package)}" for package in PACKAGES[vendor]]
    print(f"\n### {', '.join(packages)}\n")
    columns = [
        column for name in MEASURES for column in (name, "the vendor's", "ratio")
    ]
    columns += ["cold start", "load / cold", "of the vendor", "difference"]
    print(f"| network | {' | '.join(columns)} |")
    print("|---" + "|---:" * 13 + "|")
    missed = []
    for network, measurement in found.items():
        f = {
            key: statistics.median(measurement.gather(key))
            for key in next(iter(measurement.samples.values()))
        }
        ratios = {
            name: combine_processes(measurement.gather(f"{name} ratio"))
            for name in MEASURES
        }
        cells = [network]
        for name in MEASURES:
            times = (shown(f[f"{name} {who}"]) for who in ("ours", "theirs"))
            cells += [*times, format_ratio(ratios[name])]
        cells.append(shown(f["cold ours"]))
        cells += [
            f"{f[f'load {who}'] / f[f'cold {who}']:.2f}" for who in ("ours", "theirs")
        ]
        print("| " + " | ".join([*cells, f"{f['error']:.1g}"]) + " |", flush=True)
        missed += list_missed(network, f, ratios)

    noise = max((m.noise for m in found.values()), key=lambda noise: noise.share)
    show_noise(noise)
    if not noise.busy:
        bars = "compile 1.1, load 1.1 and 10 ms, run 1.05 or 50 us"
        said = ["MISSED", *missed] if missed else [f"No bar was surely missed: {bars}."]
        print(f"\n{'; '.join(said)}")


def list_missed(
    network: str, figures: Mapping[str, float], ratios: Mapping[str, Ratio]
) -> list[str]:
    """Return the bars that a network missed; a ratio misses by its whole interval."""
    missed = []
    if ratios["compile"].low > 1.1:
        missed.append(f"{network}: compile {format_ratio(ratios['compile'])} (1.1)")
    if figures["load beyond"] > 0.01:
        missed.append(
            f"{network}: load {figures['load beyond'] * 1e3:.1f} ms beyond 1.1 of the "
            "vendor's (10 ms)"
        )
    if ratios["run"].low > 1.05 and figures["run more"] > 50e-6:
        missed.append(
            f"{network}: run {format_ratio(ratios['run'])} (1.05), "
            f"{figures['run more'] * 1e6:.0f} us more (50 us)"
        )
    return missed


def shown(seconds: float) -> str:
    """Return a time for people."""
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def main(chosen: Sequence[str]) -> None:
    """Measure the vendors and networks that were named, or all, and print a table for
    each vendor.
    """
    for vendor in [name for name in PACKAGES if name in chosen] or PACKAGES:
        try:
            for package in PACKAGES[vendor]:
                version(package)
        except PackageNotFoundError as error:
            print(
                f"{vendor}: {error.name} is not installed; use "
                ".venv-vendors/bin/python (make test-vendors makes it)."
            )
            continue
        found = {}
        for network in [name for name in NETWORKS if name in chosen] or NETWORKS:
            if not (FOLDER / f"{network}.onnx").exists():
                make_by("make", network)
            clock = ["--cpu"] if "--cpu" in chosen else []
            rounds = {
                str(i): ("compare", vendor, network, str(i % 2), *clock)
                for i in range(ROUNDS)
            }
            found[network] = measure(__file__, rounds, 1)
        show(vendor, found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"]:
        compare(*sys.argv[2:5])
    else:
        main(sys.argv[1:])
