"""The table of differences in `docs/differences-from-onnxruntime.md`, row by row."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "differences-from-onnxruntime.md"


def listed_matters() -> list[str]:
    """Return the second column of the document's first table, which names each
    difference.
    """
    lines = (
        DOCUMENT.read_text("utf-8").split("| entries | matter |")[1].splitlines()[2:]
    )
    rows = [line for line in lines[: lines.index("")] if line.startswith("|")]
    return [re.split(r"(?<!\\)\|", row)[2].strip() for row in rows]
