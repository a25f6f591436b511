"""EPs that errors and the start page name: one to try, and one that is not installed
yet.

Reads metadata and `pyproject.toml` only; imports no plugin.
"""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from importlib_metadata import distribution

from epctx_cli.entry_points import EP_GROUP
from epctx_core.ext import known_ep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from epctx_core import PluginRecord

_SUFFIX = "ExecutionProvider"


def choose_example() -> str | None:
    """Return the short name of an EP for an example of a command, such as `QNN`; None
    if no usable one is installed.

    A name that onnxruntime knows goes before others, then a package before one that is
    installed from its sources (most likely the user's own), then the alphabet decides.
    EPs that are known to be broken, disabled or unavailable are left out; none is
    imported to find out.
    """
    from epctx_core import plugins

    record = min(
        (each for each in plugins() if each.usable or each.undecided),
        key=lambda each: (known_ep(each.name) is None, _is_editable(each), each.name),
        default=None,
    )
    return record.name.removesuffix(_SUFFIX) if record else None


def _is_editable(record: PluginRecord) -> bool:
    """Return whether a package is installed from its sources, or is a class without
    one.
    """
    with suppress(Exception):  # metadata of other packages fails in many ways
        text = distribution(str(record.distribution)).read_text("direct_url.json")
        origin = json.loads(text or "{}")
        return bool(origin.get("dir_info", {}).get("editable"))
    return True


def find_uninstalled(name: str) -> str | None:
    """Return the folder of a project that provides an EP, for `pip install`; None if
    there is none.

    The working folder is looked at, and in it the folders `NAME` and `epctx-NAME`,
    without case.
    """
    stem = _shorten(name)
    for folder in _list_folders(stem):
        # A folder that cannot be read, or a file that is no project, is no answer.
        with suppress(OSError, ValueError, LookupError, TypeError):
            project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
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
    return name.casefold().removesuffix(_SUFFIX.casefold())
