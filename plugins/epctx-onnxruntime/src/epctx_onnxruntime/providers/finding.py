"""Finder of the EPs of onnxruntime's wheels, which each discovery of EPs calls: what
reads wheels is imported only where there is one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

_INFO = ".dist-info"
_OWN = "onnxruntime-ep-epctx"
"""The package that offers EPs of epctx to onnxruntime: they are found without it."""
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

    def has_eps(name: str) -> bool:
        is_wheel = name.startswith("onnxruntime-ep-") and name != _OWN
        return is_wheel or bool(BUILDS.get(name))

    if infos := find_infos(folders, has_eps):
        from epctx_onnxruntime.providers.wheels import list_eps

        yield from list_eps(infos, BUILDS)


def find_infos(folders: Sequence[str], accepts: Callable[[str], bool]) -> list[Path]:
    """Return the metadata folders of distributions of onnxruntime whose names, written
    with hyphens, are accepted.

    By the names of those folders, which pip makes of the distributions': reading the
    metadata of everything that is installed would take far longer.
    """
    infos = []
    # Python looks at texts alone, too, and a text need not be a folder.
    for folder in dict.fromkeys(each for each in folders if isinstance(each, str)):
        with suppress(OSError, ValueError):
            infos += [
                Path(folder, name)
                for name in sorted(os.listdir(folder or "."))  # noqa: PTH208 - there may be very many
                if name.lower().startswith("onnxruntime") and name.endswith(_INFO)
            ]
    return [info for info in infos if accepts(_read_name(info))]


def _read_name(info: Path) -> str:
    name = info.name.removesuffix(_INFO).rpartition("-")[0]
    return re.sub("[-_.]+", "-", name).lower()
