"""Sentences of a report: its machine, comparisons of each column with its own compile
and with its peer, and notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epctx_bench.columns import EPCTX
from epctx_bench.ratio import describe_ratio, estimate_ratio

if TYPE_CHECKING:
    from epctx_bench.noise import Noise
    from epctx_bench.report import ColumnReport

LEGEND = "Medians of the turns ± standard deviation, without imports."
_COMPARED_WITH_PEER = (
    ("load_warm", "loads", "onnxruntime creates its session"),
    ("first_result", "has its first result", "onnxruntime"),
    ("run", "runs", "onnxruntime"),
)
"""Rows, with what our column does and what the peer does."""


def describe_column(
    column: ColumnReport, peer: ColumnReport | None = None
) -> list[str]:
    """Return sentences about a column of epctx; none if it has no rows.

    Args:
        column: the column.
        peer: the column of onnxruntime for the same model; None without one.
    """
    return [
        f"{column.column.heading} {words}." for words in _compare_rows(column, peer)
    ]


def _compare_rows(column: ColumnReport, peer: ColumnReport | None) -> Iterator[str]:
    """Yield each comparison without its subject."""
    rows = column.rows
    if "compile" in rows:
        # Both are the column's own, of the same turns as well.
        ratio = estimate_ratio(rows["load_warm"].samples, rows["compile"].samples)
        yield describe_ratio(ratio, "loads", "it compiles")

    peer_rows = peer.rows if peer is not None else {}
    for row, ours, peers in _COMPARED_WITH_PEER:
        if row in rows and row in peer_rows:
            # A side that failed in a later turn has no rows, so all samples are pairs.
            ratio = estimate_ratio(rows[row].samples, peer_rows[row].samples)
            yield describe_ratio(ratio, ours, peers)


def describe_machine(machine: Mapping[str, Any]) -> list[str]:
    """Return a line about the processor, and one about versions."""
    cores = machine["cores"]
    versions = ", ".join(
        f"{name} {machine['versions'][name]}"
        for name in ("epctx-core", "onnxruntime")
        if name in machine["versions"]
    )
    return [
        f"{machine['cpu']}, {cores:,} core{'' if cores == 1 else 's'}",
        f"Python {machine['python']}, {versions}",
    ]


def describe_columns(columns: Sequence[ColumnReport], noise: Noise) -> Iterator[str]:
    """Yield the sentences about all columns of one model."""
    peers = {column.name: column for column in columns}
    for column in columns:
        # Ratios of a busy machine would be believed.
        if column.column.engine == EPCTX and not noise.busy:
            yield from describe_column(column, peers.get(column.peer or ""))
    yield from _list_notes(columns)


def _list_notes(columns: Sequence[ColumnReport]) -> Iterator[str]:
    """Yield each note with the columns that it is about."""
    headings: dict[str, list[str]] = {}
    for column in columns:
        for note in column.notes:
            headings.setdefault(note, []).append(column.column.heading)

    for note, names in headings.items():
        about = "" if len(names) == len(columns) else f"{', '.join(names)}: "
        yield f"Note: {about}{note}."
