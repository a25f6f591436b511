"""`OpenVINOExecutionProvider`: the hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epctx_core.errors import EPFail
from epctx_core.plugin import (
    Availability,
    BuildInfo,
    Compatibility,
    CompiledPartition,
    ComputeCapability,
    ContextNode,
    ContextReader,
    ContextWriter,
    EPContextNode,
    ExecutionProvider,
    GraphView,
    HardwareDevice,
    Partition,
    PayloadView,
    ProviderContext,
    Purpose,
    Refusal,
    hookimpl,
)
from epctx_openvino.capability import find_claims
from epctx_openvino.container import Blob, Container, write_container
from epctx_openvino.conversion import read_partition
from epctx_openvino.loading import check_program, import_program
from epctx_openvino.native import (
    FORKED,
    core,
    is_forked,
    list_devices,
    read_requirements,
    read_version,
    requirements_of,
    shorten,
)
from epctx_openvino.rotation import compile_exportable
from epctx_openvino.running import RunnableModel
from epctx_openvino.settings import OPTIONS, choose_device, make_config
from epctx_openvino.verdicts import judge_text, write_text

if TYPE_CHECKING:
    import openvino

VERSION = "0.1.0"
_FULL_NAME = "FULL_DEVICE_NAME"
"""Property of a device: its name for people."""


@dataclass(frozen=True, kw_only=True)
class _Made:
    """Result of compiling one partition.

    Attributes:
        partition: the partition.
        requirements: OpenVINO's text on what an import needs.
        result: the program under purpose EXPORT, otherwise a model that can export one.
        weights: what that model reads and does not own.
    """

    partition: Partition
    requirements: str
    result: openvino.CompiledModel | memoryview
    weights: object


class OpenVINOExecutionProvider(ExecutionProvider):
    """Compiles with OpenVINO for the devices that it finds, and runs what it or
    onnxruntime's OpenVINO EP compiled.
    """

    name = "OpenVINOExecutionProvider"
    vendor = "epctx project, over Intel's openvino package"
    options = OPTIONS
    loads_without_device = True

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        self._device = choose_device(context)
        self._precision: str = context.options["precision"]
        self._made: list[_Made] = []

    @classmethod
    def availability(cls, purpose: Purpose) -> Availability:  # noqa: ARG003 - a device is needed for each of them
        """Return whether OpenVINO finds a device."""
        try:
            devices = list_devices()
        except (ImportError, OSError, RuntimeError) as error:
            return Availability(
                False,
                reason=f"the openvino package does not work here: {shorten(error)}",
                hint="Reinstall it: pip install --force-reinstall openvino",
            )
        if is_forked():
            hint = (
                "Start processes by spawn or forkserver, or fork before the first "
                "session."
            )
            return Availability(False, reason=FORKED, hint=hint)
        if devices:
            return Availability(True)
        return Availability(
            False,
            reason="OpenVINO finds no device",
            hint="Install the driver of the device.",
        )

    @classmethod
    def devices(cls) -> Sequence[HardwareDevice]:
        """Return the devices that OpenVINO finds, NPUs first, then GPUs."""
        return [
            HardwareDevice(
                type=kind,
                metadata={"name": str(core().get_property(name, _FULL_NAME))},
                options={"device_type": name},
            )
            for kind in ("NPU", "GPU", "CPU")
            for name in list_devices()
            if name.partition(".")[0] == kind
        ]

    @classmethod
    def get_build_info(cls, options: Mapping[str, Any]) -> BuildInfo:
        """Return OpenVINO's version and the device."""
        return BuildInfo(
            sdk=f"OpenVINO {read_version()}", target=options["device_type"]
        )

    @classmethod
    def get_compatibility_info(
        cls,
        partitions: Sequence[Partition],  # noqa: ARG003
        options: Mapping[str, Any],
    ) -> str:
        """Return what OpenVINO here needs of a machine that imports payloads."""
        return write_text(read_requirements(options["device_type"]), VERSION)

    @classmethod
    def validate_compatibility(
        cls, info: str, options: Mapping[str, Any]
    ) -> Compatibility:
        """Return whether OpenVINO here imports payloads that were compiled under a
        text.
        """
        return judge_text(info, options["device_type"])

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take what OpenVINO converts and computes in the types of the model."""
        return find_claims(graph)

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Compile one model for each partition; weights are read where they are
        mapped.
        """
        compiled = []
        for done, partition in enumerate(partitions):
            self.context.cancel.raise_if_requested()
            self.context.progress("compile", done, len(partitions))
            compiled.append(self._compile(partition))
        return compiled

    def _compile(self, partition: Partition) -> CompiledPartition:
        source = read_partition(partition)
        config = make_config(self.context, self._device, self._precision)
        try:
            model = compile_exportable(source.model, self._device, config)
        except RuntimeError as error:
            raise EPFail(
                f"OpenVINO does not compile a partition of {len(partition.nodes)} "
                f"nodes for {self._device}: {shorten(error)}",
                node=partition.nodes[0].name,
            ) from error
        exporting = self.context.purpose is Purpose.EXPORT
        result = self._export(model) if exporting else model
        requirements = requirements_of(model, self._device)
        self._made.append(
            _Made(
                partition=partition,
                requirements=requirements,
                result=result,
                weights=source.weights,
            )
        )
        if exporting:
            return CompiledPartition(None)
        runnable = RunnableModel(
            model, partition.inputs, partition.outputs, source.weights
        )
        return CompiledPartition(runnable.run, close=runnable.close)

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        """Write all programs into one container, in a share group those of all its
        models.
        """
        shared: dict[str, Blob] = self.context.workspace.get_or_create("blobs", dict)
        for made in self._made:
            # Kept, because OpenVINO does not export the same bytes twice.
            if made.partition.name not in shared:
                shared[made.partition.name] = Blob(
                    data=self._export(made.result), precision=self._precision
                )
        payload = writer.payload()
        if writer.final:
            names = dict.fromkeys(
                name for names in writer.graphs_by_model for name in names
            )
            write_container(payload, {name: shared[name] for name in names})
        # As onnxruntime's EP writes it, without the last number.
        version = ".".join(read_version().split(".")[:2])
        return [
            EPContextNode(
                made.partition,
                payload,
                attributes={"ep_sdk_version": version},
                compatibility_info=write_text(made.requirements, VERSION),
            )
            for made in self._made
        ]

    def _export(self, result: openvino.CompiledModel | memoryview) -> memoryview:
        if isinstance(result, memoryview):
            return result
        try:
            exported: memoryview = result.export_model().getbuffer()
        except RuntimeError as error:
            raise EPFail(
                f"OpenVINO does not export what it compiled for {self._device}: "
                f"{shorten(error)}",
                hint="AUTO and MULTI cannot export: choose one device, or HETERO.",
            ) from error
        return exported

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Import each node's program from where it is mapped; under purpose EXPORT only
        look at it.
        """
        opened: dict[PayloadView, Container] = {}
        loaded = []
        for done, node in enumerate(nodes):
            self.context.cancel.raise_if_requested()
            self.context.progress("load", done, len(nodes))
            payload = reader.payload(node)
            if payload not in opened:
                opened[payload] = Container(payload)
            blob = opened[payload][node.partition_name]
            loaded.append(self._load(node, blob))
        return loaded

    def _load(self, node: ContextNode, blob: Blob) -> CompiledPartition:
        if self.context.purpose is Purpose.EXPORT:
            check_program(node, blob, self._device)
            return CompiledPartition(None)
        # A program does not hold the precision that it was compiled for.
        config = make_config(
            self.context, self._device, blob.precision or self._precision
        )
        runnable = import_program(node, blob, self._device, config)
        return CompiledPartition(runnable.run, close=runnable.close)

    @hookimpl
    def shutdown(self) -> None:
        """Let go of models and programs."""
        self._made.clear()
