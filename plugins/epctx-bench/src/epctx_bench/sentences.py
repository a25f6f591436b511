"""Sentences of a report: its machine, comparisons of each column with its own compile
and with its peer, and notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epctx_bench.columns import EPCTX, ColumnReport
from epctx_bench.ratio import describe_ratio, estimate_ratio

if TYPE_CHECKING:
    from epctx_bench.noise import Noise

LEGEND = (
    "Medians of the turns ± standard deviation, without imports except from process "
    "start."
)
_COMPARED_WITH_PEER = (
    ("load_warm", "loads", "onnxruntime creates its session"),
    ("first_result", "has its first result, without imports,", "onnxruntime"),
    (
        "first_result_from_start",
        "has its first result, from process start with imports,",
        "onnxruntime",
    ),
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
    rows = column.rows
    peer_rows = peer.rows if peer is not None else {}
    compared = [
        # Both are the column's own, of the same turns as well.
        ("load_warm", rows.get("compile"), "loads", "it compiles"),
        *(
            (row, peer_rows.get(row), ours, peers)
            for row, ours, peers in _COMPARED_WITH_PEER
        ),
    ]
    sentences = []
    for row, other, ours, peers in compared:
        if row in rows and other is not None:
            # A side that failed in a later turn has no rows, so all samples are pairs.
            ratio = estimate_ratio(rows[row].samples, other.samples)
            words = describe_ratio(ratio, ours, peers)
            sentences.append(f"{column.column.heading} {words}.")
    return sentences


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
        about = ""
        if len(names) < len(columns):
            about = f"{', '.join(names)}: "
        yield f"Note: {about}{note}."
