"""Names of what is written: the context model, its binaries. In one place, by design."""

from __future__ import annotations

import os
from pathlib import Path


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


def is_folder_name(path: str | os.PathLike[str]) -> bool:
    """Whether an output path can only mean a folder: it ends in a separator or names one that exists."""
    text = os.fspath(path)
    return text.endswith((os.sep, "/")) or Path(text).is_dir()
