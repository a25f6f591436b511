"""State of installed distributions: two installations whose EPs may compile differently have different states.

Reads metadata and times of files; imports no plugin.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_CODE = (".py", ".so", ".pyd", ".dll", ".dylib")


def installed_states(distributions: Iterable[str], *, besides: Iterable[str] = ()) -> dict[str, str]:
    """Return the states of distributions and of their installed requirements.

    Requirements of their own extras are included: an EP's compiler often is one. A name that is not installed is
    left out.

    Args:
        distributions: their names.
        besides: names to leave out, with requirements of theirs alone.

    Returns:
        The states by normalised name: the version; for an editable installation also the time of the newest change
        to its code and its packages' data.
    """
    states: dict[str, str] = {}
    left_out = frozenset(map(_normalise, besides))
    waiting = [(_normalise(name), True) for name in distributions]
    while waiting:
        name, with_extras = waiting.pop()
        if name in states or name in left_out:
            continue
        state, required, of_extras = _find_installed(name)
        if state:
            states[name] = state
            waiting += [(other, False) for other in (required + of_extras if with_extras else required)]
    return states


@cache
def _find_installed(name: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return state, requirements and those of extras; cached, since imported code does not change either."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return "", (), ()
    folder = _editable_folder(found)
    try:
        version, requires = str(found.version), found.requires or ()
    except (KeyError, OSError, TypeError, ValueError):  # versions of the library raise differently
        return "unreadable metadata", (), ()
    state = f"{version}, edited {newest_change(folder)}" if folder is not None else version
    required = [(match[1], "extra" in text) for text in requires if (match := _NAME.match(text))]
    always = tuple(_normalise(other) for other, of_extra in required if not of_extra)
    return state, always, tuple(_normalise(other) for other, of_extra in required if of_extra)


def _editable_folder(found: Distribution) -> Path | None:
    """Return the folder of an editable installation's code (PEP 610), or None."""
    try:
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        url = urlsplit(origin["url"]) if origin.get("dir_info", {}).get("editable") else None
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return None
    if url is None or url.scheme != "file":
        return None
    folder = Path(url2pathname(url.path))
    return folder / "src" if (folder / "src").is_dir() else folder


def _normalise(name: str) -> str:
    """Return a distribution's normalised name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def newest_change(path: Path) -> str:
    """Return the newest time of change and the number of files of packages: code and data.

    Cached, since imported code does not change either.

    Args:
        path: a module, or a folder; hidden folders and virtual environments in it are left out.
    """
    times = [os.stat(path).st_mtime_ns] if path.is_file() else []  # noqa: PTH116 - one call
    packages: set[str] = set()
    for folder, folders, files in os.walk(path):
        folders[:] = [f for f in folders if f[0] != "." and f != "__pycache__"]
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        if "__init__.py" in files or os.path.dirname(folder) in packages:  # noqa: PTH120 - as walk gives it
            packages.add(folder)
        # Other files in a package are its data: rules, tables, binaries of a compiler.
        counted = [name for name in files if folder in packages or name.endswith(_CODE)]
        times += [os.lstat(f"{folder}{os.sep}{name}").st_mtime_ns for name in counted]
    return f"{max(times, default=0)}/{len(times)}"
