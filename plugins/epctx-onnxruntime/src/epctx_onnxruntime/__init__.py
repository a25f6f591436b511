"""onnxruntime for epctx: the engine on its CPU kernels, its offline optimiser and its
EPs; and a module with every public name of onnxruntime.

`import epctx_onnxruntime as onnxruntime` is all that a host changes: sessions,
compiling, devices and EPs are those of epctx, everything else is onnxruntime's own.
`drop_in.names` says which name is which, and why. Everything is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxruntime import *

    from epctx_core import (
        ExecutionMode,
        GraphOptimizationLevel,
        ModelMetadata,
        NodeArg,
        OrtCompileApiFlags,
        OrtEpAssignedNode,
        OrtEpAssignedSubgraph,
        OrtEpContextData,
        OrtEpContextDataBuffer,
        OrtExternalInitializerInfo,
        get_available_providers,
        set_seed,
    )
    from epctx_onnxruntime.drop_in.binding import IOBinding
    from epctx_onnxruntime.drop_in.devices import (
        OrtEpDevice,
        OrtHardwareDevice,
        get_all_providers,
        get_ep_devices,
        register_execution_provider_library,
        unregister_execution_provider_library,
    )
    from epctx_onnxruntime.drop_in.information import (
        get_build_info,
        print_debug_info,
        set_default_logger_callback,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_global_thread_pool_sizes,
    )
    from epctx_onnxruntime.drop_in.options import RunOptions, SessionOptions
    from epctx_onnxruntime.drop_in.packages import (
        ModelPackageComponentContext,
        ModelPackageContext,
        ModelPackageOptions,
    )
    from epctx_onnxruntime.drop_in.sessions import InferenceSession, ModelCompiler
    from epctx_onnxruntime.drop_in.substitution import install, uninstall


def __getattr__(name: str) -> Any:
    from importlib import import_module

    from epctx_onnxruntime.drop_in.names import OURS, SUBPACKAGES

    if name.startswith("__") and name not in {"__version__", "__author__", "__all__"}:
        raise AttributeError(name)
    if name == "__all__":
        return [each for each in __dir__() if not each.startswith("_")]
    from epctx_onnxruntime.real import onnxruntime

    if name in SUBPACKAGES:
        # An error of onnxruntime's for what is not imported there either.
        getattr(onnxruntime, name)
        return import_module(f"{__name__}.{name}")
    home = next((module for module, names in OURS.items() if name in names), None)
    found = getattr(onnxruntime if home is None else import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    from epctx_onnxruntime.drop_in.names import OURS
    from epctx_onnxruntime.real import onnxruntime

    ours = [
        name
        for module, names in OURS.items()
        # onnxruntime 1.31 has no packages of models.
        if not module.endswith(".packages") or hasattr(onnxruntime, names[0])
        for name in names
    ]
    return sorted({*globals(), *ours, *dir(onnxruntime)})
