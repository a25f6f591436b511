"""Folders of language models for onnxruntime-genai, whose stages are context models.

Owns the configuration of such a folder, and its replacement as a whole; `epctx_core`
compiles and verifies its models, `epctx_cache` keeps them, `epctx_files` ties the
folder together, and onnxruntime-genai runs it. Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctx_genai.building import BuildReport, BuildSettings, build_folder
    from epctx_genai.inspection import Flow, FolderInfo, StageInfo, inspect_folder
    from epctx_genai.loading import load_folder, load_or_compile
    from epctx_genai.measuring import FolderTimes, bench_folders
    from epctx_genai.page import make_page
    from epctx_genai.verification import GenaiFinding, GenaiReport, verify_folder

__all__ = [
    "BuildReport",
    "BuildSettings",
    "Flow",
    "FolderInfo",
    "FolderTimes",
    "GenaiFinding",
    "GenaiReport",
    "StageInfo",
    "bench_folders",
    "build_folder",
    "inspect_folder",
    "load_folder",
    "load_or_compile",
    "make_page",
    "verify_folder",
]

_HOME = {
    "BuildReport": "building",
    "BuildSettings": "building",
    "build_folder": "building",
    "FolderInfo": "inspection",
    "Flow": "inspection",
    "StageInfo": "inspection",
    "inspect_folder": "inspection",
    "load_folder": "loading",
    "load_or_compile": "loading",
    "FolderTimes": "measuring",
    "bench_folders": "measuring",
    "make_page": "page",
    "GenaiFinding": "verification",
    "GenaiReport": "verification",
    "verify_folder": "verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
