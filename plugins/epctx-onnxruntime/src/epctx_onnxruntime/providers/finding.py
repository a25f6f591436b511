"""Finder of the EPs of onnxruntime's wheels, which each discovery of EPs calls: what
reads wheels is imported only where there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

BUILDS = {
    "onnxruntime": ("CoreMLExecutionProvider",) if sys.platform == "darwin" else (),
    "onnxruntime-directml": ("DmlExecutionProvider",),
    "onnxruntime-gpu": ("TensorrtExecutionProvider", "CUDAExecutionProvider"),
    "onnxruntime-migraphx": ("MIGraphXExecutionProvider",),
    "onnxruntime-openvino": ("OpenVINOExecutionProvider",),
    "onnxruntime-rocm": ("MIGraphXExecutionProvider", "ROCMExecutionProvider"),
    "onnxruntime-webgpu": ("WebGpuExecutionProvider",),
}
"""EPs inside each build of onnxruntime, beside the CPU EP."""


def find_eps(folders: Sequence[str]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the EPs of the wheels in some folders; see `wheels.list_eps`."""
    builds = [name.replace("-", "[-_.]") for name, eps in BUILDS.items() if eps]
    spellings = "onnxruntime[-_.]ep[-_.]*", *builds
    if infos := [info for each in spellings for info in find_infos(folders, each)]:
        from epctx_onnxruntime.providers.wheels import list_eps

        yield from list_eps(infos, BUILDS)


def find_infos(folders: Sequence[str], spelt: str) -> Iterator[Path]:
    """Yield the metadata folders of distributions whose names match.

    By the names of those folders, which pip makes of the distributions': reading the
    metadata of everything that is installed would take far longer.
    """
    for folder in dict.fromkeys(folders):
        yield from sorted(Path(folder or ".").glob(f"{spelt}-*.dist-info"))
