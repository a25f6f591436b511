"""JSON out of a model's metadata, decoded only where what becomes of it is bounded. Knows nothing of what it means."""

from __future__ import annotations

import json
from typing import Any

MOST_PARTS = 1 << 23
"""Entries of all lists and objects; each takes 20 to 100 bytes of memory, up to 30 times its text.

A manifest of a hundred thousand payloads, or of a hundred of 10 GiB each, has a quarter of them.
"""


def parse_json(text: str | bytes) -> Any:
    """Return what a text says.

    Raises:
        ValueError: no JSON, or more than `MOST_PARTS`.
        RecursionError: nested too deeply.
    """
    marks: tuple[Any, ...] = (b",", b":", b"[", b"{") if isinstance(text, bytes) else (",", ":", "[", "{")
    if len(text) > MOST_PARTS and sum(map(text.count, marks)) > MOST_PARTS:
        raise ValueError(f"it has more than {MOST_PARTS:,} entries")
    return json.loads(text)
