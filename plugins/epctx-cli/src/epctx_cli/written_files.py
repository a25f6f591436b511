"""Files that commands write."""

from __future__ import annotations

from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Write a file in one step.

    Raises:
        Fail: it cannot be written.
    """
    # Few commands write one.
    from epctx_core.ext import Publication

    with Publication(path.parent) as publication:
        publication.create(path.name).write(content)
        publication.commit([path.name])
