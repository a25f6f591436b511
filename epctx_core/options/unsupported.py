"""What of ONNX Runtime epctx does not have: names of its Python API, each with the reason, and keys of session options.

Imported when a host uses such a name, or a key that is no row of `table`. `docs/differences-from-onnxruntime.md` shows
the names; a test checks both against the installed onnxruntime.
"""

from __future__ import annotations

import re

from epctx_core.errors import InvalidArgument, suggestion
from epctx_core.options.strict import tell_without_effect
from epctx_core.options.table import SESSION_OPTIONS

UNSUPPORTED = {
    "SessionOptions": """
        add_external_initializers_from_files_in_memory add_provider_for_devices enable_profiling execution_order
        optimized_model_filepath profile_file_prefix register_custom_ops_library set_provider_selection_policy
        set_provider_selection_policy_delegate
    """,
    "RunOptions": "add_active_adapter",
    "InferenceSession": """
        create_ortvalue_from_shape_and_type end_profiling get_input_epdevices get_input_memory_infos
        get_output_memory_infos get_profiling_start_time_ns get_tuning_results io_binding release_captured_graph
        run_with_iobinding run_with_ort_values run_with_ortvaluevector set_tuning_results
    """,
    "onnxruntime": """
        AdapterFormat ExecutionOrder IOBinding LoraAdapter ModelPackage ModelPackageComponentContext
        ModelPackageContext ModelPackageOptions ModelPackageWriteMode OrtAllocatorType OrtArenaCfg OrtDevice
        OrtDeviceMemoryType OrtDeviceVendorId OrtEpDevice OrtExecutionProviderDevicePolicy OrtHardwareDevice
        OrtHardwareDeviceType OrtMemType OrtMemoryInfo OrtMemoryInfoDeviceType OrtSparseFormat OrtSyncStream OrtValue
        SessionIOBinding SparseTensor capi contextlib copy_tensors create_and_register_allocator
        create_and_register_allocator_v2 cuda_version get_build_info get_ep_devices has_collective_ops
        import_capi_exception onnxruntime_validation package_name preload_dlls print_debug_info
        register_execution_provider_library set_default_logger_callback set_global_thread_pool_sizes
        unregister_execution_provider_library version
    """,
}
"""Class, or the module itself, to the names that epctx does not have for each."""


class UnsupportedNameError(InvalidArgument, AttributeError):
    """A name that epctx does not have; an AttributeError too, so that `hasattr` answers."""


def unsupported_name(name: str, owner: str = "onnxruntime") -> UnsupportedNameError | None:
    """Return the error for a name of a class, or of module `onnxruntime`, that epctx does not have; None for another name."""
    if name not in UNSUPPORTED.get(owner, "").split():
        return None
    return UnsupportedNameError(
        f"{owner}.{name} is not supported by epctx: only onnxruntime has it.",
        hint="docs/differences-from-onnxruntime.md says why, and what to use instead.",
    )


def no_such_name(cls: type, name: str) -> UnsupportedNameError:
    """Return the error for a name that a class does not have."""
    known = [n for n in dir(cls) if not n.startswith("_")]
    return unsupported_name(name, cls.__name__) or UnsupportedNameError(
        f"{cls.__name__} has no attribute {name!r}.{suggestion(name, known)}",
        hint=f"It has: {', '.join(known)}.",
    )


IGNORED_KEYS = frozenset(
    """
    memory.enable_memory_arena_shrinkage
    mlas.disable_kleidiai mlas.enable_gemm_fastmath_arm64_bfloat16 mlas.kleidiai.conv_igemm_max_work
    mlas.nchwc_depthwise_sliding mlas.nchwc_pointwise_conv_max_input_channel_batch mlas.qnbit.force_fp32
    mlas.use_lut_gemm
    optimization.constant_folding_max_output_size_in_bytes optimization.disable_specified_optimizers
    optimization.enable_cast_chain_elimination optimization.enable_gelu_approximation
    optimization.minimal_build_optimizations
    session.allow_released_opsets_only session.collect_node_memory_stats_to_file session.compile_only
    session.debug_layout_transformation session.disable_aot_function_inlining session.disable_double_qdq_remover
    session.disable_prepacking session.disable_qdq_constant_folding session.disable_quant_qdq
    session.dynamic_block_base session.enable_cpu_mem_arena session.enable_dq_matmulnbits_fusion
    session.enable_mem_pattern session.enable_moe_expert_counting session.enable_moe_expert_statistics
    session.enable_profiling session.enable_quant_qdq_cleanup session.enable_saved_runtime_optimizations
    session.execution_mode session.external_data_loader.chunk_bytes session.external_data_loader.min_size_bytes
    session.external_data_loader.pinned_memory_bytes session.external_data_loader.threads
    session.force_spinning_stop session.function_expansion_byte_limit session.function_expansion_node_limit
    session.gqa_value_layout session.graph_optimization_level session.graph_optimizations_loop_level
    session.inter_op.allow_spinning session.inter_op.spin_backoff_max session.inter_op.spin_duration_us
    session.inter_op_num_threads session.intra_op.allow_spinning session.intra_op.spin_backoff_max
    session.intra_op.spin_duration_us session.intra_op_num_threads session.intra_op_thread_affinities
    session.kernel_dispatch_policy session.layer_assignment_settings session.log_id
    session.log_severity_level session.log_verbosity_level session.max_shape_override
    session.moe_expert_counter_alpha session.moe_expert_counter_beta session.moe_expert_counter_state_file
    session.name_based_layer_assignment session.node_partition_config_file
    session.optimized_model_external_initializers_file_name
    session.optimized_model_external_initializers_min_size_in_bytes session.optimized_model_filepath
    session.prepack.enable_parallel session.qdq_matmulnbits_accuracy_level session.qdq_matmulnbits_block_size
    session.qdqisint8allowed session.resource_cuda_partitioning_settings
    session.save_external_prepacked_constant_initializers session.save_model_format session.set_denormal_as_zero
    session.strict_shape_type_inference session.strict_workspace_verification session.use_deterministic_compute
    session.use_device_allocator_for_initializers session.use_env_allocators
    session.use_external_initializer_file_buffers_directly session.use_memory_mapped_ort_model
    session.use_ort_model_bytes_directly session.use_ort_model_bytes_for_initializers
    session.use_per_session_threads session.x64quantprecision
    """.split()  # noqa: SIM905 - seventy names read better without quotes and commas
)
"""What onnxruntime up to 1.32 acts on and epctx does not."""

IGNORED_STARTS = ("ep.cpu.", "ep.cuda.", "ep.nnapi.", "session.moe.offload.")
"""How the keys begin of EPs that onnxruntime carries in itself, and of where it keeps experts."""

OWNED_STARTS = ("ep.", "session.")
"""Where every key must be known: a misspelt one would silently do nothing."""

_PROVIDER_OPTION = re.compile(r"ep\.[a-z0-9_.-]+\.(.+)")
_DYNAMIC_START = "ep.dynamic."


def is_provider_option(key: str) -> bool:
    """Whether a key has the form of one EP's option; whether there is such an EP is checked where EPs are looked up."""
    return (
        _PROVIDER_OPTION.fullmatch(key) is not None
        and key not in SESSION_OPTIONS
        and not key.startswith((*IGNORED_STARTS, _DYNAMIC_START))
    )


def is_ignored(key: str) -> bool:
    """Whether a key is accepted and means nothing to epctx."""
    if key in SESSION_OPTIONS or is_provider_option(key):
        return False
    return key in IGNORED_KEYS or key.startswith(IGNORED_STARTS) or not key.startswith(OWNED_STARTS)


def check_key(key: str) -> None:
    """Let a key pass that is no row: one EP's option, or one that means nothing here, which is said once.

    Raises:
        InvalidArgument: it begins as `ep.*` or `session.*`, and neither epctx nor onnxruntime knows it.
    """
    if is_ignored(key):
        tell_without_effect(f"the session option {key!r}", "epctx does not act on it")
    elif key.startswith(_DYNAMIC_START):
        raise InvalidArgument(
            f"{key!r} is no session option but a dynamic one.",
            hint="Give it to set_ep_dynamic_options of the session.",
        )
    elif not is_provider_option(key):
        hint = "docs/options.md lists the keys that epctx and onnxruntime know."
        if key.startswith("ep."):
            hint = "Options of one EP are written ep.<lower-case EP name>.<key>."
        raise InvalidArgument(f"unknown session option {key!r}.{suggested_key(key)}", hint=hint)


def suggested_key(key: str) -> str:
    """Return the end of a sentence that suggests the closest known key, or nothing."""
    return suggestion(key, [*SESSION_OPTIONS, *sorted(IGNORED_KEYS)])
