"""Files at the paths that a person names, which are none that a tool wrote: to wait for,
without end, larger than memory, nested deeper than a parser's stack.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(4 << 40)


STRANGE: Mapping[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "4 TiB": _sparse,
    "deep": lambda path: path.write_bytes(b"[" * 1_000_000),
}
"""Functions that make one at a path, by what it is."""
