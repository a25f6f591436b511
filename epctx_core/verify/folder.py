"""What lies beside a model: binaries of its name that no model names."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from epctx_core.context.named_files import models_naming

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_core.verify.subject import Subject

_MOST_LOOKED_AT = 100


def check_folder(subject: Subject) -> None:
    """Note binaries that a compile of this model may have left and that nobody needs."""
    if subject.path is None or not subject.records:
        return
    folder = subject.path.parent
    with suppress(OSError):
        for path in _candidates(folder, subject.path.stem.removesuffix("_ctx")):
            if next(models_naming(folder, path.name), None) is None:
                subject.findings.add(
                    "file-unnamed",
                    f"{path.name!r} lies beside the model, and no model of the folder names it.",
                    hint="It may be left from an earlier compile; nothing here needs it.",
                )


def _candidates(folder: Path, stem: str) -> list[Path]:
    found = [
        path
        for path in folder.iterdir()
        if path.suffix == ".bin" and path.name.startswith(f"{stem}_") and path.is_file()
    ]
    return sorted(found)[:_MOST_LOOKED_AT]
