"""Time to a session and to its first result: a plain session and a context model of the
simulated QNN against onnxruntime's session of the source, on the networks of
bench_plain.py.

In each of some fresh processes they take turns, in another order each time, after each
was made once for a small network: what is imported and allocated once does not count.
The ratios are those of neighbouring turns of each process, with the interval that all
processes give; a second session of onnxruntime is the control, and says what the
machine's noise amounts to.

    python benchmarks/bench_load.py            # all networks
    python benchmarks/bench_load.py resnet50 gru
"""

from __future__ import annotations

import gc
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bench_plain import FOLDER, NETWORKS, compile_network, inputs_of, make
from harness import (
    combine_processes,
    format_ratio,
    measure,
    pair_turns,
    report,
    show_worst,
)

if TYPE_CHECKING:
    import numpy as np
    from epctx_bench.noise import Noise
    from epctx_bench.ratio import Ratio

ROUNDS = int(os.environ.get("ROUNDS", "3"))
"""Fresh processes for each network."""
TURNS = int(os.environ.get("TURNS", "8"))
"""Loads of each kind in a process."""
EP = "QNN"
"""Of the context models: the simulated one."""
BARS = {"plain load": 1.5, "plain first run": 1.1, "context load": 0.4}
"""Ratios to reach with every network."""
CONTROL = "control"
"""Name of onnxruntime's second session."""


def compare(name: str) -> None:
    """Report each ratio, and milliseconds of onnxruntime's load."""
    import onnx
    import onnxruntime

    import epctx_core as epctx

    logging.disable(logging.WARNING)
    source = FOLDER / f"{name}.onnx"
    context = FOLDER / f"{name}_{EP}_ctx.onnx"
    kinds: dict[str, Callable[[], Any]] = {
        "theirs": lambda: onnxruntime.InferenceSession(os.fspath(source)),
        CONTROL: lambda: onnxruntime.InferenceSession(os.fspath(source)),
        "plain": lambda: epctx.InferenceSession(source),
        "context": lambda: epctx.InferenceSession(context, providers=[EP]),
    }
    feeds = next(inputs_of(onnx.load(source)))
    small = FOLDER / "small.onnx"
    onnxruntime.InferenceSession(os.fspath(small))
    epctx.InferenceSession(small).close()
    epctx.InferenceSession(FOLDER / f"small_{EP}_ctx.onnx", providers=[EP]).close()

    loads: dict[str, list[float]] = {kind: [] for kind in kinds}
    runs: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(TURNS):
        # Whoever comes first finds less of the memory that the one before gave back.
        order = [*kinds][number % len(kinds) :] + [*kinds][: number % len(kinds)]
        for kind in order:
            load, run = timed(kinds[kind], feeds)
            loads[kind].append(load)
            runs[kind].append(run)
    report(
        ms=statistics.median(loads["theirs"]) * 1e3,
        **{
            f"{kind} {what}": pair_turns(times[kind], times["theirs"])
            for what, times in (("load", loads), ("first run", runs))
            for kind in (CONTROL, "plain", "context")
        },
    )


def timed(
    open_session: Callable[[], Any], feeds: dict[str, np.ndarray]
) -> tuple[float, float]:
    """Return the seconds to a session, and those of its first run."""
    gc.collect()
    begun = time.perf_counter()
    session = open_session()
    loaded = time.perf_counter()
    session.run(None, feeds)
    return loaded - begun, time.perf_counter() - loaded


def prepare(name: str) -> None:
    """Write a network, unless it is there, and its context model."""
    if not (FOLDER / f"{name}.onnx").exists():
        make(name)
    compile_network(name, EP)


def main(names: Sequence[str]) -> None:
    """Measure the networks and print the table."""
    columns = [
        f"{kind} {what}"
        for what in ("load", "first run")
        for kind in ("plain", "context", CONTROL)
    ]
    print(f"| network | onnxruntime's load | {' | '.join(columns)} |")
    print(f"|---|{'---:|' * (len(columns) + 1)}")
    found: dict[str, list[tuple[Ratio, Noise]]] = {what: [] for what in columns}
    prepare("small")
    for name in names:
        prepare(name)
        measurement = measure(__file__, {name: ("compare", name)}, runs=ROUNDS)
        ratios = {what: combine_processes(measurement.gather(what)) for what in columns}
        for what, ratio in ratios.items():
            found[what].append((ratio, measurement.noise))
        cells = " | ".join(map(format_ratio, ratios.values()))
        load = measurement.median(name, "ms")
        print(f"| {name} | {load:.3g} ms | {cells} |", flush=True)

    for what, bar in BARS.items():
        show_worst(f"worst {what}", found[what], bar)


if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"]:
        compare(sys.argv[2])
    else:
        logging.disable(logging.WARNING)
        if unknown := set(sys.argv[1:]) - set(NETWORKS):
            sys.exit(f"no such network: {', '.join(unknown)}")
        main(sys.argv[1:] or list(NETWORKS))
