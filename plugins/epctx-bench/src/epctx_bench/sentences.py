"""Sentences that compare a column with its own compile and with its peer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from epctx_bench.ratio import describe_ratio, estimate_ratio

if TYPE_CHECKING:
    from epctx_bench.report import ColumnReport

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
