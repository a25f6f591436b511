"""The keys of session options: one table of those that epctx acts on, one of those that only ONNX Runtime does.

Knows which values a key takes. What a host set, and what the values mean together, is known to `session`.
`docs/options.md` shows both tables; a test holds them together.
"""

from __future__ import annotations

import ntpath
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from epctx_core.errors import InvalidArgument, suggestion


def _no_objection(_value: str) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class SessionOption:
    """One key that epctx acts on.

    Attributes:
        key: as hosts write it.
        default: what holds where a host says nothing.
        choices: the values allowed; empty for any that `pattern` and `objection` let pass.
        pattern: what the whole value must match.
        values: the values allowed in words, where there are no choices.
        objection: completes "the value ...", or is empty for a good value.
        doc: what the option does.
    """

    key: str
    default: str = ""
    choices: tuple[str, ...] = ()
    pattern: str = ".*"
    values: str = ""
    objection: Callable[[str], str] = _no_objection
    doc: str

    @property
    def allowed(self) -> str:
        """The allowed values, as documents show them."""
        return ", ".join(f"`{c}`" if c else "empty" for c in self.choices) or self.values

    def check(self, value: str) -> None:
        """Raise InvalidArgument if the value is not allowed for this key."""
        if self.choices and value not in self.choices:
            allowed = " or ".join(repr(c) for c in self.choices)
            raise self._bad(value, f"; allowed is {allowed}")
        if not re.fullmatch(self.pattern, value, re.DOTALL):
            raise self._bad(value, f"; allowed is {self.values.replace('`', '')}")
        objection = self.objection(value)
        if objection:
            raise self._bad(value, f", which {objection}")

    def _bad(self, value: str, why: str) -> InvalidArgument:
        return InvalidArgument(
            f"session option {self.key!r} has the value {value!r:.200}{why}.", hint=self.doc
        )


def _leaves_the_folder(value: str) -> str:
    """Object to a name that is not one of a file inside the output model's folder."""
    if not value:
        return ""
    if posixpath.isabs(value) or ntpath.isabs(value):
        return "is an absolute path"
    if "\0" in value or value.endswith(("/", "\\")) or posixpath.basename(value) in {".", ".."}:
        return "is no file name"
    if posixpath.normpath(value).partition("/")[0] == "..":
        return "leaves the folder of the output model"
    return ""


_FLAG = ("0", "1")
_PATH = "a path"
_OPTIONS = (
    SessionOption(
        key="ep.context_enable",
        default="0",
        choices=_FLAG,
        doc=(
            "1: creating a session also writes the context model. "
            "EPContext nodes that the model has already pass through."
        ),
    ),
    SessionOption(
        key="ep.context_file_path",
        values=_PATH,
        doc=(
            "Where the context model is written; when one is loaded, the path whose folder holds its binaries. "
            "Compiling one again: those of a model from a file lie beside it, those of a model from bytes in this folder."
        ),
    ),
    SessionOption(
        key="ep.context_embed_mode",
        default="0",
        choices=_FLAG,
        doc="1: payloads are stored inside the context model; 0: in a file beside it.",
    ),
    SessionOption(
        key="ep.context_node_name_prefix",
        pattern=r"[A-Za-z0-9_.-]{0,128}",
        values="0 to 128 letters, digits, `_`, `.` and `-`",
        doc="Put before every partition's name: node name and, unless the EP names its graphs itself, partition_name.",
    ),
    SessionOption(
        key="ep.context_model_external_initializers_file_name",
        objection=_leaves_the_folder,
        values="a file name relative to the output model, not leaving its folder",
        doc="The file for all initializers of the written context model, scalars too; empty: they are in the model.",
    ),
    SessionOption(
        key="ep.context_file_mapping",
        default="1",
        choices=_FLAG,
        doc="1: context binaries are mapped; 0: each is read into memory of its own and verified there, whole.",
    ),
    SessionOption(
        key="ep.context_verify",
        default="once",
        choices=("once", "head", "lazy", "full"),
        doc="How payloads are checked against the manifest: once: all whole the first time a machine sees a file, beside"
        " the EP's own loading; head: size, first segment and some blocks; lazy: each whole, when an EP first asks for"
        " it; full: all whole, before any EP gets one.",
    ),
    SessionOption(
        key="ep.context_read_back",
        default="1",
        choices=_FLAG,
        doc="1: before anything is published, each EP reads back what it wrote, as far as it can without a device;"
        " 0: what was written is published unread.",
    ),
    SessionOption(
        key="session.load_model_format",
        choices=("", "ONNX", "ORT"),
        doc="The format that the model must have; empty: either, told by its bytes.",
    ),
    SessionOption(
        key="ep.context_source_model_path",
        values=_PATH,
        doc="The source of a weightless context model; empty: its onnx_model_filename, beside the context model.",
    ),
    SessionOption(
        key="ep.enable_weightless",
        default="0",
        choices=_FLAG,
        doc="1: payloads refer to all of the source's weights instead of holding them; ONNX Runtime 1.29's key.",
    ),
    SessionOption(
        key="ep.enable_weightless_ep_context_nodes",
        default="0",
        choices=_FLAG,
        doc="The same under the name that ONNX Runtime 1.25 gave it.",
    ),
    SessionOption(
        key="ep.enable_weightless_mode",
        default="0",
        choices=("0", "1", "2"),
        doc="Which of the source's weights payloads refer to instead of holding them: 0: none; 1: those in external"
        " files; 2: all. Set together with the older keys, all must say yes or all no.",
    ),
    SessionOption(
        key="ep.share_ep_contexts",
        default="0",
        choices=_FLAG,
        doc="1: the session belongs to a weight-sharing group: one binary for several models, mapped once.",
    ),
    SessionOption(
        key="ep.stop_share_ep_contexts",
        default="0",
        choices=_FLAG,
        doc="1: the session is its group's last; only together with ep.share_ep_contexts=1.",
    ),
    SessionOption(
        key="ep.prefer_latency",
        choices=("", *_FLAG),
        doc="1: prepack weights (faster runs, a private copy); 0: never; empty: prepack up to 64 MiB of weights, "
        "and all in a session that is one piece of the CPU EP.",
    ),
    SessionOption(
        key="ep.partition_min_nodes",
        default="1",
        pattern="[0-9]{1,9}",
        values="a whole number of up to 9 digits",
        doc="Partitions of fewer nodes are left to the next EP; the report says so.",
    ),
    SessionOption(
        key="ep.partition_max_count",
        pattern="[0-9]{0,9}",
        values="a whole number of up to 9 digits, or empty",
        doc="The most partitions that each EP may have; of more, the largest are kept. Empty: no limit.",
    ),
    SessionOption(
        key="ep.optional_providers",
        values="names of EPs, separated by commas",
        doc="Of the EPs that are asked for, those to go without, with a warning, if they are not installed,"
        " broken or unavailable on this machine.",
    ),
    SessionOption(
        key="ep.isolate",
        choices=("", "compile", "all"),
        doc="Which work of EPs is done in a process of its own, so that a crash or a hang there is an error here:"
        " empty: none; compile: what a compile asks of them; all: loading and running, too.",
    ),
    SessionOption(
        key="ep.isolate_timeout_seconds",
        default="600",
        pattern="[1-9][0-9]{0,5}",
        values="a whole number of seconds from 1 to 999999",
        doc="How long one call of an isolated EP may take before its process is ended.",
    ),
    SessionOption(
        key="ep.isolate_max_bytes",
        pattern="([1-9][0-9]{0,14})?",
        values="a whole number of up to 15 digits, or empty",
        doc="The most memory that the process of an isolated EP may have for data, and the most that it may give back"
        " in one message. Empty: no limit.",
    ),
    SessionOption(
        key="session.model_external_initializers_file_folder_path",
        values="a folder",
        doc="The folder of a model's external weights; needed for a model from bytes that has such weights. It"
        " never says where context binaries are.",
    ),
    SessionOption(
        key="session.disable_cpu_ep_fallback",
        default="0",
        choices=_FLAG,
        doc="1: a node that no EP takes is an error instead of running on the CPU EP.",
    ),
    SessionOption(
        key="session.disable_model_compile",
        default="0",
        choices=_FLAG,
        doc="1: a session in which an EP would have to compile is refused.",
    ),
    SessionOption(
        key="session.fail_on_suboptimal_compiled_model",
        default="0",
        choices=_FLAG,
        doc="1: a context model that an EP would rather compile again is refused instead of warned about.",
    ),
    SessionOption(
        key="session.record_ep_graph_assignment_info",
        default="0",
        choices=_FLAG,
        doc="1: the session keeps who runs which node, for get_provider_graph_assignment_info.",
    ),
)
SESSION_OPTIONS: Mapping[str, SessionOption] = MappingProxyType({o.key: o for o in _OPTIONS})

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
_FORM = "Options of one EP are written ep.<lower-case EP name>.<key>."


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


def check_entry(key: str, value: str) -> None:
    """Check one config entry.

    Raises:
        InvalidArgument: a key `ep.*` or `session.*` that neither epctx nor onnxruntime knows, or a value
            outside the allowed ones.
    """
    option = SESSION_OPTIONS.get(key)
    if option is not None:
        option.check(value)
    elif not is_provider_option(key) and not is_ignored(key):
        raise _unknown(key)


def _unknown(key: str) -> InvalidArgument:
    if key.startswith(_DYNAMIC_START):
        return InvalidArgument(
            f"{key!r} is no session option but a dynamic one.",
            hint="Give it to set_ep_dynamic_options of the session.",
        )
    hint = (
        _FORM if key.startswith("ep.") else "docs/options.md lists the keys that epctx and onnxruntime know."
    )
    return InvalidArgument(f"unknown session option {key!r}.{suggested_key(key)}", hint=hint)


def suggested_key(key: str) -> str:
    """Return the end of a sentence that suggests the closest known key, or nothing."""
    return suggestion(key, [*SESSION_OPTIONS, *sorted(IGNORED_KEYS)])
