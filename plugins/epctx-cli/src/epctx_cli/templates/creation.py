"""Writes a new plugin's folder, whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from epctx_cli.templates.names import PluginNames
from epctx_core import __version__
from epctx_core.errors import Fail
from epctx_core.plugin import PLUGIN_API

_ENDING = ".in"
"""Of every file of the template: none of them is read as what it will be."""
_HIDDEN = "dot-"


@dataclass(frozen=True, kw_only=True)
class NewPlugin:
    """A plugin that was written.

    Attributes:
        names: what its parts are called.
        folder: where it is.
        files: relative to the folder, in order.
    """

    names: PluginNames
    folder: Path
    files: tuple[str, ...]


class _Text(Template):
    """`%%{module}` is replaced: neither Python, shell, TOML nor YAML means anything by it."""

    delimiter = "%%"


def create_plugin(word: str, parent: str | os.PathLike[str] = ".") -> NewPlugin:
    """Write a complete package into a new folder `epctx-<word>`.

    Args:
        word: a name such as `acme`; all others follow from it.
        parent: the folder to make it in; made if need be.

    Raises:
        InvalidArgument: the word cannot name a plugin.
        Fail: the folder exists, or cannot be written.
    """
    names = PluginNames.of(word)
    values = _values(names)
    texts = {
        _path(path, names): _Text(entry.read_text("utf-8")).substitute(values)
        for path, entry in _walk(files("epctx_cli.templates") / "plugin")
    }
    folder = Path(parent) / names.distribution
    _make(folder)
    try:
        for name, text in texts.items():
            _write(folder / name, text)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise _cannot_write(folder, error) from error
        raise
    return NewPlugin(names=names, folder=folder, files=tuple(sorted(texts)))


def _values(names: PluginNames) -> Mapping[str, str]:
    major, minor = __version__.split(".")[:2]
    return {
        "word": names.word,
        "distribution": names.distribution,
        "module": names.module,
        "camel": names.camel,
        "ep": names.ep,
        "provider": names.provider,
        "magic": names.magic,
        "api": str(PLUGIN_API),
        "core": f">={major}.{minor},<{major}.{int(minor) + 1}",
    }


def _walk(folder: Traversable, above: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        path = f"{above}{entry.name}"
        if entry.is_dir():
            yield from _walk(entry, f"{path}/")
        elif path.endswith(_ENDING):
            yield path, entry


def _path(path: str, names: PluginNames) -> str:
    """Return the path of a file of the template in the new folder."""
    shown = re.sub(rf"(^|/){_HIDDEN}", r"\1.", path.removesuffix(_ENDING))
    return shown.replace("__module__", names.module)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise Fail(
            f"{str(folder)!r} exists already.",
            path=folder,
            hint="Nothing was written. Choose another name, another folder (-o), or remove it.",
        ) from None
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    if text.startswith("#!"):
        path.chmod(path.stat().st_mode | 0o111)


def _cannot_write(folder: Path, error: OSError) -> Fail:
    return Fail(
        f"{str(folder)!r} cannot be written: {error.strerror or error}.",
        path=folder,
        hint="Choose another folder with -o.",
    )
