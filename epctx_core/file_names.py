"""Names of a model's files: those that a model or a host may give, and those that epctx
gives.

The rules are about text; `epctx_core.context.paths` opens what a model names. A name is
relative to the model's folder, with "/" between its parts.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Container
from itertools import count
from pathlib import Path

from epctx_core.errors import InvalidArgument, InvalidGraph

STAGING_PREFIX = ".epctx-"
"""Beginning of the names of staging folders, see `epctx_core.publish`."""
MAX_NAME = 4096
"""Characters of a name in a model."""

_MAX_PART_BYTES = 255
_MAX_WRITTEN_BYTES = 1024
_PAYLOAD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DRIVE = re.compile(r"[A-Za-z]:" if os.name == "nt" else r"[A-Za-z]:[\\/]")
"""On other systems than Windows, a colon is a character like any other, unless a path
follows it.
"""


def check_file_name(name: str, owner: str, node: str | None = None) -> str:
    """Return a name that a model contains, in normal form, if it can stay inside the
    model's folder.

    Args:
        name: as in the model.
        owner: who names it, for the message.
        node: the node or tensor that contains it.

    Raises:
        InvalidGraph: empty, over-long, absolute, with a drive or NUL, or `..` that
            leaves.
    """
    if fault := find_fault(name):
        raise InvalidGraph(
            f"{owner} {name[:200]!r}, which {fault}.",
            node=node,
            hint="A model may only name files in its own folder, relative to it.",
        )
    return os.path.normpath(name)


def find_fault(name: object) -> str:
    """Return why a name is not that of a file inside a folder, in words that follow
    "which"; empty if it is.
    """
    # protobuf gives a text that is not UTF-8 as bytes.
    if not isinstance(name, str):
        return "is not UTF-8"
    if not name:
        return "is an empty name"
    if "\0" in name or len(name) > MAX_NAME:
        return "no file system takes"
    if name.startswith(("/", "\\")) or has_drive(name):
        return "is an absolute path"

    # A backslash separates on Windows alone; the name has to be right on any system.
    normal = {posixpath.normpath(form) for form in (name, name.replace("\\", "/"))}
    if any(form == ".." or form.startswith("../") for form in normal):
        return "leaves the model's folder"
    return "is a folder" if "." in normal or name.endswith(("/", "\\")) else ""


def normalise_path(name: str) -> str:
    """Return a name of a file to write in its normal form: no "." or ".." in it.

    Raises:
        InvalidArgument: see `find_unwritable`.
    """
    if fault := find_unwritable(name):
        raise InvalidArgument(
            f"no file can be published as {name!r:.200}, which {fault}.",
            hint="Use a name relative to the output folder, with / between its parts.",
        )
    return posixpath.normpath(name)


def find_unwritable(name: str) -> str:
    """Return why no file of a name is written, in words that follow "which"; empty if
    one may be.

    What a model may not name is not written, nor what some file system could not hold,
    or what lies in a staging folder.
    """
    if fault := find_fault(name):
        return fault
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return "contains characters that the file system cannot spell"

    longest = max(map(len, encoded.split(b"/")))
    folders = posixpath.normpath(name).lower().split("/")
    faults = {
        "contains a backslash": "\\" in name,
        "is a folder": name.rsplit("/", 1)[-1] in {".", ".."},
        "is too long": len(encoded) > _MAX_WRITTEN_BYTES or longest > _MAX_PART_BYTES,
        f"begins with {STAGING_PREFIX}, which is reserved for staging": any(
            part.startswith(STAGING_PREFIX) for part in folders
        ),
    }
    return next((fault for fault, has_fault in faults.items() if has_fault), "")


def has_drive(name: str) -> bool:
    """Return whether a name begins with a drive, such as `C:/` (on Windows also
    `C:`).
    """
    return _DRIVE.match(name) is not None


def is_plain_name(name: object) -> bool:
    """Return whether a name is that of a file, without any folder."""
    return (
        isinstance(name, str)
        and name not in {"", ".", ".."}
        and not set(name) & {"/", "\\", "\0"}
        and not has_drive(name)
    )


def is_payload_name(name: object) -> bool:
    """Return whether an EP may give a payload this name, which becomes part of a file's
    name.
    """
    return isinstance(name, str) and _PAYLOAD_NAME.fullmatch(name) is not None


def is_utf8(name: str) -> bool:
    """Return whether a model can hold a name."""
    return name.encode(errors="replace").decode() == name


def is_folder_name(path: str | os.PathLike[str]) -> bool:
    """Return whether an output path can only mean a folder: it ends in a separator or
    names an existing one.
    """
    text = os.fspath(path)
    return text.endswith((os.sep, "/")) or os.path.isdir(text)  # noqa: PTH112 - Path.is_dir raises for over-long names


def make_context_model_path(model: Path) -> Path:
    """Return the default output: the input's name with its last extension replaced by
    `_ctx.onnx`.
    """
    return model.with_name(f"{model.stem}_ctx.onnx")


def make_binary_name(output: Path, suffix: str, name: str | None) -> str:
    """Return `[model name]_[ep].bin`; the model name is the output's stem without one
    trailing `_ctx`.

    Args:
        output: the context model's path.
        suffix: the EP as its vendor spells it.
        name: the EP's name for a further payload of one model, or None.
    """
    stem = output.stem.removesuffix("_ctx")
    return f"{stem}_{suffix}{f'_{name}' if name else ''}.bin"


def find_free_name(
    make: Callable[[str | None], str], name: str | None, used: Container[str]
) -> str:
    """Return a binary's name that no other has, numbered if it must be.

    Args:
        make: makes a file's name from the payload's.
        name: the payload's, as far as it has one.
        used: names of others, without upper case: folders that do not tell cases apart
            are common enough.
    """
    numbered = (name if not n else f"{name}_{n}" if name else str(n) for n in count())
    return next(free for free in map(make, numbered) if free.casefold() not in used)


def list_parents(name: str) -> list[str]:
    """Return the sub-folders that a name lies in, outermost first: `a`, `a/b` for
    `a/b/c`.
    """
    parts = name.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]
