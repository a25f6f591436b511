"""Tables of a report: a model's columns side by side, for terminals and Markdown."""

from __future__ import annotations

import html
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from epctx_bench.units import format_bytes, format_number, format_seconds
from epctx_core.errors import one_line

if TYPE_CHECKING:
    from epctx_bench.columns import ColumnReport, Row

_NONE = "-"
_LABELS = {
    "compile": "compile",
    "load_cold": "load, cold",
    "load_warm": "load, warm",
    "first_result": "first result",
    "first_result_from_start": "from process start",
    "memory": "peak memory",
}
_FACTS = (
    ("cpu_seconds", "  CPU time", format_seconds),
    ("peak_bytes", "  peak memory", format_bytes),
    ("bytes_written", "  written", format_bytes),
    ("p90", "  90 % within", format_seconds),
    ("p99", "  99 % within", format_seconds),
    ("throughput", "  results a second", format_number),
)
"""Facts below the samples of a row, with their labels and forms."""
Key: TypeAlias = "tuple[str, str]"
"""Name of a row, and label of one of its lines."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table of one model.

    Attributes:
        title: the line above it.
        header: the headings of the columns; that of the labels is empty.
        rows: a label and a cell for each column.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_markdown(self) -> str:
        """Return the table in Markdown, below a heading."""
        numbers = ["---:"] * (len(self.header) - 1)
        lines = [f"### {self.title}", ""]
        for cells in (self.header, ["---", *numbers], *self.rows):
            escaped = [cell.strip().replace("|", "\\|") for cell in cells]
            lines.append(f"| {' | '.join(escaped)} |")
        return "\n".join(lines)

    def to_html(self) -> str:
        """Return the table in HTML, below its title; its texts are escaped."""
        lines = [f"<p>{html.escape(self.title)}</p>", "<table>"]
        tag = "th"
        for cells in (self.header, *self.rows):
            line = ""
            for cell in cells:
                line += f"<{tag}>{html.escape(cell)}</{tag}>"
            lines.append(f"<tr>{line}</tr>")
            tag = "td"
        return "\n".join([*lines, "</table>"])


def make_table(columns: Sequence[ColumnReport]) -> Table:
    """Return the table of one model's columns; those with an error are left out."""
    shown = [column for column in columns if column.rows]
    cells = [_make_cells(column) for column in shown]
    # The column with most lines gives the order: that of onnxruntime has no compile.
    keys = dict.fromkeys(chain(*sorted(cells, key=len, reverse=True)))
    turns = max(
        (len(row.samples) for column in shown for row in column.rows.values()),
        default=0,
    )
    word = "turn" if turns == 1 else "turns"
    model = one_line(str(columns[0].column.model))
    return Table(
        title=f"{model}, {turns:,} {word}",
        header=["", *(column.column.heading for column in shown)],
        rows=[[key[1], *(each.get(key, _NONE) for each in cells)] for key in keys],
    )


def _make_cells(column: ColumnReport) -> dict[Key, str]:
    """Return the cells of a column by their keys, in order."""
    cells: dict[Key, str] = {}
    for name, row in column.rows.items():
        label = _LABELS.get(name) or _label_run(row)
        cells[name, label] = format_samples(row)
        for fact, label, form in _FACTS:
            if fact in row.facts:
                cells[name, label] = form(row.facts[fact])
    return cells


def _label_run(row: Row) -> str:
    """Return the label of steady runs."""
    label = "run"
    if row.facts["threads"] > 1:
        label += f", {row.facts['threads']} threads"
    if row.facts.get("batch", 1) > 1:
        label += f", batch {row.facts['batch']}"
    return label


def format_samples(row: Row) -> str:
    """Return the median of samples, and their relative standard deviation; one sample
    has none.
    """
    form = format_bytes if row.unit == "bytes" else format_seconds
    middle = form(statistics.median(row.samples))
    if len(row.samples) == 1:
        return middle

    spread = statistics.stdev(row.samples) / statistics.mean(row.samples)
    return f"{middle} ±{spread:.0%}"
