"""Names of what is written: the context model, its binaries; and which names cannot be. In one place, by design."""

from __future__ import annotations

import os
import re
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
