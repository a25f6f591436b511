"""Qualcomm's QNN EP, out of the package onnxruntime-qnn."""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from epctx_native_formats import BinaryReader
from epctx_native_formats.archives import list_targets

from epctx_core.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    NotImplementedByProvider,
)
from epctx_core.plugin import (
    Compatibility,
    Finding,
    ProviderOption,
    Purpose,
    Severity,
    hookimpl,
    read_inputs,
)
from epctx_onnxruntime.providers import targets
from epctx_onnxruntime.providers.base import OnnxRuntimeProvider
from epctx_onnxruntime.providers.library import PluginLibrary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from epctx_native_formats import NativeGraph

    from epctx_core.plugin import (
        CompiledPartition,
        ContextNode,
        ContextReader,
        ContextWriter,
        EPContextNode,
        GraphView,
        NodeView,
        PayloadView,
        ProviderContext,
        ValueInfo,
    )
    from epctx_onnxruntime.providers.programs import Program
    from epctx_onnxruntime.providers.sessions import VendorSession
    from epctx_onnxruntime.real import onnxruntime

EP = "QNNExecutionProvider"
_NOT_SUPPORTED = "QNN_COMMON_ERROR_NOT_SUPPORTED"
_STARTED = threading.Event()
"""Set once this process's simulator has compiled something."""
_BEST_FIRST = (
    Compatibility.EP_SUPPORTED_OPTIMAL,
    Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION,
    Compatibility.EP_NOT_APPLICABLE,
    Compatibility.EP_UNSUPPORTED,
)
_PERFORMANCE_MODES = (
    "burst", "balanced", "default", "extreme_power_saver", "high_performance",
    "high_power_saver", "low_balanced", "low_power_saver", "power_saver",
    "sustained_high_performance",
)  # fmt: skip


def _make_option(
    name: str, doc: str, type_: type[Any] = str, choices: tuple[Any, ...] = ()
) -> ProviderOption:
    return ProviderOption(name, type_, default=None, choices=choices, doc=doc)


OPTIONS = (
    _make_option(
        "backend_type", "QNN back end by name.", choices=("cpu", "gpu", "htp")
    ),
    _make_option(
        "backend_path",
        (
            "QNN back end as a library's path; by default the HTP library of "
            "onnxruntime-qnn."
        ),
    ),
    _make_option(
        "soc_model",
        "Number or chip name of the SoC to compile for; several with commas between.",
    ),
    _make_option(
        "htp_arch",
        "Architecture of the HTP to compile for; one for each SoC of a list.",
    ),
    _make_option("device_id", "Number of the device."),
    _make_option(
        "vtcm_mb", "VTCM to use, in MB; one for all SoCs of a list, or for each."
    ),
    _make_option(
        "enable_htp_fp16_precision", "Compute float32 graphs in float16.", bool
    ),
    _make_option(
        "enable_htp_fp16_clamp_overflow", "Clamp values that overflow in float16.", bool
    ),
    _make_option("htp_bf16_enable", "Compute in bfloat16.", bool),
    _make_option(
        "htp_performance_mode",
        "Performance mode of the HTP.",
        choices=_PERFORMANCE_MODES,
    ),
    _make_option(
        "htp_graph_finalization_optimization_mode",
        "Effort of the compiler, 0 to 3.",
        int,
        (0, 1, 2, 3),
    ),
    _make_option(
        "qnn_context_priority",
        "Priority of the context.",
        choices=("low", "normal", "normal_high", "high"),
    ),
    _make_option(
        "rpc_control_latency", "Latency of remote calls, in microseconds.", int
    ),
    _make_option(
        "offload_graph_io_quantization",
        "Leave quantising inputs and dequantising outputs to the CPU EP.",
        bool,
    ),
    _make_option(
        "enable_htp_spill_fill_buffer",
        "Share one spill-fill buffer among contexts.",
        bool,
    ),
    _make_option(
        "enable_htp_shared_memory_allocator",
        "Allocate in memory shared with the HTP.",
        bool,
    ),
    _make_option(
        "enable_htp_weight_sharing", "Share weights among the graphs of a binary.", bool
    ),
    _make_option(
        "enable_vtcm_backup_buffer_sharing",
        "Share VTCM backup buffers among contexts.",
        bool,
    ),
    _make_option("extended_udma", "Use the extended address space of the DMA.", bool),
    _make_option(
        "disable_file_mapped_weights",
        "Read context binaries instead of mapping them.",
        bool,
    ),
    _make_option(
        "op_packages", "Packages of own operators, as onnxruntime-qnn documents."
    ),
    _make_option(
        "skip_qnn_version_check", "Accept another version of the QNN libraries.", bool
    ),
    _make_option(
        "skip_backend_op_validation",
        "Do not have the back end validate each node.",
        bool,
    ),
    _make_option(
        "profiling_level",
        "Detail of profiles.",
        choices=("off", "basic", "detailed", "optrace"),
    ),
    _make_option("profiling_file_path", "CSV file for profiles."),
    _make_option("qnn_saver_path", "QNN Saver library, for debugging."),
    _make_option("dump_json_qnn_graph", "Dump graphs as JSON, for debugging.", bool),
    _make_option("json_qnn_graph_dir", "Folder for those dumps."),
)


class QNNExecutionProvider(OnnxRuntimeProvider):
    """QNN EP for Qualcomm's HTP, and for its simulator on other machines."""

    name: ClassVar[str] = EP
    vendor: ClassVar[str] = "Qualcomm"
    binary_suffix: ClassVar[str] = "qnn"
    options: ClassVar[Sequence[ProviderOption]] = OPTIONS
    dynamic_options: ClassVar[Sequence[ProviderOption]] = (
        ProviderOption(
            "ep.dynamic.workload_type",
            str,
            default="Default",
            choices=("Default", "Efficient"),
            doc="Efficient lowers power and priority.",
        ),
        ProviderOption(
            "ep.dynamic.qnn_htp_performance_mode",
            str,
            default=None,
            # Not "default": after another one it ends the process.
            choices=tuple(mode for mode in _PERFORMANCE_MODES if mode != "default"),
            doc="Performance mode of the HTP.",
        ),
    )
    library: ClassVar[PluginLibrary] = PluginLibrary(
        ep=EP, distribution="onnxruntime-qnn", module="onnxruntime_qnn"
    )
    finds_values_by_name: ClassVar[bool] = True
    file_options: ClassVar[tuple[str, ...]] = ("backend_path", "op_packages")
    needs_verified_payloads: ClassVar[bool] = True
    static_shapes_only: ClassVar[bool] = True
    shares_binaries: ClassVar[bool] = True
    writes_contexts: ClassVar[bool] = True

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        path = context.options.get("backend_path")
        # The EP would be created without it and compile nothing.
        if path is not None and not Path(path).is_file() and "/" in path:
            raise InvalidArgument(
                f"{EP}: option 'backend_path' is {path!r}, which is not a file.", ep=EP
            )
        targets.check_targets(EP, context.options)

    def can_take(self, graph: GraphView, node: NodeView) -> bool | str:
        """Return whether to offer a node; none with empty tensors, on which Qualcomm's
        compiler divides by zero.
        """
        empty = _find_empty(graph, node)
        return (
            f"{empty!r} has no elements"
            if empty is not None
            else super().can_take(graph, node)
        )

    def may_try_whole(self, graph: GraphView) -> bool:
        """Return whether no node has an empty tensor: one of them ends the process."""
        return all(_find_empty(graph, node) is None for node in graph.nodes)

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Create a session over each node, as onnxruntime would load it."""
        self._start_simulator()
        return super().load_context(nodes, reader)

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        """Describe the vendor's nodes, and say so if they are for no SoC in
        particular.
        """
        nodes = super().get_ep_context_nodes(writer)
        target = self.identify_target(self.context.options)["target"]
        if target == targets.NO_TARGET:
            self.context.logger.warning(
                "%s compiled %s for no target: for whatever loads it. %s",
                self.name,
                self.context.model.name,
                targets.advise_target(),
            )
        return nodes

    @classmethod
    def identify_target(cls, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Return what the options name, whatever machine compiles; else the NPU, or
        that there is no target.
        """
        asked = targets.name_target(options)
        if not asked and cls._has_npu(options):
            return super().identify_target(options)
        return {"target": asked or targets.NO_TARGET, "driver": ""}

    def open_context(
        self,
        name: str,
        attributes: Mapping[str, Any],
        boundary: tuple[Sequence[ValueInfo], Sequence[ValueInfo]],
        content: Path | bytes,
    ) -> VendorSession:
        """Create a session over one EPContext node; say what to do about one that
        Qualcomm's simulator does not load.
        """
        vendor_attributes = {
            k: value for k, value in attributes.items() if k != targets.TARGETS
        }
        try:
            return super().open_context(name, vendor_attributes, boundary, content)
        except InvalidGraph as error:
            if vendor_attributes.get(targets.MULTI):
                error.hint = self._advise(content)
            elif _NOT_SUPPORTED in error.message and not self._has_npu(
                self.context.options
            ):
                error.hint = (
                    "Qualcomm's simulator, which runs here, loads no binary of a share "
                    "group (ep.share_ep_contexts=1): load it on a device with an NPU, "
                    "or compile the models without a share group."
                )
            raise

    def _advise(self, content: Path | bytes) -> str:
        """Return what to do about a payload of several SoCs that does not load."""
        try:
            socs = ", ".join(list_targets(content))
        except ValueError as error:
            return (
                f"Its payload is for several SoCs, but {error}: fetch the context "
                "binary again, or compile the model again."
            )
        if self._has_npu(self.context.options):
            return (
                f"Its payload is for the SoCs {socs}: if this device has another, "
                "compile the model for it; else compile it again with the versions "
                "installed here."
            )
        return (
            f"Its payload is for the SoCs {socs}, and Qualcomm's simulator, which runs "
            "here, loads none of several SoCs: load it on a device with one of them, "
            "or compile the model for one SoC."
        )

    def describe_program(self, program: Program) -> Mapping[str, Any]:
        """Return the attributes of a program's EPContext node: those of the vendor and,
        of a payload of several SoCs, their names.
        """
        description = super().describe_program(program)
        if description.get(targets.MULTI):
            # A later onnxruntime-qnn may write another format.
            with suppress(ValueError):
                listed = ", ".join(list_targets(program.binary.content))
                return {**description, targets.TARGETS: listed}
        return description

    def _start_simulator(self) -> None:
        """Have the simulator compile a node, once in a process.

        It refuses binaries of share groups, but ends the process if one of them is the
        first that it gets.
        """
        if _STARTED.is_set():
            return
        if not self._has_npu(self.context.options):
            self.check_options()
        _STARTED.set()

    def check_options(self) -> None:
        """Find out whether it is the options; see the base class.

        Raises:
            InvalidArgument: onnxruntime does not create the EP with them, or the back
                end does not load, which Qualcomm's EP tells onnxruntime's log alone.
        """
        super().check_options()
        options = self.context.options
        given = next(filter(options.get, ("backend_path", "backend_type")), None)
        if given is None:
            return
        htp = Path(self.library.import_module().get_qnn_htp_path())
        name = options[given]
        if given == "backend_type":
            name = htp.name.replace("Htp", name.capitalize())
        # It looks beside its own libraries first.
        beside = htp.parent / name
        try:
            ctypes.CDLL(str(beside if beside.is_file() else name))
        except OSError as error:
            raise InvalidArgument(
                f"{EP}: the back end of the option {given!r} does not load: {error}",
                ep=EP,
                hint=f"Without the option it is {htp.name} of onnxruntime-qnn.",
            ) from error

    @classmethod
    def vendor_options(cls, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the options as text; without a back end, with the path of the
        HTP's.
        """
        settings = super().vendor_options(options)
        if "backend_path" not in settings and "backend_type" not in settings:
            settings["backend_path"] = str(
                cls.library.import_module().get_qnn_htp_path()
            )
        return settings

    @classmethod
    def run_options(cls, options: Mapping[str, Any]) -> dict[str, str]:
        """Return the options as text, of several SoCs those of one."""
        return targets.select_target(
            cls.vendor_options(options), on_device=cls._has_npu(options)
        )

    @classmethod
    def _has_npu(cls, options: Mapping[str, Any]) -> bool:
        return any(
            map(_is_npu, cls.select_devices(cls.library.list_devices(), options))
        )

    @classmethod
    def select_devices(
        cls, devices: Sequence[onnxruntime.OrtEpDevice], options: Mapping[str, Any]
    ) -> Sequence[onnxruntime.OrtEpDevice]:
        """Return the NPU of those listed; without one the first, on which Qualcomm's
        simulator runs.
        """
        return super().select_devices(
            sorted(devices, key=lambda device: not _is_npu(device)), options
        )

    @classmethod
    def describe_device(cls, device: onnxruntime.OrtEpDevice) -> Mapping[str, str]:
        """Return that Qualcomm's simulator runs where the device is a CPU."""
        return {} if device.device.type.name != "CPU" else {"virtual": "1"}

    @classmethod
    def validate_compatibility(
        cls, info: str, options: Mapping[str, Any]
    ) -> Compatibility:
        """Return the verdict of the EP, which judges for NPUs alone; EP_NOT_APPLICABLE
        where there is none.

        For what was compiled for several SoCs it is the best of those on each.
        """
        # Asked without an NPU, the EP raises or, where an earlier session has ended,
        # reads freed memory.
        if not cls._has_npu(options):
            return Compatibility.EP_NOT_APPLICABLE
        verdicts = set()
        for text in targets.split_compatibility_info(info):
            verdicts.add(super().validate_compatibility(text, options))
            if Compatibility.EP_SUPPORTED_OPTIMAL in verdicts:
                break
        return min(verdicts, key=_BEST_FIRST.index)

    @classmethod
    def verify_payloads(
        cls,
        context: ProviderContext,
        nodes: Sequence[ContextNode],
        reader: ContextReader,
    ) -> Sequence[Finding] | None:
        """Have Qualcomm's library describe each payload, in another process, and
        compare the nodes with the graphs; of payloads of several SoCs, name these. None
        for what was just compiled.
        """
        # What was just compiled is right, in whatever format.
        if context.purpose is Purpose.EXPORT:
            return None
        findings: list[Finding] = []
        # Several nodes may have one payload, which is described once.
        graphs: dict[str, Mapping[str, NativeGraph]] = {}
        with BinaryReader() as binaries:
            for node in nodes:
                payload = reader.payload(node)
                if _is_multi(node):
                    if node.main_context:
                        findings.append(_describe_payload(node, reader))
                    continue
                if payload.name not in graphs:
                    found = _read_graphs(node, payload, binaries)
                    graphs[payload.name] = {} if isinstance(found, Finding) else found
                    findings += [found] if isinstance(found, Finding) else []
                if graphs[payload.name]:
                    findings += _check_graph(node, payload.name, graphs[payload.name])
        return findings

    @classmethod
    def accepts_source(cls, source: str) -> bool:
        """Accept the EP's name in any case, and `qnn`, as Qualcomm's tools write
        them.
        """
        return source.lower() in {EP.lower(), "qnn"}


def _find_empty(graph: GraphView, node: NodeView) -> str | None:
    return next(
        (
            name
            for name in filter(None, (*node.inputs, *node.outputs))
            if 0 in (graph.value(name).shape or ())
            and not _is_ignored(graph, node, name)
        ),
        None,
    )


def _is_ignored(graph: GraphView, node: NodeView, name: str) -> bool:
    """Return whether a value of a node is a constant that does not get to the compiler,
    as the operators that have it as an input ignore it.
    """
    producer = graph.producer(name)
    if graph.initializer(name) is None and (
        producer is None or producer.op_type != "Constant"
    ):
        # It is an input of the partition.
        return False
    readers = [node] if name in node.inputs else graph.consumers(name)
    return not any(
        name in (*read_inputs(graph, reader), *reader.implicit_inputs)
        for reader in readers
    ) and all(value.name != name for value in graph.outputs)


def _is_multi(node: ContextNode) -> bool:
    return bool(node.attributes.get(targets.MULTI))


def _describe_payload(node: ContextNode, reader: ContextReader) -> Finding:
    """Return what is known of the payload of several SoCs, which Qualcomm's library
    does not describe.
    """
    payload = reader.payload(node)
    try:
        socs = ", ".join(list_targets(payload.view))
    except ValueError as error:
        return Finding(
            Severity.ERROR,
            "container-refused",
            f"{payload.name!r} is for several SoCs, but {error}.",
            node=node.name,
            hint="Fetch the context binary again, or compile the model again.",
        )
    return Finding(
        Severity.INFO,
        "container-not-checked",
        f"{payload.name!r} is for the SoCs {socs}; no more than its list of "
        "entries was read.",
        node=node.name,
        hint="Load it on a device with one of them; Qualcomm's simulator loads none "
        "of several SoCs.",
    )


def _read_graphs(
    node: ContextNode, payload: PayloadView, binaries: BinaryReader
) -> Mapping[str, NativeGraph] | Finding:
    """Return the graphs of a payload by name, or what is wrong with it."""
    severity, code = Severity.ERROR, "container-refused"
    try:
        binary = binaries.describe(payload.view, payload.name)
    except InvalidGraph as error:
        message, hint = error.message, error.hint
    except (NotImplementedByProvider, Fail) as error:
        severity, code = Severity.INFO, "container-not-checked"
        message, hint = error.message, error.hint
    else:
        if binary is not None and binary.graphs:
            return {graph.name: graph for graph in binary.graphs}
        message = f"{payload.name!r} is not a context binary of QNN."
        hint = "Fetch the context binary again, or compile the model again."
    return Finding(severity, code, message, node=node.name, hint=hint or "")


def _check_graph(
    node: ContextNode, payload: str, graphs: Mapping[str, NativeGraph]
) -> Iterator[Finding]:
    """Yield how a node differs from its graph."""
    refused = "container-refused"
    graph = graphs.get(node.partition_name) or graphs.get(node.name)
    if graph is None and len(graphs) == 1:
        # Qualcomm's EP takes the only graph, whatever its name.
        (graph,) = graphs.values()
    if graph is None:
        listed = ", ".join(map(repr, graphs))
        message = f"{payload!r} has no graph {node.partition_name!r} but {listed}."
        yield Finding(Severity.ERROR, refused, message, node=node.name)
        return
    for mismatch in graph.find_mismatches(node.inputs, node.outputs):
        yield Finding(
            Severity.ERROR,
            refused,
            f"the node is not that of the graph {graph.name!r} in {payload!r}: "
            f"{mismatch}.",
            node=node.name,
            hint="`epctx inspect` prints the graphs; compile or wrap them again.",
        )


def _is_npu(device: onnxruntime.OrtEpDevice) -> bool:
    return bool(device.device.type.name == "NPU")
