"""Finder of the EPs of onnxruntime's wheels, which each discovery of EPs calls: what
reads wheels is imported only where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

_FOLDERS = "onnxruntime[-_.]ep[-_.]*.dist-info"


def find_eps(folders: Sequence[str]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the EPs of the wheels in some folders; see `wheels.list_eps`."""
    if any(
        True
        for folder in dict.fromkeys(folders)
        for _ in Path(folder or ".").glob(_FOLDERS)
    ):
        from epctx_onnxruntime.providers.wheels import list_eps

        yield from list_eps(folders)
