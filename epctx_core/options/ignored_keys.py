"""Keys of session options that onnxruntime acts on and epctx does not have or need.

Imported for a key that is not in `table`. `docs/reference/options.md` lists the keys; a
test checks them against the installed onnxruntime.
"""

from __future__ import annotations

import re

from epctx_core.errors import InvalidArgument, suggestion
from epctx_core.options.strict import GONE, log_without_effect
from epctx_core.options.table import SESSION_OPTIONS

IGNORED_KEYS = frozenset(
    """
    session.allow_released_opsets_only session.collect_node_memory_stats_to_file
    session.compile_only session.debug_layout_transformation
    session.disable_aot_function_inlining session.disable_double_qdq_remover
    session.disable_prepacking session.disable_qdq_constant_folding
    session.disable_quant_qdq session.dynamic_block_base session.enable_cpu_mem_arena
    session.enable_dq_matmulnbits_fusion session.enable_mem_pattern
    session.enable_moe_expert_counting session.enable_moe_expert_statistics
    session.enable_profiling session.enable_quant_qdq_cleanup
    session.enable_saved_runtime_optimizations session.execution_mode
    session.external_data_loader.chunk_bytes session.external_data_loader.min_size_bytes
    session.external_data_loader.pinned_memory_bytes
    session.external_data_loader.threads session.force_spinning_stop
    session.function_expansion_byte_limit session.function_expansion_node_limit
    session.gqa_value_layout session.graph_optimization_level
    session.graph_optimizations_loop_level session.inter_op.allow_spinning
    session.inter_op.spin_backoff_max session.inter_op.spin_duration_us
    session.inter_op_num_threads session.intra_op.allow_spinning
    session.intra_op.spin_backoff_max session.intra_op.spin_duration_us
    session.intra_op_num_threads session.intra_op_thread_affinities
    session.kernel_dispatch_policy session.layer_assignment_settings session.log_id
    session.log_severity_level session.log_verbosity_level session.max_shape_override
    session.moe_expert_counter_alpha session.moe_expert_counter_beta
    session.moe_expert_counter_state_file session.name_based_layer_assignment
    session.node_partition_config_file
    session.optimized_model_external_initializers_file_name
    session.optimized_model_external_initializers_min_size_in_bytes
    session.optimized_model_filepath session.prepack.enable_parallel
    session.qdq_matmulnbits_accuracy_level session.qdq_matmulnbits_block_size
    session.qdqisint8allowed session.resource_cuda_partitioning_settings
    session.save_external_prepacked_constant_initializers session.save_model_format
    session.set_denormal_as_zero session.strict_shape_type_inference
    session.strict_workspace_verification session.use_deterministic_compute
    session.use_device_allocator_for_initializers session.use_env_allocators
    session.use_external_initializer_file_buffers_directly
    session.use_memory_mapped_ort_model session.use_ort_model_bytes_directly
    session.use_ort_model_bytes_for_initializers session.use_per_session_threads
    session.x64quantprecision
    """.split()  # noqa: SIM905 - sixty names read better without quotes and commas
)
"""Keys of its sessions that onnxruntime up to 1.32 acts on and epctx does not."""

IGNORED_STARTS = ("ep.cpu.", "ep.cuda.", "ep.nnapi.", "session.moe.offload.")
"""Prefixes of the keys of onnxruntime's own EPs, and of its expert offloading."""

OWNED_STARTS = ("ep.", "session.")
"""Prefixes under which every key must be known: a misspelt one would silently do
nothing.
"""


def is_ignored(key: str) -> bool:
    """Return whether a key that is not in `table` is accepted without an effect."""
    return (
        key in IGNORED_KEYS
        or key.startswith(IGNORED_STARTS)
        or not key.startswith(OWNED_STARTS)
    )


def check_key(key: str) -> None:
    """Check a key that is not in `table`: an option of an EP, or one without an effect,
    which is logged once.

    The look-up of EPs checks whether the EP exists.

    Raises:
        InvalidArgument: it begins as `ep.*` or `session.*`, and neither epctx nor
            onnxruntime knows it.
    """
    if is_ignored(key):
        log_without_effect(f"the session option {key!r}", "epctx does not act on it")
    elif key.startswith("ep.dynamic."):
        raise InvalidArgument(
            f"{key!r} is not a session option but a dynamic one.",
            hint="Give it to set_ep_dynamic_options of the session.",
        )
    elif not re.fullmatch(r"ep\.[a-z0-9_.-]+\.(.+)", key):
        hint = "`epctx docs options` lists the keys that epctx and onnxruntime know."
        if key.startswith("ep."):
            hint = "Options of one EP are written ep.<lower-case EP name>.<key>."
        raise InvalidArgument(
            f"unknown session option {key!r}.{suggest_key(key)}",
            hint=GONE.get(key, hint),
        )


def suggest_key(key: str) -> str:
    """Return a suggestion of the closest known key, or an empty text."""
    return suggestion(key, [*SESSION_OPTIONS, *sorted(IGNORED_KEYS)])
