"""An EP that uses all of plugin API 1. Never edited: see README.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from epctx_core.plugin import (
    CONTAINER_CODES,
    CORE_ATTRIBUTES,
    PLUGIN_API,
    UNKNOWN_TYPE,
    Availability,
    Cancellation,
    Compatibility,
    CompiledPartition,
    ComputeCapability,
    ContextNode,
    ContextReader,
    ContextWriter,
    Engine,
    EPContextNode,
    ExecutionProvider,
    Extent,
    Finding,
    GraphView,
    ModelIdentity,
    NodeView,
    OptimizedModel,
    Partition,
    Payload,
    PayloadView,
    PreparedModel,
    ProviderContext,
    ProviderOption,
    Purpose,
    Refusal,
    Severity,
    TensorType,
    TensorView,
    ValueInfo,
    WeightlessMode,
    Workspace,
    hookimpl,
    supported_partitions,
)

MAGIC = b"FROZEN 1"
TRAILER = 8
FUSED = frozenset({"MatMul", "Relu", "Add"})
REFUSED_CODE = "container-refused"
KEPT = "kept"


class FrozenProvider(ExecutionProvider):
    """Fuses MatMul, Relu and Add on the core's engine, and keeps Neg in the model."""

    name = "FrozenExecutionProvider"
    vendor = "epctx tests"
    api_version = 1
    binary_suffix = "frozen"
    options = (
        ProviderOption("level", int, default=2, choices=(1, 2, 3), doc="A whole number."),
        ProviderOption("key", str, default="", doc="A secret.", secret=True),
    )
    dynamic_options = (
        ProviderOption("ep.dynamic.mode", str, default="a", choices=("a", "b"), doc="A mode."),
    )
    keeps_functions = frozenset({("frozen.domain", "Kept")})
    keeps_nodes = True
    weightless_modes = frozenset({WeightlessMode.EXTERNAL_ONLY, WeightlessMode.ALL})

    seen: list[str] = []  # noqa: RUF012 - what was called, for the test
    lacks: Purpose | None = None

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        self.level: int = context.options["level"]
        self.prefix: str = context.session_config.get("ep.context_node_name_prefix", "")
        self.model: ModelIdentity = context.model
        self.cancel: Cancellation = context.cancel
        self.engine: Engine = context.engine
        self.workspace: Workspace = context.workspace
        self.partitions: list[Partition] = []
        context.logger.debug("made for %s, level %d, target %s", self.model.name, self.level, context.target)

    @classmethod
    def accepts_source(cls, source: str) -> bool:
        cls.seen.append("accepts_source")
        return source.casefold() == cls.name.casefold()

    @classmethod
    def availability(cls, purpose: Purpose) -> Availability:
        cls.seen.append("availability")
        if purpose is cls.lacks:
            return Availability(False, reason="frozen out", hint="Wait for spring.")
        return Availability(True)

    @classmethod
    def get_compatibility_info(cls, partitions: Sequence[Partition], options: Mapping[str, Any]) -> str:
        cls.seen.append("get_compatibility_info")
        return f"frozen {options['level']}"

    @classmethod
    def validate_compatibility(cls, info: str, options: Mapping[str, Any]) -> Compatibility:
        cls.seen.append("validate_compatibility")
        if not info.startswith("frozen "):
            return Compatibility.EP_UNSUPPORTED
        same = info == f"frozen {options['level']}"
        return Compatibility.EP_SUPPORTED_OPTIMAL if same else Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION

    @classmethod
    def verify_payloads(
        cls, context: ProviderContext, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[Finding] | None:
        cls.seen.append("verify_payloads")
        assert REFUSED_CODE in CONTAINER_CODES
        findings = []
        for node in nodes:
            payload: PayloadView = reader.payload(node)
            if bytes(payload.view[: len(MAGIC)]) != MAGIC:
                message = f"{payload.name} is not this EP's."
                findings.append(
                    Finding(Severity.ERROR, REFUSED_CODE, message, node=node.name, hint="Compile again.")
                )
        return findings

    @hookimpl
    def get_capability(self, ep: str, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        self.seen.append("get_capability")
        own = [node for node in graph.nodes if not node.domain and node.op_type == "Neg"]

        def is_supported(node: NodeView) -> bool | str:
            value: ValueInfo = graph.value(node.inputs[0])
            known: TensorType = value.type
            if known == UNKNOWN_TYPE:
                return "of an unknown type"
            return not node.domain and node.op_type in FUSED

        answer = supported_partitions(graph, is_supported)
        taken = [part for part in answer if isinstance(part, ComputeCapability)]
        refused = [
            Refusal(part.reason, [node for node in part.nodes if node not in own])
            for part in answer
            if isinstance(part, Refusal)
        ]
        metadata = {"frozen.kept": graph.metadata.get("frozen.kept", "yes")}
        kept = [
            ComputeCapability([n], keep_nodes=True, keep_initializers=True, token=KEPT, metadata=metadata)
            for n in own
        ]
        return [*taken, *kept, *(part for part in refused if part.nodes)]

    @hookimpl
    def optimize_model(
        self, ep: str, model: onnx.ModelProto, weights: Mapping[str, TensorView], level: int
    ) -> onnx.ModelProto | None:
        self.seen.append("optimize_model")
        return model if level else None

    @hookimpl
    def compile(self, ep: str, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        self.seen.append("compile")
        self.partitions += [partition for partition in partitions if partition.token != KEPT]
        compiled = []
        for done, partition in enumerate(partitions):
            self.cancel.raise_if_requested()
            self.context.progress("compile", done, len(partitions))
            compiled.append(self._compiled(partition))
        return compiled

    def _compiled(self, partition: Partition) -> CompiledPartition:
        if self.context.purpose is Purpose.EXPORT:
            return CompiledPartition(None)
        model, weights = partition.model(), partition.weights
        optimized: OptimizedModel | None = self.engine.optimize(model, weights)
        if optimized is not None:
            model, weights = optimized.model, optimized.weights
        arrays = {name: weights[name].array() for name in _detached(model)}
        prepared: PreparedModel = self.engine.prepare(model, arrays, heavy=False)
        return CompiledPartition(prepared.run, close=lambda: self.seen.append("close"))

    @hookimpl
    def get_ep_context_nodes(self, ep: str, writer: ContextWriter) -> Sequence[EPContextNode]:
        self.seen.append("get_ep_context_nodes")
        members: dict[str, Partition] = self.workspace.get_or_create(
            "members", dict, lambda kept: kept.clear()
        )
        members.update({partition.name: partition for partition in self.partitions})
        payload: Payload = writer.payload()
        if writer.final:
            self._write(payload, members, writer)
        first, *others = self.partitions
        attributes = {"ep_sdk_version": "frozen-1", "notes": self.prefix}
        assert not CORE_ATTRIBUTES & attributes.keys()
        return [
            EPContextNode(first, payload, attributes=attributes, doc_string="Frozen."),
            *(EPContextNode(partition, main_context=0) for partition in others),
        ]

    def _write(self, payload: Payload, members: Mapping[str, Partition], writer: ContextWriter) -> None:
        payload.write(MAGIC)
        index = {}
        for name, partition in members.items():
            model = partition.model()
            weights = {n: self._weight(partition.weights[n], payload, writer) for n in _detached(model)}
            data = model.SerializeToString(deterministic=True)
            index[name] = {"weights": weights, "model": [payload.write(data), len(data)]}
        with self.context.scratch() as folder:
            notice = folder / "notice"
            notice.write_bytes(b"not for hardware")
            payload.add_file(notice)
        text = json.dumps(index, sort_keys=True).encode()
        assert payload.write(text) + len(text) == payload.size
        payload.write(len(text).to_bytes(TRAILER, "little"))

    @staticmethod
    def _weight(view: TensorView, payload: Payload, writer: ContextWriter) -> dict[str, Any]:
        source = writer.reference(view)
        if source is not None:
            return {"source": source}
        extent: Extent | None = view.extent
        assert extent is None or extent.length == view.nbytes
        payload.align(64)
        offset = payload.write_tensor(view)
        return {"offset": offset, "bytes": view.nbytes, "type": view.elem_type, "shape": list(view.shape)}

    @hookimpl
    def load_context(
        self, ep: str, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        self.seen.append("load_context")
        return [self._loaded(node, reader) for node in nodes]

    def _loaded(self, node: ContextNode, reader: ContextReader) -> CompiledPartition:
        earlier = self.workspace.take(node.partition_name)
        if earlier is None:
            view = reader.payload(node).view
            if bytes(view[: len(MAGIC)]) != MAGIC:
                raise ValueError("not a payload of this EP")
            end = len(view) - TRAILER
            start = end - int.from_bytes(view[end:], "little")
            entry = json.loads(bytes(view[start:end]))[node.partition_name]
            offset, length = entry["model"]
            model = onnx.load_from_string(bytes(view[offset : offset + length]))
            arrays = {name: _array(view, reader, place) for name, place in entry["weights"].items()}
            earlier = self.engine.prepare(model, arrays)
            self.workspace.put(node.partition_name, earlier)
        return CompiledPartition(earlier.run)

    @hookimpl
    def allocate(self, ep: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        self.seen.append("allocate")
        return np.empty(shape, dtype)

    @hookimpl
    def set_dynamic_options(self, ep: str, options: Mapping[str, str]) -> None:
        self.seen.append(f"set_dynamic_options {dict(options)}")

    @hookimpl
    def on_run_start(self, ep: str, tag: str) -> None:
        self.seen.append(f"on_run_start {tag}")

    @hookimpl
    def on_run_end(self, ep: str, tag: str) -> None:
        self.seen.append(f"on_run_end {tag}")

    @hookimpl
    def shutdown(self, ep: str) -> None:
        self.seen.append("shutdown")


def _detached(model: onnx.ModelProto) -> list[str]:
    external = onnx.TensorProto.EXTERNAL
    return [tensor.name for tensor in model.graph.initializer if tensor.data_location == external]


def _array(view: memoryview, reader: ContextReader, place: Mapping[str, Any]) -> np.ndarray:
    if "source" in place:
        return reader.source_tensor(place["source"]).array()
    dtype = onnx.helper.tensor_dtype_to_np_dtype(place["type"])
    data = view[place["offset"] : place["offset"] + place["bytes"]]
    return np.frombuffer(data, dtype).reshape(place["shape"])


WRITTEN_FOR = 1
assert WRITTEN_FOR <= PLUGIN_API
