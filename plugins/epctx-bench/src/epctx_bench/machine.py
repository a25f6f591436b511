"""Description of the machine and of the versions that a measurement depends on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("epctx-core", "epctx-bench", "numpy", "onnx", "onnxruntime")


def describe_machine(plugins: Iterable[str]) -> dict[str, Any]:
    """Return processor, cores, system and versions.

    Args:
        plugins: distributions of the EPs.
    """
    return {
        "cpu": _name_processor(),
        "cores": len(os.sched_getaffinity(0)),
        "os": platform.platform(),
        "python": platform.python_version(),
        "versions": _find_versions((*_PACKAGES, *plugins)),
    }


def _name_processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _find_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the version of each distribution that is installed."""
    found = {}
    for name in sorted(set(distributions)):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
