"""Libraries of EPs in GenAI, which has an onnxruntime of its own: their names there,
and their registration.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from epctx_core import default_registry
from epctx_core.errors import Fail
from epctx_core.ext import import_installed

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider

_NATIVE = {
    "AMDGPUExecutionProvider": "AMDGPU",
    "NvTensorRTRTXExecutionProvider": "NvTensorRtRtx",
    "OpenVINOExecutionProvider": "OpenVINO",
    "QNNExecutionProvider": "QNN",
    "VitisAIExecutionProvider": "VitisAI",
    "WebGpuExecutionProvider": "WebGPU",
}
"""EPs for which GenAI has code, which goes by these names."""
_REGISTERED: set[str] = set()
"""EPs of this process: GenAI takes each library once."""


def import_genai() -> ModuleType:
    """Return `onnxruntime_genai`.

    Raises:
        PackageMissing: it is not installed.
    """
    return import_installed(
        "onnxruntime_genai",
        needed_by="loading a folder of GenAI",
        distribution="onnxruntime-genai",
    )


def load_native(ep: str) -> type[ExecutionProvider] | None:
    """Return the class of an EP that is one of onnxruntime behind epctx's hooks; None
    for another one, which works in GenAI by the library of onnxruntime-ep-epctx.

    Raises:
        InvalidArgument: there is no such EP.
        PluginError: it is broken.
    """
    cls = default_registry.load(default_registry.resolve(ep))
    try:
        from epctx_onnxruntime.providers import OnnxRuntimeProvider
    except ImportError:
        return None
    return cls if issubclass(cls, OnnxRuntimeProvider) else None


def name_for_genai(name: str) -> str:
    """Return the name in `provider_options` for an EP, as hosts name it.

    What GenAI does for an EP of a vendor by its own name, such as sharing the contexts
    of QNN, is for the vendor's library alone.
    """
    ep = default_registry.resolve(name).name
    return _NATIVE.get(ep, ep) if load_native(name) is not None else ep


def name_in_epctx(name: str) -> str:
    """Return the EP name for a name in `provider_options`, where GenAI takes `qnn`,
    `QNN` and `QNNExecutionProvider` for one.
    """
    stem = name.casefold().removesuffix("executionprovider")
    known = (*_NATIVE, *(record.name for record in default_registry.records()))
    stems = {ep.casefold().removesuffix("executionprovider"): ep for ep in known}
    return stems.get(stem, name)


def list_secrets(ep: str) -> set[str]:
    """Return the names of an EP's secret options; none if it is not installed."""
    if not default_registry.find(ep):
        return set()
    cls = default_registry.load(default_registry.resolve(ep))
    return {option.name for option in cls.options if option.secret}


def register(eps: Iterable[str]) -> None:
    """Register the libraries of EPs in GenAI, each once in a process.

    Raises:
        InvalidArgument: an EP is not installed.
        PackageMissing: onnxruntime-genai, or the package that lets it run an EP in
            Python, is not installed.
        Fail: GenAI refuses a library.
    """
    genai = import_genai()
    for name in eps:
        ep = default_registry.resolve(name).name
        if ep in _REGISTERED:
            continue
        native: Any = load_native(name)
        # The bridge goes by the name under which it is registered.
        registration = ep if native is not None else f"epctx.{ep}"
        path = _find_bridge() if native is None else native.library.find_path()
        try:
            genai.register_execution_provider_library(registration, path)
        except Exception as error:
            raise Fail(
                f"onnxruntime-genai does not take the library of {ep}: {error!s:.300}",
                path=path,
            ) from error
        _REGISTERED.add(ep)


def _find_bridge() -> str:
    """Return the path of the library through which an EP in Python runs."""
    bridge = import_installed(
        "onnxruntime_ep_epctx", needed_by="an EP of epctx in onnxruntime-genai"
    )
    path: str = bridge.get_library_path()
    return path
