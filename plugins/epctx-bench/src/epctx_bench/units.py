"""Numbers with units, in three digits."""

from __future__ import annotations

from collections.abc import Sequence

_DIGITS = 3
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SIZES = (
    (1 << 30, "GiB"),
    (1 << 20, "MiB"),
    (1 << 10, "KiB"),
    (1, "bytes"),
)


def format_seconds(seconds: float) -> str:
    """Return a time such as `12.3 ms`."""
    return _format(seconds, _TIMES)


def format_bytes(count: float) -> str:
    """Return a size such as `1.50 MiB`."""
    if not count:
        return "0 bytes"
    return _format(count, _SIZES)


def _format(number: float, units: Sequence[tuple[float, str]]) -> str:
    """Return a number in the largest unit that it reaches, else in the smallest."""
    reached = [each for each in units if number >= each[0]]
    scale, unit = reached[0] if reached else units[-1]
    return f"{format_number(number / scale)} {unit}"


def format_number(number: float) -> str:
    """Return a number in three digits; all digits before the point stay."""
    whole = len(str(int(number)))
    decimals = max(0, _DIGITS - whole)
    return f"{number:,.{decimals}f}"
