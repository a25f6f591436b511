"""The `openvino` package: imported on first use, without telemetry, with one `Core` for
the process.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino

_TELEMETRY = "openvino_telemetry"
_importing = Lock()


def import_openvino() -> ModuleType:
    """Return the package `openvino`.

    Its import sends an event: `openvino_telemetry` writes into the user's home, opens a
    connection and leaves a thread. `openvino` works without that package, so it does
    not find it while it is imported. If the host has imported `openvino` before,
    nothing is changed.
    """
    with _importing:
        if "openvino" not in sys.modules:
            telemetry = sys.modules.get(_TELEMETRY)
            sys.modules[_TELEMETRY] = None  # type: ignore[assignment] # import's own mark for: cannot be imported
            try:
                import openvino
            finally:
                del sys.modules[_TELEMETRY]
                if telemetry is not None:
                    sys.modules[_TELEMETRY] = telemetry
    import openvino

    package: ModuleType = openvino
    return package


FORKED = (
    "OpenVINO was used before this process was forked, and its threads stayed in the "
    "other one"
)
_used_in: set[int] = set()
"""Processes, by id, that have compiled or imported; a forked child has its parent's."""


@cache
def core() -> openvino.Core:
    """Return the one `Core` of this process.

    The CPU device gives the thread that first compiles a signal stack of its own and
    takes it away when the core ends. When another thread ends it, or two cores end in
    the order in which they began, the thread is left with memory that is gone, and the
    next signal kills the process.
    """
    return import_openvino().Core()


def working_core() -> openvino.Core:
    """Return the core to compile or import with.

    Raises:
        RuntimeError: in a fork of a process that has done so, OpenVINO would wait for
            threads that are not there.
    """
    if is_forked():
        raise RuntimeError(FORKED)
    _used_in.add(os.getpid())
    return core()


def is_forked() -> bool:
    """Return whether this process was forked from one that has compiled or imported."""
    return not _used_in <= {os.getpid()}


@cache
def list_devices() -> tuple[str, ...]:
    """Return the devices that OpenVINO finds on this machine, such as `CPU`, `GPU.0`,
    `NPU`.
    """
    return tuple(core().available_devices)


def read_version() -> str:
    """Return the version of OpenVINO, such as `2026.4.1`."""
    return str(import_openvino().__version__).partition("-")[0]


def shorten(error: Exception) -> str:
    """Return the last line of an error of OpenVINO: those before it name files of its
    sources.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:500] if lines else type(error).__name__


@cache
def read_requirements(device: str) -> str:
    """Return what this machine's OpenVINO says of the payloads that it makes for a
    device.

    OpenVINO says it of a compiled model only, so a tiny one is compiled, once in a
    process. It imports payloads of the same text. Modes such as HETERO have none;
    theirs is made of the version and the device.
    """
    package = import_openvino()
    value = package.op.Parameter(package.Type.f32, package.PartialShape([1]))
    tiny = package.Model([package.opset13.relu(value)], [value], "epctx")
    return requirements_of(working_core().compile_model(tiny, device), device)


def requirements_of(model: openvino.CompiledModel, device: str) -> str:
    """Return the text by which OpenVINO decides whether it imports a compiled model."""
    if "RUNTIME_REQUIREMENTS" in model.get_property("SUPPORTED_PROPERTIES"):
        return str(model.get_property("RUNTIME_REQUIREMENTS"))
    return f"ov={read_version()};device={device}"
