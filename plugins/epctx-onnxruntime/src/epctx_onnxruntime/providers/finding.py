"""Finder of the EPs of onnxruntime's wheels, which each discovery of EPs calls: what
reads wheels is imported only where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path


def find_eps(folders: Sequence[str]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the EPs of the wheels in some folders; see `wheels.list_eps`."""
    if infos := list(find_infos(folders, "onnxruntime[-_.]ep[-_.]*")):
        from epctx_onnxruntime.providers.wheels import list_eps

        yield from list_eps(infos)


def find_infos(folders: Sequence[str], spelt: str) -> Iterator[Path]:
    """Yield the metadata folders of distributions whose names match.

    By the names of those folders, which pip makes of the distributions': reading the
    metadata of everything that is installed would take far longer.
    """
    for folder in dict.fromkeys(folders):
        yield from sorted(Path(folder or ".").glob(f"{spelt}-*.dist-info"))
