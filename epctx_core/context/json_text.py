"""JSON out of a model's metadata, decoded only where what becomes of it is bounded. Knows nothing of what it means."""

from __future__ import annotations

import json
from typing import Any

MOST_PARTS = 1 << 23
"""Entries of all lists and objects; each takes 20 to 100 bytes of memory, up to 30 times its text.

A manifest of a hundred thousand payloads, or of a hundred of 10 GiB each, has a quarter of them.
"""


def parse_json(text: str | bytes, most: int | None = None) -> Any:
    """Return what a text says.

    Args:
        text: JSON.
        most: entries that it may have; None for `MOST_PARTS`.

    Raises:
        ValueError: no JSON, or too many entries.
        RecursionError: nested too deeply.
    """
    marks: tuple[Any, ...] = (b",", b":", b"[", b"{") if isinstance(text, bytes) else (",", ":", "[", "{")
    most = MOST_PARTS if most is None else most
    if len(text) > most and sum(map(text.count, marks)) > most:
        raise ValueError(f"it has more than {most:,} entries")
    return json.loads(text)
