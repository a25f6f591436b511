"""Names of ONNX Runtime's Python API that epctx does not have, or has without effect, each with the reason.

A host that moves over from onnxruntime hears of each on its first use: nothing is swallowed. What changes no result
is accepted and logged once. `docs/differences-from-onnxruntime.md` shows the tables; a test checks both against the
installed onnxruntime.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from epctx_core.errors import InvalidArgument, suggestion

_MEMORY = "memory of runs belongs to onnxruntime and to the EPs; there is no arena or pattern to switch"
_THREADS = "each prepared piece has the threads that intra_op_num_threads and its size call for"
_PROFILE = "steps are not profiled"
_LOG = "logging is Python's: the logger 'epctx' and its levels"
_DEVICES = "EPs are chosen by name and not by device; use add_provider"
_BINDING = "values are numpy arrays in the memory of this process; use run"
_ORDER = "steps run in the model's order of dependence"
_SAME = "engines are not switched; the CPU EP computes as onnxruntime does"
_CAPTURE = "there are no captured graphs"
_TUNING = "no EP tunes itself through the core"
_PACKAGE = "packages of several models are not read; a context model and its files travel as CompileReport.required_files says"
_LIBRARY = "EPs are Python plugins, found by their entry points; see epctx_core.plugins() and register_execution_provider"
_INSIDE = "it belongs to the onnxruntime package itself"
_ADAPTER = "LoRA adapters are not applied to what an EP compiled"

UNSUPPORTED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "SessionOptions": MappingProxyType(
            {
                "add_external_initializers_from_files_in_memory": "files of weights are mapped from a folder"
                " ('session.model_external_initializers_file_folder_path'); use add_external_initializers for values",
                "add_provider_for_devices": _DEVICES,
                "enable_profiling": _PROFILE,
                "execution_order": _ORDER,
                "optimized_model_filepath": "use ModelCompiler with a graph_optimization_level to write a model",
                "profile_file_prefix": _PROFILE,
                "register_custom_ops_library": "operators of a library's own are an EP's business: write a plugin",
                "set_provider_selection_policy": _DEVICES,
                "set_provider_selection_policy_delegate": _DEVICES,
            }
        ),
        "RunOptions": MappingProxyType(
            {
                "add_active_adapter": _ADAPTER,
            }
        ),
        "InferenceSession": MappingProxyType(
            {
                "create_ortvalue_from_shape_and_type": _BINDING,
                "end_profiling": _PROFILE,
                "get_input_epdevices": _DEVICES,
                "get_input_memory_infos": _BINDING,
                "get_output_memory_infos": _BINDING,
                "get_profiling_start_time_ns": _PROFILE,
                "get_tuning_results": _TUNING,
                "io_binding": _BINDING,
                "release_captured_graph": _CAPTURE,
                "run_with_iobinding": _BINDING,
                "run_with_ort_values": _BINDING,
                "run_with_ortvaluevector": _BINDING,
                "set_tuning_results": _TUNING,
            }
        ),
        "onnxruntime": MappingProxyType(
            {
                "AdapterFormat": _ADAPTER,
                "ExecutionOrder": _ORDER,
                "IOBinding": _BINDING,
                "LoraAdapter": _ADAPTER,
                "ModelPackage": _PACKAGE,
                "ModelPackageComponentContext": _PACKAGE,
                "ModelPackageContext": _PACKAGE,
                "ModelPackageOptions": _PACKAGE,
                "ModelPackageWriteMode": _PACKAGE,
                "OrtAllocatorType": _MEMORY,
                "OrtArenaCfg": _MEMORY,
                "OrtDevice": _BINDING,
                "OrtDeviceMemoryType": _BINDING,
                "OrtDeviceVendorId": _DEVICES,
                "OrtEpDevice": _DEVICES,
                "OrtExecutionProviderDevicePolicy": _DEVICES,
                "OrtHardwareDevice": _DEVICES,
                "OrtHardwareDeviceType": _DEVICES,
                "OrtMemType": _MEMORY,
                "OrtMemoryInfo": _MEMORY,
                "OrtMemoryInfoDeviceType": _MEMORY,
                "OrtSparseFormat": _BINDING,
                "OrtSyncStream": _DEVICES,
                "OrtValue": _BINDING,
                "SessionIOBinding": _BINDING,
                "SparseTensor": _BINDING,
                "capi": _INSIDE,
                "contextlib": _INSIDE,
                "copy_tensors": _BINDING,
                "create_and_register_allocator": _MEMORY,
                "create_and_register_allocator_v2": _MEMORY,
                "cuda_version": _INSIDE,
                "get_build_info": _INSIDE,
                "get_ep_devices": _DEVICES,
                "has_collective_ops": _INSIDE,
                "import_capi_exception": _INSIDE,
                "onnxruntime_validation": _INSIDE,
                "package_name": _INSIDE,
                "preload_dlls": _INSIDE,
                "print_debug_info": "the command epctx doctor prints what is installed and what is wrong with it",
                "register_execution_provider_library": _LIBRARY,
                "set_default_logger_callback": "add a handler to the logger 'epctx'",
                "set_global_thread_pool_sizes": _THREADS,
                "unregister_execution_provider_library": _LIBRARY,
                "version": "epctx_core.__version__ is epctx's version",
            }
        ),
    }
)
"""Class, or the module itself, to name to why epctx does not have it."""

WITHOUT_EFFECT: Mapping[str, Mapping[str, tuple[bool | int | str, str]]] = MappingProxyType(
    {
        "SessionOptions": MappingProxyType(
            {
                "enable_cpu_mem_arena": (True, _MEMORY),
                "enable_mem_pattern": (True, _MEMORY),
                "enable_mem_reuse": (True, _MEMORY),
                "log_verbosity_level": (0, _LOG),
                "logid": ("", _LOG),
                "use_deterministic_compute": (False, _SAME),
                "use_per_session_threads": (True, _THREADS),
            }
        ),
        "RunOptions": MappingProxyType(
            {
                "log_severity_level": (-1, _LOG),
                "log_verbosity_level": (0, _LOG),
                "only_execute_path_to_fetches": (False, "a run computes what all outputs need"),
            }
        ),
    }
)
"""Class to attribute to its default and why another value changes nothing."""

_log = logging.getLogger("epctx.options")
_told: set[str] = set()


def tell_without_effect(what: str, why: str) -> None:
    """Log, once in a process, that something a host asked for is accepted and changes nothing."""
    if what not in _told:
        _told.add(what)
        _log.info("%s is accepted and has no effect: %s.", what, why)


class UnsupportedNameError(InvalidArgument, AttributeError):
    """A name that epctx does not have; an AttributeError too, so that `hasattr` answers."""


class Strict:
    """Base of a host's objects: a name that they do not have is said when it is used, also when it is set."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _no_such_name(type(self), name)

    def __setattr__(self, name: str, value: object) -> None:
        for cls in type(self).__mro__:
            if name in (table := WITHOUT_EFFECT.get(cls.__name__, {})):
                _tell_if_set(f"{cls.__name__}.{name}", value, *table[name])
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            raise _no_such_name(type(self), name) from None


def _tell_if_set(what: str, value: object, default: bool | int | str, why: str) -> None:
    if not isinstance(value, int if isinstance(default, int) else str):
        raise InvalidArgument(f"{what} is a {type(default).__name__}, not {value!r:.80}.")
    if value != default:
        tell_without_effect(what, why)


def unsupported_name(name: str) -> UnsupportedNameError | None:
    """Return the error for a name of module `onnxruntime` that epctx does not have; None if that has none, either."""
    why = UNSUPPORTED["onnxruntime"].get(name)
    return None if why is None else _not_supported(f"onnxruntime.{name}", why)


def _not_supported(what: str, why: str) -> UnsupportedNameError:
    return UnsupportedNameError(
        f"{what} is not supported by epctx: {why}.",
        hint="docs/differences-from-onnxruntime.md lists what else is not.",
    )


def _no_such_name(cls: type, name: str) -> UnsupportedNameError:
    """Return the error for a name that a class does not have."""
    tables = [(c.__name__, UNSUPPORTED[c.__name__]) for c in cls.__mro__ if c.__name__ in UNSUPPORTED]
    for owner, table in tables:
        if name in table:
            return _not_supported(f"{owner}.{name}", table[name])
    known = [n for n in dir(cls) if not n.startswith("_")]
    return UnsupportedNameError(
        f"{cls.__name__} has no attribute {name!r}.{suggestion(name, known)}",
        hint=f"It has: {', '.join(known)}.",
    )
