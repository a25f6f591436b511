"""An EP that drives onnxruntime with a vendor's plugin-EP library for its partitions.

The payload of a partition is the context model that onnxruntime makes of it. Without a library the
same way goes through the devices that onnxruntime has built in.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnxruntime
from onnx import TensorProto

from epctx_core import plugin
from epctx_core.errors import InvalidArgument, InvalidGraph

OPERATORS = {"Add", "Conv", "Flatten", "Gemm", "GlobalAveragePool", "MatMul", "MaxPool", "Neg", "Relu"}
Arrays: TypeAlias = Sequence[np.ndarray]
# Libraries are registered with the process, not with a session.
_registration = threading.Lock()


class OrtPluginProvider(plugin.ExecutionProvider):
    """A plugin EP of onnxruntime, seen as an EP of epctx."""

    name = "OrtPluginExecutionProvider"
    options = (
        plugin.ProviderOption("library", str, default="", doc="The vendor's library, if ep_name needs one."),
        plugin.ProviderOption("ep_name", str, default="CPUExecutionProvider", doc="The vendor's EP type."),
        plugin.ProviderOption("ep_options", str, default="{}", doc="JSON object with the vendor's options."),
    )

    def __init__(self, context: plugin.ProviderContext) -> None:
        super().__init__(context)
        device = _device(context.options["ep_name"], context.options["library"])
        self._session_options = onnxruntime.SessionOptions()
        self._session_options.add_provider_for_devices([device], json.loads(context.options["ep_options"]))
        self._made: list[tuple[plugin.Partition, bytes]] = []

    @plugin.hookimpl
    def get_capability(self, graph: plugin.GraphView) -> Sequence[plugin.ComputeCapability | plugin.Refusal]:
        """Take the operators of the table with static shapes and types that onnxruntime takes as numpy arrays."""

        def is_supported(node: plugin.NodeView) -> bool | str:
            if node.domain or node.op_type not in OPERATORS:
                return f"the operator {node.op_type} is not in the table"
            types = [graph.value(name).type for name in (*node.inputs, *node.outputs) if name]
            if any(t.elem_type == TensorProto.BFLOAT16 for t in types):
                return "onnxruntime takes no bfloat16 arrays"
            return all(t.is_static for t in types) or "a shape is not static"

        return plugin.supported_partitions(graph, is_supported)

    @plugin.hookimpl
    def compile(self, partitions: Sequence[plugin.Partition]) -> Sequence[plugin.CompiledPartition]:
        """Have onnxruntime compile each partition to a context model in memory."""
        compiled = []
        for done, partition in enumerate(partitions):
            self.context.cancel.raise_if_requested()
            self.context.progress("compile", done, len(partitions))
            source = partition.model(inline_weights=True).SerializeToString()
            # True: whatever the vendor makes stands in the model.
            model = onnxruntime.ModelCompiler(self._session_options, source, True).compile_to_bytes()
            self._made.append((partition, model))
            exporting = self.context.purpose is plugin.Purpose.EXPORT
            compiled.append(plugin.CompiledPartition(None) if exporting else self._runnable(model))
        return compiled

    @plugin.hookimpl
    def get_ep_context_nodes(self, writer: plugin.ContextWriter) -> Sequence[plugin.EPContextNode]:
        """Write all context models into one payload; each node says where its own lies."""
        payload = writer.payload()
        nodes = []
        for partition, model in self._made:
            facts = {"offset": payload.write(model), "length": len(model)}
            facts["ep_sdk_version"] = onnxruntime.__version__
            nodes.append(plugin.EPContextNode(partition, payload, attributes=facts))
        return nodes

    @plugin.hookimpl
    def load_context(
        self, nodes: Sequence[plugin.ContextNode], reader: plugin.ContextReader
    ) -> Sequence[plugin.CompiledPartition]:
        """Make one onnxruntime session for each node."""
        loaded = []
        for node in nodes:
            self.context.cancel.raise_if_requested()
            view, facts = reader.payload(node).view, node.attributes
            try:
                loaded.append(self._runnable(bytes(view[facts["offset"] :][: facts["length"]])))
            except Exception as error:  # onnxruntime's exceptions have no base of their own
                raise InvalidGraph(f"onnxruntime refuses {node.name!r}: {error}", node=node.name) from error
        return loaded

    def _runnable(self, model: bytes) -> plugin.CompiledPartition:
        session = onnxruntime.InferenceSession(model, self._session_options)
        names = [value.name for value in session.get_inputs()]

        def run(inputs: Arrays, outputs: Arrays | None = None) -> Arrays:
            results: list[np.ndarray] = session.run(None, dict(zip(names, inputs, strict=True)))
            for given, result in zip(outputs or (), results, strict=outputs is not None):
                np.copyto(given, result)
            return results if outputs is None else outputs

        return plugin.CompiledPartition(run)

    @plugin.hookimpl
    def shutdown(self) -> None:
        """Let go of the models."""
        self._made.clear()


def _device(ep_name: str, library: str) -> onnxruntime.OrtEpDevice:
    """Return a device of a vendor's EP; its library stays registered, other sessions may use it."""
    try:
        with _registration:
            if library and ep_name not in {device.ep_name for device in onnxruntime.get_ep_devices()}:
                # The name given here is what this onnxruntime calls the EP, in context models too.
                onnxruntime.register_execution_provider_library(ep_name, library)
        return next(device for device in onnxruntime.get_ep_devices() if device.ep_name == ep_name)
    except Exception as error:  # onnxruntime's exceptions have no base of their own
        message = f"onnxruntime has no device for {ep_name} with the library {library!r}: {error}"
        raise InvalidArgument(message, hint="Set 'library' to the vendor's plugin-EP library.") from error
