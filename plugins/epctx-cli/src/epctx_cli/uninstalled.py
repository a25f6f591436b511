"""Packages of EPs that are in the working folder, and not installed."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_cli.entry_points import EP_GROUP
from epctx_core.ext import read_small_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_SUFFIX = "executionprovider"


def find_uninstalled(name: str) -> str | None:
    """Return the folder of a project that provides an EP, for `pip install`; None if
    there is none.

    The working folder is looked at, and in it the folders `NAME` and `epctx-NAME`,
    without case.
    """
    stem = _shorten(name)
    for folder in _list_folders(stem):
        with suppress(Exception):  # anybody's file, which fails in many ways
            project = tomllib.loads(read_small_file(folder / "pyproject.toml").decode())
            entries = project["project"]["entry-points"][EP_GROUP]
            if any(_shorten(entry) == stem for entry in entries):
                return "." if folder == Path() else f"./{folder.as_posix()}"
    return None


def _list_folders(stem: str) -> Iterator[Path]:
    yield Path()
    with suppress(OSError):
        names = {stem, f"epctx-{stem}"}
        yield from sorted(p for p in Path().iterdir() if p.name.casefold() in names)


def _shorten(name: str) -> str:
    return name.casefold().removesuffix(_SUFFIX)
