"""Base of objects with the attributes of onnxruntime's Python API.

Using or setting an attribute that epctx does not have is an error. One without an
effect is accepted and logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from epctx_core.errors import InvalidArgument, suggestion

MEMORY = "onnxruntime and the EPs manage the memory of runs"
THREADS = (
    "intra_op_num_threads and the size of each group of nodes determine its threads"
)
_LOG = "logging is Python's: the logger 'epctx' and its levels"

WITHOUT_EFFECT: Mapping[str, Mapping[str, tuple[bool | int | str, str]]] = {
    "SessionOptions": {
        "enable_cpu_mem_arena": (True, MEMORY),
        "enable_mem_pattern": (True, MEMORY),
        "enable_mem_reuse": (True, MEMORY),
        "log_verbosity_level": (0, _LOG),
        "logid": ("", _LOG),
        "use_deterministic_compute": (False, "the CPU EP computes as its engine does"),
        "use_per_session_threads": (True, THREADS),
    },
    "RunOptions": {
        "log_severity_level": (-1, _LOG),
        "log_verbosity_level": (0, _LOG),
        "only_execute_path_to_fetches": (False, "a run computes what all outputs need"),
    },
}
"""Class and attribute to its default, and the reason why another value has no
effect.
"""

_REASONS: Mapping[str, str] = {
    "EPs are chosen by name; use `add_provider`": (
        "add_provider_for_devices set_provider_selection_policy "
        "set_provider_selection_policy_delegate OrtDevice OrtDeviceMemoryType "
        "OrtDeviceVendorId OrtEpDevice OrtExecutionProviderDevicePolicy "
        "OrtHardwareDevice OrtHardwareDeviceType get_input_epdevices get_ep_devices"
    ),
    "EPs are Python plugins, found by their entry points; see `epctx_core.plugins()` "
    "and `register_execution_provider`": (
        "register_execution_provider_library unregister_execution_provider_library"
    ),
    "values are numpy arrays in the memory of this process; use `run`": (
        "IOBinding OrtValue SessionIOBinding SparseTensor OrtSparseFormat OrtMemType "
        "OrtMemoryInfo OrtMemoryInfoDeviceType OrtSyncStream copy_tensors "
        "create_ortvalue_from_shape_and_type get_input_memory_infos "
        "get_output_memory_infos io_binding run_with_iobinding run_with_ort_values "
        "run_with_ortvaluevector"
    ),
    "memory of runs and thread pools belong to the engine and to the EPs": (
        "OrtAllocatorType OrtArenaCfg create_and_register_allocator "
        "create_and_register_allocator_v2 set_global_thread_pool_sizes"
    ),
    "steps run in the model's order of dependence and are not profiled": (
        "ExecutionOrder execution_order enable_profiling profile_file_prefix "
        "end_profiling get_profiling_start_time_ns get_tuning_results "
        "set_tuning_results release_captured_graph"
    ),
    "use `ModelCompiler` with a `graph_optimization_level`": "optimized_model_filepath",
    "files of weights are mapped from a folder "
    "(session.model_external_initializers_file_folder_path)": (
        "add_external_initializers_from_files_in_memory"
    ),
    "LoRA adapters are not applied to what an EP compiled": (
        "AdapterFormat LoraAdapter add_active_adapter"
    ),
    "packages of several models are not read; a context model and its files travel as "
    "`CompileReport.required_files` says": (
        "ModelPackage ModelPackageComponentContext ModelPackageContext "
        "ModelPackageOptions ModelPackageWriteMode"
    ),
    "add a handler to the logger 'epctx'": "set_default_logger_callback",
    "run `epctx doctor`": "print_debug_info",
    "use `epctx_core.__version__`": "version",
    "it belongs to the onnxruntime package itself": (
        "capi contextlib cuda_version get_build_info has_collective_ops "
        "import_capi_exception onnxruntime_validation package_name preload_dlls"
    ),
}
"""Reason why epctx lacks names of onnxruntime, or what to use instead, with the names;
docs/differences-from-onnxruntime.md has the same.
"""

_log = logging.getLogger("epctx.options")
_logged: set[str] = set()


def log_without_effect(setting: str, reason: str) -> None:
    """Log, once in a process, that a setting is accepted and has no effect."""
    if setting not in _logged:
        _logged.add(setting)
        _log.info("%s is accepted and has no effect: %s.", setting, reason)


class UnsupportedNameError(InvalidArgument, AttributeError):
    """A name that epctx does not have; an AttributeError too, so that `hasattr`
    works.
    """


def missing_attribute_error(
    owner: str, name: str, attributes: Iterable[str]
) -> UnsupportedNameError:
    """Return the error for a name that a class or module does not have."""
    public = [n for n in attributes if not n.startswith("_")]
    # Many names of onnxruntime are a little like one of ours that does something else.
    reason = next((why for why, names in _REASONS.items() if name in names.split()), "")
    if reason:
        return UnsupportedNameError(
            f"{owner} has no attribute {name!r} of onnxruntime: {reason}.",
            hint="More: docs/differences-from-onnxruntime.md.",
        )
    return UnsupportedNameError(
        f"{owner} has no attribute {name!r}.{suggestion(name, public, cutoff=0.8)}",
        hint=(
            "If it is a name of onnxruntime: docs/differences-from-onnxruntime.md says "
            "what epctx does not have, and what to use instead."
        ),
    )


class Strict:
    """Base of objects that refuse to get or set an attribute that they do not have."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise missing_attribute_error(type(self).__name__, name, dir(type(self)))

    def __setattr__(self, name: str, value: object) -> None:
        for cls in type(self).__mro__:
            if name in (table := WITHOUT_EFFECT.get(cls.__name__, {})):
                default, why = table[name]
                if not isinstance(value, int if isinstance(default, int) else str):
                    raise InvalidArgument(
                        f"{cls.__name__}.{name} must be of type "
                        f"{type(default).__name__}, not {value!r:.80}."
                    )
                if value != default:
                    log_without_effect(f"{cls.__name__}.{name}", why)
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            raise missing_attribute_error(
                type(self).__name__, name, dir(type(self))
            ) from None
