"""Sentences that sum up a column."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from epctx_bench.units import format_seconds

if TYPE_CHECKING:
    from epctx_bench.report import ColumnReport

_EQUAL = 0.02
"""Difference up to which two times count as equal."""


def describe_column(column: ColumnReport, peer: ColumnReport | None) -> str:
    """Return a sentence about a column of epctx; empty if it has no rows.

    Args:
        column: the column.
        peer: the column of onnxruntime for the same model, if it has rows.
    """
    if not column.rows:
        return ""
    load = column.rows["load_warm"].samples
    first = column.rows["first_result"].samples
    speeds = []
    if "compile" in column.rows:
        compiling = column.rows["compile"].samples
        speeds.append(f"{describe_speed(compiling, load)} it compiles")
    ending = "."
    if peer is not None and peer.rows:
        speed = describe_speed(peer.rows["load_warm"].samples, load)
        speeds.append(f"{speed} onnxruntime creates its session")
        speed = describe_speed(peer.rows["first_result"].samples, first)
        ending = f", {speed} onnxruntime."
    loads = f"loads in {format_seconds(statistics.median(load))}"
    return (
        f"{column.column.heading} {', '.join([loads, *speeds])}. The first result "
        f"takes {format_seconds(statistics.median(first))}{ending}"
    )


def describe_speed(others: Sequence[float], own: Sequence[float]) -> str:
    """Return how many times faster than others something is, such as `12.3 times
    faster than`: the median over pairs of the same turn.
    """
    ratio = statistics.median(
        other / max(mine, 1e-9) for other, mine in zip(others, own, strict=False)
    )
    if abs(ratio - 1) <= _EQUAL:
        return "as fast as"
    if ratio > 1:
        return f"{ratio:.3g} times faster than"
    return f"{1 / ratio:.3g} times slower than"
