"""Benchmarks' measurements: fresh processes that take turns, and their tables.

A benchmark is one script that calls itself: without arguments it is the parent and
prints a table, with arguments it is a child that measures one thing and prints it with
`report`. Ratios, their intervals, memory and noise are epctx_bench's.

What a parent needs of it is imported in functions: a child that imports this module
would count scipy's memory as its own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctx_bench.noise import Noise
    from epctx_bench.ratio import Ratio

if sys.dont_write_bytecode:
    # Every script imports this module first, parents and children.
    sys.exit(
        "Nothing was measured: Python keeps no byte code, so every process would "
        "compile its modules again. Unset PYTHONDONTWRITEBYTECODE, and leave out -B."
    )

RUNS = 5
DATA = Path(__file__).parent / "data"
"""Where benchmarks keep the models they make; not in the repository."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Ratio to reach: ours over a peer's."""

    ours: str
    peer: str
    at_most: float


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Figures of children that took turns.

    Attributes:
        samples: name of the child, then of the figure, to a sample for each turn;
            sample i of every child was taken in turn i.
        noise: verdict on the machine meanwhile.
    """

    samples: Mapping[str, Mapping[str, Sequence[float]]]
    noise: Noise

    def median(self, child: str, figure: str = "s") -> float:
        """Return the median of a child's figure."""
        return statistics.median(self.samples[child][figure])

    def gather(self, figure: str) -> list[float]:
        """Return a figure's samples of all children, which measure the same."""
        return [
            sample for figures in self.samples.values() for sample in figures[figure]
        ]

    def ratio(self, ours: str, peer: str, figure: str = "s") -> Ratio:
        """Return the ratio of a figure of two children, with its interval.

        Raises:
            InvalidArgument: a sample is not a positive number.
        """
        from epctx_bench.ratio import estimate_ratio

        return estimate_ratio(self.samples[ours][figure], self.samples[peer][figure])


def report(**figures: float | Sequence[float]) -> None:
    """Print a child's figures: seconds, bytes or counts by name.

    A list has the samples of works that took turns within the child.
    """
    print(json.dumps(figures))


def seconds(work: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_memory() -> int:
    """Return this process's largest resident size in bytes."""
    # Imported once the work is done, whose memory it would count to.
    from epctx_bench.process_costs import read_peak

    return read_peak()


def resident_memory() -> int:
    """Return this process's resident size in bytes."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def measure(
    script: str, children: Mapping[str, Sequence[str]], runs: int = RUNS
) -> Measurement:
    """Run each child `runs` times in fresh processes, in turn.

    Args:
        script: the benchmark's own path.
        children: name to the arguments that make the script measure it.
        runs: how often.
    """
    from epctx_bench.noise import Watcher

    samples: dict[str, dict[str, list[float]]] = {name: {} for name in children}
    with Watcher() as watcher:
        for _ in range(runs):
            for name, arguments in children.items():
                for figure, value in run_child(script, arguments).items():
                    found = value if isinstance(value, list) else [value]
                    samples[name].setdefault(figure, []).extend(found)
    return Measurement(samples=samples, noise=watcher.noise)


def run_child(script: str, arguments: Sequence[str]) -> dict[str, float | list[float]]:
    """Return what a fresh process of a script reports."""
    output = subprocess.check_output([sys.executable, script, *arguments], text=True)
    # Libraries of vendors print when a process ends.
    line = next(filter(_is_report, reversed(output.splitlines())))
    figures: dict[str, float | list[float]] = json.loads(line)
    return figures


def _is_report(line: str) -> bool:
    return line.startswith("{")


def pair_turns(ours: Sequence[float], peers: Sequence[float]) -> float:
    """Return the ratio of two works that took turns within one process.

    What a process gets (its memory, its order of turns) is in all of its turns, so this
    is one sample: the interval comes from `combine_processes`.
    """
    from epctx_bench.ratio import estimate_ratio

    return estimate_ratio(ours, peers).estimate


def combine_processes(ratios: Sequence[float]) -> Ratio:
    """Return the ratio of some processes, each of which gave one, with its interval."""
    from epctx_bench.ratio import estimate_ratio

    return estimate_ratio(ratios, [1.0] * len(ratios))


def show(
    title: str,
    measurement: Measurement,
    bars: Sequence[Bar] = (),
    figure: str = "s",
) -> None:
    """Print medians and what became of the bars, as rows of a Markdown table.

    Figures that children call `ratio` or `control` are ratios, and get an interval.
    """
    print(f"\n### {title}\n")
    samples = measurement.samples
    names = list(dict.fromkeys(key for figures in samples.values() for key in figures))
    print("| | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for name, figures in samples.items():
        cells = [_format_figure(key, figures.get(key)) for key in names]
        print(f"| {name} | " + " | ".join(cells) + " |")
    show_noise(measurement.noise)
    for bar in bars:
        show_bar(measurement, bar, figure)


def show_noise(noise: Noise) -> None:
    """Print a line if the machine was too busy for measuring."""
    if noise.busy:
        print(f"\n{noise.reason} Bars are not judged.")


def show_bar(measurement: Measurement, bar: Bar, figure: str = "s") -> None:
    """Print the ratio of a bar, and whether it was reached."""
    from epctx_core.errors import InvalidArgument

    name = f"{bar.ours} / {bar.peer}"
    if figure != "s":
        name += f", {figure}"
    try:
        ratio = measurement.ratio(bar.ours, bar.peer, figure)
    except InvalidArgument as error:
        # A process may need no more memory than it had.
        print(f"\n{name}: no ratio, {error.message}")
        return
    show_ratio(name, ratio, bar.at_most, measurement.noise)


def show_ratio(name: str, ratio: Ratio, at_most: float, noise: Noise) -> None:
    """Print a ratio and whether it is within a bar."""
    print(
        f"\n{name} = **{format_ratio(ratio)}** (bar {at_most:g}: "
        f"{judge_bar(ratio, at_most, noise)})"
    )


def show_worst(name: str, found: Sequence[tuple[Ratio, Noise]], at_most: float) -> None:
    """Print the largest of some ratios, each with the noise of its measurement."""
    # A busy machine may have hidden that another one is the worst.
    noise = max((noise for _, noise in found), key=lambda noise: noise.share)
    show_noise(noise)
    worst = max((ratio for ratio, _ in found), key=lambda ratio: ratio.estimate)
    show_ratio(name, worst, at_most, noise)


def judge_bar(ratio: Ratio, at_most: float, noise: Noise) -> str:
    """Return a verdict: `reached` or `MISSED` where the whole interval says so."""
    if noise.busy:
        return "not judged, the machine is busy"

    if ratio.high <= at_most:
        return "reached"
    return "MISSED" if ratio.low > at_most else "undecided, measure more turns"


def format_ratio(ratio: Ratio) -> str:
    """Return a ratio with its interval, such as `0.218 (0.21 to 0.226)`."""
    if ratio.pairs == 1:
        return f"{ratio.estimate:.3g} (one pair)"
    return f"{ratio.estimate:.3g} ({ratio.low:.3g} to {ratio.high:.3g})"


def _format_figure(key: str, samples: Sequence[float] | None) -> str:
    if samples is None:
        return ""
    if key in {"ratio", "control"}:
        return format_ratio(combine_processes(samples))
    value = statistics.median(samples)
    if key.endswith("bytes"):
        return f"{value / 2**20:,.1f} MiB"
    return f"{value:.4g}"
