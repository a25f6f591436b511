"""Names of onnxruntime: where those of the drop-in are, and why some differ.

Imports nothing of onnxruntime: the core asks for the reason of a name that it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping

_HERE = "epctx_onnxruntime.drop_in"

OURS: Mapping[str, tuple[str, ...]] = {
    "epctx_core": (
        "ExecutionMode",
        "GraphOptimizationLevel",
        "ModelMetadata",
        "NodeArg",
        "OrtCompileApiFlags",
        "OrtEpAssignedNode",
        "OrtEpAssignedSubgraph",
        "OrtEpContextData",
        "OrtEpContextDataBuffer",
        "OrtExternalInitializerInfo",
        "get_available_providers",
        "set_seed",
    ),
    f"{_HERE}.binding": ("IOBinding",),
    f"{_HERE}.devices": (
        "OrtEpDevice",
        "OrtHardwareDevice",
        "get_all_providers",
        "get_ep_devices",
        "register_execution_provider_library",
        "unregister_execution_provider_library",
    ),
    f"{_HERE}.information": (
        "get_build_info",
        "print_debug_info",
        "set_default_logger_callback",
        "set_default_logger_severity",
        "set_default_logger_verbosity",
        "set_global_thread_pool_sizes",
    ),
    f"{_HERE}.options": ("RunOptions", "SessionOptions"),
    f"{_HERE}.packages": (
        "ModelPackageComponentContext",
        "ModelPackageContext",
        "ModelPackageOptions",
    ),
    f"{_HERE}.sessions": ("InferenceSession", "ModelCompiler"),
    f"{_HERE}.substitution": ("install", "uninstall"),
}
"""Modules and the names of the drop-in that are in them; all others are onnxruntime's
own objects, as there is nothing to add to them.
"""

SUBPACKAGES = ("backend", "capi", "datasets", "quantization", "tools", "transformers")
"""Packages within onnxruntime, which the drop-in has unchanged."""

_REASONS: Mapping[str, str] = {
    (
        "LoRA adapters are not applied to what an EP compiled; compile the model "
        "with the adapter's weights"
    ): ("AdapterFormat LoraAdapter add_active_adapter"),
    (
        "packages of several models are onnxruntime's, and so are the sessions "
        "that they make; a context model and its files travel as "
        "`CompileReport.required_files` says"
    ): (
        "ModelPackage ModelPackageComponentContext ModelPackageContext "
        "ModelPackageOptions ModelPackageWriteMode"
    ),
    (
        "files of weights are mapped from a folder "
        "(session.model_external_initializers_file_folder_path); values in memory"
        " are given by `add_external_initializers`"
    ): ("add_external_initializers_from_files_in_memory"),
    ("a session's EPs are fixed when it is made"): (
        "set_providers enable_fallback disable_fallback"
    ),
    ("only onnxruntime's own GPU EPs tune their kernels, and have such results"): (
        "get_tuning_results set_tuning_results"
    ),
    ("runs are synchronous: values are in CPU memory when they return"): (
        "OrtSyncStream create_sync_stream"
    ),
    (
        "it belongs to onnxruntime's native session; use `io_binding` or "
        "`run_with_ort_values`"
    ): ("SessionIOBinding run_with_ortvaluevector get_outputs_as_ortvaluevector"),
    (
        "it configures onnxruntime's own sessions, of which the CPU EP makes one "
        "for each group of nodes"
    ): (
        "create_and_register_allocator create_and_register_allocator_v2 "
        "OrtArenaCfg OrtAllocatorType"
    ),
    ("steps run in the model's order of dependence"): ("execution_order"),
    ("it describes the installed package onnxruntime"): (
        "cuda_version has_collective_ops package_name preload_dlls version"
    ),
}
"""Reasons for which names of the module and of its classes do nothing in the drop-in,
do something else, or belong to onnxruntime alone; with the names.
"""

REASONS: Mapping[str, str] = {
    name: reason for reason, names in _REASONS.items() for name in names.split()
}
"""The same by name."""

_LACKING = frozenset(
    """
    IOBinding OrtDevice OrtDeviceMemoryType OrtDeviceVendorId OrtEpDevice
    OrtExecutionProviderDevicePolicy OrtHardwareDevice OrtHardwareDeviceType
    OrtMemType OrtMemoryInfo OrtMemoryInfoDeviceType OrtSparseFormat OrtValue
    SparseTensor add_provider_for_devices capi contextlib copy_tensors
    create_ortvalue_from_shape_and_type ExecutionOrder get_build_info get_ep_devices
    get_input_epdevices get_input_memory_infos get_output_memory_infos
    get_profiling_start_time_ns
    import_capi_exception io_binding onnxruntime_validation optimized_model_filepath
    print_debug_info register_execution_provider_library release_captured_graph
    run_with_iobinding run_with_ort_values set_default_logger_callback
    set_global_thread_pool_sizes
    set_provider_selection_policy set_provider_selection_policy_delegate
    unregister_execution_provider_library
    """.split()  # noqa: SIM905 - so many names read better without quotes and commas
)
"""Names of onnxruntime that epctx_core lacks and the drop-in has."""

_OF_SESSIONS = {"io_binding", "run_with_iobinding", "run_with_ort_values"}
"""Those of them that hosts miss in sessions of `load_or_compile`."""


def explain(name: str) -> str:
    """Return why epctx_core lacks a name of onnxruntime, or what has it; an empty text
    for a name of nobody.
    """
    has_it = (
        "the module epctx_onnxruntime has it: `import epctx_onnxruntime as onnxruntime`"
    )
    if reason := REASONS.get(name):
        return f"{reason}; {has_it}"
    if name in _OF_SESSIONS:
        # The import alone changes nothing for a session of `load_or_compile`.
        return f"{has_it}, and for a cached model `InferenceSession(compile_cached(…))`"
    if name in _LACKING:
        return has_it
    return ""
