"""Work on the files of models: merging, extracting, embedding, externalizing, comparing
and sealing.

Owns how models and the files that they name are put together and taken apart, without
reading weights; `epctx_core` compiles, loads, verifies and publishes. Names are
imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctx_files.bundle import FilesReport, WrittenFile
    from epctx_files.difference import Difference, DiffReport, diff
    from epctx_files.embedding import embed, externalize
    from epctx_files.extraction import extract
    from epctx_files.folders import (
        FolderReport,
        SealedFolder,
        seal_folder,
        verify_folder,
    )
    from epctx_files.merging import merge
    from epctx_files.sealing import SealReport, seal_model

__all__ = [
    "DiffReport",
    "Difference",
    "FilesReport",
    "FolderReport",
    "SealReport",
    "SealedFolder",
    "WrittenFile",
    "diff",
    "embed",
    "externalize",
    "extract",
    "merge",
    "seal_folder",
    "seal_model",
    "verify_folder",
]

_HOME = {
    "FilesReport": "bundle",
    "WrittenFile": "bundle",
    "DiffReport": "difference",
    "Difference": "difference",
    "diff": "difference",
    "embed": "embedding",
    "externalize": "embedding",
    "extract": "extraction",
    "FolderReport": "folders",
    "SealedFolder": "folders",
    "seal_folder": "folders",
    "verify_folder": "folders",
    "merge": "merging",
    "SealReport": "sealing",
    "seal_model": "sealing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
