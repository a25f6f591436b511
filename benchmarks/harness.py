"""How the benchmarks measure: fresh processes, peers in turn within one run, medians,
ratios.

A benchmark is one script that calls itself: without arguments it is the parent and
prints a table, with arguments it is a child that measures one thing and prints it with
`report`.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RUNS = 5
DATA = Path(__file__).parent / "data"
"""Where benchmarks keep the models they make; not in the repository."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A ratio to reach: ours over a peer's."""

    ours: str
    peer: str
    at_most: float


def report(**figures: float) -> None:
    """Print a child's figures: seconds, bytes or counts by name."""
    print(json.dumps(figures))


def seconds(work: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_memory() -> int:
    """Return this process's largest resident size in bytes; ru_maxrss would count the
    parent's, too.
    """
    line = next(
        li
        for li in Path("/proc/self/status").read_text().splitlines()
        if li.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


def resident_memory() -> int:
    """Return this process's resident size in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measure(
    script: str, children: Mapping[str, Sequence[str]], runs: int = RUNS
) -> dict[str, dict[str, float]]:
    """Run each child `runs` times in fresh processes, in turn; return the median of
    each figure.

    Args:
        script: the benchmark's own path.
        children: name to the arguments that make the script measure it.
        runs: how often.
    """
    collected: dict[str, list[dict[str, float]]] = {name: [] for name in children}
    for _ in range(runs):
        for name, arguments in children.items():
            output = subprocess.check_output(
                [sys.executable, script, *arguments], text=True
            )
            # Libraries of vendors print when a process ends.
            collected[name].append(
                json.loads(next(filter(_is_report, reversed(output.splitlines()))))
            )
    return {
        name: {
            key: statistics.median(figures[key] for figures in results)
            for key in results[0]
        }
        for name, results in collected.items()
    }


def _is_report(line: str) -> bool:
    return line.startswith("{")


def show(
    title: str,
    medians: Mapping[str, Mapping[str, float]],
    bars: Sequence[Bar] = (),
    figure: str = "s",
) -> None:
    """Print medians and what became of the bars, as rows of a Markdown table."""
    print(f"\n### {title}\n")
    names = list(dict.fromkeys(key for figures in medians.values() for key in figures))
    print("| | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for name, figures in medians.items():
        print(
            f"| {name} | "
            + " | ".join(_shown(key, figures.get(key)) for key in names)
            + " |"
        )
    for bar in bars:
        ratio = medians[bar.ours][figure] / medians[bar.peer][figure]
        verdict = "reached" if ratio <= bar.at_most else "MISSED"
        print(
            f"\n{bar.ours} / {bar.peer} = **{ratio:.3g}** (bar {bar.at_most:g}: "
            f"{verdict})"
        )


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return ""
    if key.endswith("bytes"):
        return f"{value / 2**20:,.1f} MiB"
    return f"{value:.4g}"
