"""An EP that drives onnxruntime with a vendor's plugin-EP library for its partitions.

The payload of a partition is the context model that onnxruntime makes of it. Without a library the
same way goes through the devices that onnxruntime has built in.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx
import onnxruntime

from epctx_core.errors import InvalidArgument, InvalidGraph
from epctx_core.plugin import (
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    ProviderOption,
    Purpose,
    hookimpl,
    supported_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.plugin import (
        ComputeCapability,
        ContextNode,
        ContextReader,
        ContextWriter,
        GraphView,
        NodeView,
        Partition,
        ProviderContext,
        Refusal,
    )

OPERATORS = frozenset(
    {
        "Add", "AveragePool", "Conv", "Flatten", "Gemm", "GlobalAveragePool", "Identity", "MatMul", "MaxPool",
        "Neg", "Relu", "Reshape",
    }
)  # fmt: skip
FATAL_ONLY = 4
# Libraries are registered with the process, not with a session.
_registration = threading.Lock()


class OrtPluginProvider(ExecutionProvider):
    """A plugin EP of onnxruntime, seen as an EP of epctx."""

    name: ClassVar[str] = "OrtPluginExecutionProvider"
    options: ClassVar[Sequence[ProviderOption]] = (
        ProviderOption(
            "library", str, default="", doc="Path of the vendor's library; empty for built-in EPs."
        ),
        ProviderOption("ep_name", str, default="CPUExecutionProvider", doc="The vendor's EP type."),
        ProviderOption("ep_options", str, default="{}", doc="JSON object with the vendor's options."),
    )

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        self._devices = _devices(context.options["ep_name"], context.options["library"])
        self._made: list[tuple[Partition, bytes]] = []

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take the operators of the table with static shapes and types that onnxruntime takes as numpy arrays."""

        def is_supported(node: NodeView) -> bool | str:
            if node.domain or node.op_type not in OPERATORS:
                return f"the operator {node.op_type} is not in the table"
            types = [graph.value(name).type for name in (*node.inputs, *node.outputs) if name]
            if any(t.elem_type == onnx.TensorProto.BFLOAT16 for t in types):
                return "onnxruntime takes no bfloat16 arrays"
            return all(t.is_static for t in types) or "a shape is not static"

        return supported_partitions(graph, is_supported)

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Have onnxruntime compile each partition to a context model in memory."""
        compiled = []
        for done, partition in enumerate(partitions):
            self.context.cancel.raise_if_requested()
            self.context.progress("compile", done, len(partitions))
            source = _complete_model(partition).SerializeToString()
            compiler = onnxruntime.ModelCompiler(
                self._session_options(), source, embed_compiled_data_into_model=True
            )
            model = compiler.compile_to_bytes()
            self._made.append((partition, model))
            exporting = self.context.purpose is Purpose.EXPORT
            compiled.append(CompiledPartition(None) if exporting else self._runnable(model))
        return compiled

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        """Write all context models into one payload; each node says where its own lies."""
        payload = writer.payload()
        nodes = []
        for partition, model in self._made:
            place = {"offset": payload.write(model), "length": len(model)}
            facts = {"ep_sdk_version": onnxruntime.__version__, "ep_name": self.context.options["ep_name"]}
            nodes.append(EPContextNode(partition, payload, attributes=place | facts))
        return nodes

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Make one onnxruntime session for each node."""
        return [self._load(node, reader) for node in nodes]

    def _load(self, node: ContextNode, reader: ContextReader) -> CompiledPartition:
        self.context.cancel.raise_if_requested()
        made_by, wanted = node.attributes.get("ep_name"), self.context.options["ep_name"]
        if made_by != wanted:
            raise InvalidGraph(f"{node.name!r} was made by {made_by}, not {wanted}.", node=node.name)
        view = reader.payload(node).view
        offset, length = node.attributes.get("offset", 0), node.attributes.get("length", -1)
        if not 0 <= offset < offset + length <= len(view):
            raise InvalidGraph(f"node {node.name!r} does not say where its model lies.", node=node.name)
        try:
            return self._runnable(bytes(view[offset : offset + length]))
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            raise InvalidGraph(f"onnxruntime refuses {node.name!r}: {error}", node=node.name) from error

    def _session_options(self) -> onnxruntime.SessionOptions:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = FATAL_ONLY
        options.add_provider_for_devices(self._devices, json.loads(self.context.options["ep_options"]))
        return options

    def _runnable(self, model: bytes) -> CompiledPartition:
        session = onnxruntime.InferenceSession(model, self._session_options())
        names = [value.name for value in session.get_inputs()]

        def run(
            inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
        ) -> Sequence[np.ndarray]:
            results: list[np.ndarray] = session.run(None, dict(zip(names, inputs, strict=True)))
            for given, result in zip(outputs or (), results, strict=outputs is not None):
                np.copyto(given, result)
            return results if outputs is None else outputs

        return CompiledPartition(run)

    @hookimpl
    def shutdown(self) -> None:
        """Let go of the models; the library stays registered, others may use it."""
        self._made.clear()


def _devices(ep_name: str, library: str) -> list[Any]:
    """Return one device of a vendor's EP, its library registered if that was not done before."""
    with _registration:
        found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == ep_name]
        if not found and library:
            try:
                # The name given here is what this onnxruntime calls the EP, in context models too.
                onnxruntime.register_execution_provider_library(ep_name, library)
            except Exception as error:  # onnxruntime's exceptions have no base of their own
                raise InvalidArgument(
                    f"onnxruntime cannot use the library {library!r}: {error}",
                    hint="Set the option 'library' to the vendor's plugin-EP library.",
                ) from error
            found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == ep_name]
    if not found:
        raise InvalidArgument(f"onnxruntime has no device for {ep_name}.", hint="Set the option 'library'.")
    return found[:1]


def _complete_model(partition: Partition) -> onnx.ModelProto:
    """Return the partition as one self-contained model."""
    model = partition.model()
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            weight = partition.weights[tensor.name]
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = b"".join(weight.chunks())
    return model
