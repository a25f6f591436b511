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
)
Key: TypeAlias = "tuple[str, str]"
"""Name of a row, and label of one of its lines."""
_RUN = "run"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table of one model.

    Attributes:
        header: the headings of the columns; that of the labels is empty.
        rows: a label and a cell for each column.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_markdown(self) -> str:
        """Return the table in Markdown."""
        numbers = ["---:"] * (len(self.header) - 1)
        lines = []
        for cells in (self.header, ["---", *numbers], *self.rows):
            joined = " | ".join(_escape(cells))
            lines.append(f"| {joined} |")
        return "\n".join(lines)

    def to_html(self) -> str:
        """Return the table in HTML; its cells are escaped."""
        lines = ["<table>"]
        for tag, cells in [("th", self.header), *(("td", row) for row in self.rows)]:
            line = ""
            for cell in cells:
                line += f"<{tag}>{html.escape(cell)}</{tag}>"
            lines.append(f"<tr>{line}</tr>")
        return "\n".join([*lines, "</table>"])


def make_title(model: str, columns: Sequence[ColumnReport]) -> str:
    """Return the title of a model's tables."""
    turns = max(
        (len(row.samples) for column in columns for row in column.rows.values()),
        default=0,
    )
    word = "turn" if turns == 1 else "turns"
    return f"{one_line(model)}, {turns:,} {word}"


def make_table(columns: Sequence[ColumnReport]) -> Table:
    """Return the table of one model's columns; those with an error are left out."""
    shown = [column for column in columns if column.rows]
    cells = [_make_cells(column) for column in shown]
    # The column with most lines gives the order: that of onnxruntime has no compile.
    keys = dict.fromkeys(chain(*sorted(cells, key=len, reverse=True)))
    return Table(
        header=["", *(column.column.heading for column in shown)],
        rows=[[key[1], *(each.get(key, _NONE) for each in cells)] for key in keys],
    )


def _make_cells(column: ColumnReport) -> dict[Key, str]:
    """Return the cells of a column by their keys, in order."""
    cells: dict[Key, str] = {}
    for name, row in column.rows.items():
        if name.startswith(_RUN):
            cells |= _make_run_cells(name, row)
            continue
        cells[name, _LABELS[name]] = format_samples(row)
        for fact, label, form in _FACTS:
            if fact in row.facts:
                cells[name, label] = form(row.facts[fact])
    return cells


def _make_run_cells(name: str, row: Row) -> dict[Key, str]:
    label = _RUN
    threads = int(row.facts["threads"])
    if threads > 1:
        label += f", {threads} threads"
    if row.facts.get("batch", 1) != 1:
        label += f", batch {int(row.facts['batch'])}"
    return {
        (name, label): format_samples(row),
        (name, "  90 % within"): format_seconds(row.facts["p90"]),
        (name, "  99 % within"): format_seconds(row.facts["p99"]),
        (name, "  results a second"): format_number(row.facts["throughput"]),
    }


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


def _escape(cells: Sequence[str]) -> list[str]:
    return [cell.strip().replace("|", "\\|") for cell in cells]
