"""Names of what is written: the context model, its binaries; and which names cannot be. In one place, by design."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Container
from pathlib import Path

_DRIVE = re.compile(r"[A-Za-z]:" if os.name == "nt" else r"[A-Za-z]:[\\/]")
"""Elsewhere than on Windows, a colon is a character like any other, unless a path follows it."""
_PAYLOAD_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def context_model_path(model: Path) -> Path:
    """Return the default output: the input's name with its last extension replaced by `_ctx.onnx`."""
    return model.with_name(f"{model.stem}_ctx.onnx")


def binary_name(output: Path, suffix: str, name: str | None = None) -> str:
    """Return `[model name]_[ep].bin`; the model name is the output's stem without one trailing `_ctx`.

    Args:
        output: the context model's path.
        suffix: the EP as its vendor spells it.
        name: the EP's name for a further payload of one model.
    """
    stem = output.stem.removesuffix("_ctx")
    return f"{stem}_{suffix}{f'_{name}' if name else ''}.bin"


def free_name(make: Callable[[str | None], str], name: str | None, taken: Container[str]) -> str:
    """Return a binary's name that no other has, numbered if it must be.

    Args:
        make: makes a file's name from the payload's.
        name: the payload's, as far as it has one.
        taken: what others have, without upper case: folders that do not tell cases apart are common enough.
    """
    numbered = (name if not n else f"{name}_{n}" if name else str(n) for n in itertools.count())
    return next(free for free in map(make, numbered) if free.casefold() not in taken)


def is_plain_name(name: object) -> bool:
    """Whether a name is that of a file, without any folder."""
    return (
        isinstance(name, str)
        and name not in {"", ".", ".."}
        and not set(name) & {"/", "\\", "\0"}
        and not has_drive(name)
    )


def is_payload_name(name: object) -> bool:
    """Whether an EP may give a payload this name: it becomes part of a file's name."""
    return isinstance(name, str) and _PAYLOAD_NAME.fullmatch(name) is not None


def has_drive(name: str) -> bool:
    """Whether a name begins with a drive, such as `C:/` (on Windows also `C:`)."""
    return _DRIVE.match(name) is not None


def is_folder_name(path: str | os.PathLike[str]) -> bool:
    """Whether an output path can only mean a folder: it ends in a separator or names one that exists."""
    text = os.fspath(path)
    return text.endswith((os.sep, "/")) or os.path.isdir(text)  # noqa: PTH112 - Path.is_dir raises for over-long names
