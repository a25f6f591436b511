"""Numbers with units, in three digits."""

from __future__ import annotations

_DIGITS = 3
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


def format_seconds(seconds: float) -> str:
    """Return a time such as `12.3 ms`."""
    for scale, unit in _TIMES:
        if seconds >= scale:
            return f"{format_number(seconds / scale)} {unit}"
    return f"{format_number(seconds * 1e6)} us"


def format_bytes(count: float) -> str:
    """Return a size such as `1.50 MiB`."""
    for scale, unit in _SIZES:
        if count >= scale:
            return f"{format_number(count / scale)} {unit}"
    return "0 bytes"


def format_number(number: float) -> str:
    """Return a number in three digits; all digits before the point stay."""
    whole = len(str(int(number)))
    return f"{number:,.{max(0, _DIGITS - whole)}f}"
