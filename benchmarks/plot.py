"""Plots of reports that `epctx_bench.bench` measured, as SVG.

    python benchmarks/plot.py first-result docs/images/first-result.svg REPORT.json ...
    python benchmarks/plot.py load-time docs/images/load-time.svg REPORT.json ...

`first-result` draws a line for each model: time to the first result of the context
model and of onnxruntime on the source. `load-time` draws load times against nodes, of
models that are called `<name>_<nodes>`. The same reports give the same bytes.

It needs matplotlib: `pip install --group bench-plots`, as `make bench` does.
"""

from __future__ import annotations

import statistics
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_bench.columns import shorten
from epctx_bench.ratio import Ratio, estimate_ratio
from epctx_bench.saved import load_report
from epctx_bench.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, PEER = "#0072B2", "#D55E00"
"""Blue and vermilion of Okabe and Ito, which colour-blind readers tell apart; markers
differ, too.
"""
MARKS = {OURS: "o", PEER: "s"}
OURS_LABEL, PEER_LABEL = "context model, epctx", "source model, onnxruntime on the CPU"
STYLE: dict[Any, Any] = {
    "font.size": 12,
    "font.family": "DejaVu Sans",
    # Text becomes paths: every reader sees the same font.
    "svg.fonttype": "path",
    # Names of the elements would be random.
    "svg.hashsalt": "epctx",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
LINE = 96
"""Characters in a line of the caption."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One measure of a context model and of its source.

    Attributes:
        model: stem of the model's file.
        eps: names of the context model's EPs.
        ours: samples of the context model.
        peer: samples of onnxruntime's session for the source, of the same turns.
        simulated: names of its EPs that are simulated.
    """

    model: str
    eps: Sequence[str]
    ours: Sequence[float]
    peer: Sequence[float]
    simulated: Sequence[str]

    @property
    def ratio(self) -> Ratio:
        """The ratio of our times to the peer's."""
        return estimate_ratio(self.ours, self.peer)


def find_pairs(reports: Sequence[Mapping[str, Any]], row: str) -> list[Pair]:
    """Return a measure of each column of epctx that has a peer.

    Args:
        reports: reports as saved.
        row: name of the measure, such as `load_warm`.
    """
    pairs = []
    for report in reports:
        columns = {column["name"]: column for column in report["columns"]}
        for column in columns.values():
            peer = columns.get(column["peer"])
            if peer is None or row not in column["rows"] or row not in peer["rows"]:
                continue
            pairs.append(
                Pair(
                    model=Path(column["model"]).stem,
                    eps=[shorten(ep) for ep in column["eps"]],
                    ours=column["rows"][row]["samples"],
                    peer=peer["rows"][row]["samples"],
                    simulated=column["simulated"],
                )
            )
    return pairs


def describe_measurement(
    reports: Sequence[Mapping[str, Any]], pairs: Sequence[Pair]
) -> str:
    """Return the caption: simulated EPs, the machine, and whether it was busy."""
    machine = reports[0]["machine"]
    simulated = dict.fromkeys(shorten(ep) for pair in pairs for ep in pair.simulated)
    turns = sorted({len(pair.ours) for pair in pairs})
    word = "turn" if turns == [1] else "turns"
    sentences = [
        f"Median and range of {' or '.join(map(str, turns))} {word} in fresh processes."
    ]
    if simulated:
        sentences.insert(
            0,
            f"EPs ({', '.join(simulated)}) are simulated: they compute on the CPU, and "
            "times on hardware are others.",
        )
    sentences.append(f"{machine['cpu']}, {machine['cores']} cores.")
    noises = [noise for report in reports if (noise := report.get("noise"))]
    if any(noise["busy"] for noise in noises):
        share = max(noise["share"] for noise in noises)
        sentences.append(
            f"The machine was busy: up to {share:.0%} of the time was lost to others."
        )
    return " ".join(sentences)


def draw_first_results(axes: Axes, pairs: Sequence[Pair]) -> None:
    """Draw a line for each model, from one time to the other."""
    for index, pair in enumerate(pairs):
        ours, peer = (statistics.median(each) for each in (pair.ours, pair.peer))
        axes.plot([ours, peer], [index, index], color="#999999", zorder=1)
        for samples, color in ((pair.ours, OURS), (pair.peer, PEER)):
            draw_samples(axes, samples, color, (index, True))
        axes.annotate(
            f"{format_seconds(ours)} and {format_seconds(peer)}: "
            f"{describe_factor(pair.ratio)}",
            ((ours * peer) ** 0.5, index),
            (0, 11),
            textcoords="offset points",
            ha="center",
            fontsize=11,
        )
    axes.set_yticks(
        range(len(pairs)), [f"{pair.model}\n{'+'.join(pair.eps)}" for pair in pairs]
    )
    axes.set_ylim(len(pairs) - 0.4, -0.7)
    axes.set_xscale("log")
    times = [time for pair in pairs for time in (*pair.ours, *pair.peer)]
    # Room for the text above a short line.
    axes.set_xlim(min(times) / 2.5, max(times) * 2.5)
    axes.xaxis.set_major_formatter(lambda value, _: format_seconds(value))
    axes.set_xlabel("time to the first result: load and first run, without imports")


def draw_load_times(axes: Axes, pairs: Sequence[Pair]) -> None:
    """Draw load times against the nodes of the source."""
    ordered = sorted(pairs, key=count_nodes)
    nodes = [count_nodes(pair) for pair in ordered]
    for color, lists in (
        (OURS, [pair.ours for pair in ordered]),
        (PEER, [pair.peer for pair in ordered]),
    ):
        medians = [statistics.median(samples) for samples in lists]
        axes.plot(nodes, medians, color=color)
        for count, samples in zip(nodes, lists, strict=True):
            draw_samples(axes, samples, color, (count, False))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: format_seconds(value))
    axes.set_xlabel("nodes of the source model")
    axes.set_ylabel("time to create the session")
    axes.grid(color="#dddddd")


def draw_samples(
    axes: Axes, samples: Sequence[float], color: str, at: tuple[float, bool]
) -> None:
    """Draw a median and the range around it.

    Args:
        axes: where to draw.
        samples: the samples.
        color: their colour.
        at: the other coordinate, and True if times are horizontal.
    """
    place, horizontal = at
    median = statistics.median(samples)
    ends = [[median - min(samples)], [max(samples) - median]]
    x, y = (median, place) if horizontal else (place, median)
    axes.errorbar(
        [x],
        [y],
        xerr=ends if horizontal else None,
        yerr=None if horizontal else ends,
        fmt=MARKS[color],
        markersize=9,
        color=color,
        capsize=4,
    )


def count_nodes(pair: Pair) -> int:
    """Return the nodes of a model that is called `<name>_<nodes>`."""
    return int(pair.model.rpartition("_")[2])


def describe_factor(ratio: Ratio) -> str:
    """Return how many times faster ours are, with the interval."""
    shown, word = (ratio, "slower")
    if ratio.estimate <= 1:
        shown, word = (ratio.inverse, "faster")
    said = f"{shown.estimate:.2g} times {word}"
    if shown.pairs == 1:
        return f"{said} (one turn)"
    if shown.low <= 1:
        faster = ratio.inverse
        ends = f"{faster.low:.2g} to {faster.high:.2g}"
        return f"no clear difference ({ends} times as fast)"
    return f"{said} ({shown.low:.2g} to {shown.high:.2g})"


KINDS: Mapping[str, tuple[str, Callable[[Axes, Sequence[Pair]], None]]] = {
    "first-result": ("first_result", draw_first_results),
    "load-time": ("load_warm", draw_load_times),
}
"""Each plot to its row of a report, and to what draws it."""


def plot(kind: str, paths: Sequence[Path], target: Path) -> None:
    """Write a plot of saved reports.

    Args:
        kind: `first-result` or `load-time`.
        paths: the reports.
        target: the SVG file.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    row, draw = KINDS[kind]
    reports = [load_report(path) for path in paths]
    pairs = find_pairs(reports, row)
    if not pairs:
        sys.exit(f"no report has {row} of a context model and of onnxruntime.")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.add_subplot()
        draw(axes, pairs)
        figure.legend(
            handles=[
                Line2D([], [], color=color, marker=MARKS[color], label=label)
                for color, label in ((OURS, OURS_LABEL), (PEER, PEER_LABEL))
            ],
            loc="outside upper left",
            ncols=2,
            frameon=False,
        )
        caption = textwrap.fill(describe_measurement(reports, pairs), LINE)
        figure.supxlabel(caption, fontsize=10, x=0.01, ha="left")
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, format="svg", metadata={"Date": None})


def main() -> None:
    """Draw the plot that the arguments name."""
    if len(sys.argv) < 4 or sys.argv[1] not in KINDS:
        sys.exit(f"usage: plot.py {'|'.join(KINDS)} TARGET.svg REPORT.json ...")
    kind, target, *paths = sys.argv[1:]
    plot(kind, [Path(path) for path in paths], Path(target))


if __name__ == "__main__":
    main()
