"""An EP that drives onnxruntime with a vendor's plugin-EP library for its partitions.

The payload of a partition is the context model that onnxruntime makes of it. Without a
library the same way goes through the devices that onnxruntime has built in.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

from epctx_core import plugin
from epctx_core.errors import InvalidArgument, InvalidGraph

OPERATORS = {
    "Add",
    "Conv",
    "Flatten",
    "Gemm",
    "GlobalAveragePool",
    "MatMul",
    "MaxPool",
    "Neg",
    "Relu",
}
KIND = "onnxruntime 1"
Arrays: TypeAlias = Sequence[np.ndarray]
# Libraries are registered with the process, not with a session.
_registration = threading.Lock()


class OrtPluginProvider(plugin.ExecutionProvider):
    """A plugin EP of onnxruntime, seen as an EP of epctx."""

    name = "OrtPluginExecutionProvider"
    vendor = "epctx tests, over onnxruntime"
    options = (
        plugin.ProviderOption(
            "library",
            str,
            default="",
            doc="The vendor's library, if ep_name needs one.",
        ),
        plugin.ProviderOption(
            "ep_name", str, default="CPUExecutionProvider", doc="The vendor's EP type."
        ),
        plugin.ProviderOption(
            "ep_options",
            str,
            default="{}",
            doc="JSON object with the vendor's options.",
        ),
    )

    def __init__(self, context: plugin.ProviderContext) -> None:
        super().__init__(context)
        device = _device(context.options["ep_name"], context.options["library"])
        self._session_options, self._asking = (
            onnxruntime.SessionOptions() for _ in range(2)
        )
        for options in (self._session_options, self._asking):
            options.add_provider_for_devices(
                [device], json.loads(context.options["ep_options"])
            )
        self._asking.graph_optimization_level = (
            onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        )
        self._asking.add_session_config_entry(
            "session.record_ep_graph_assignment_info", "1"
        )
        self._made: list[tuple[plugin.Partition, bytes]] = []

    @plugin.hookimpl
    def get_capability(
        self, graph: plugin.GraphView
    ) -> Sequence[plugin.ComputeCapability | plugin.Refusal]:
        """Take what the vendor's EP takes of the table: static shapes, and types that
        numpy has.
        """
        taken = self._taken(graph)

        def is_supported(node: plugin.NodeView) -> bool | str:
            if node.domain or node.op_type not in OPERATORS:
                return f"the operator {node.op_type} is not in the table"
            types = [
                graph.value(name).type for name in (*node.inputs, *node.outputs) if name
            ]
            if any(t.elem_type == TensorProto.BFLOAT16 for t in types):
                return "onnxruntime takes no bfloat16 arrays"
            if not all(t.is_static for t in types):
                return "a shape is not static"
            return (
                node.index in taken
                or f"{self.context.options['ep_name']} does not take it"
            )

        return plugin.supported_partitions(graph, is_supported)

    def _taken(self, graph: plugin.GraphView) -> set[int | None]:
        """Return the indices of the nodes that onnxruntime gives the vendor's EP; none
        of a graph that it refuses.
        """
        with self.context.scratch() as folder:
            path = folder / "graph.onnx"
            graph.save(path)
            model = onnx.load(path, load_external_data=False)
            number = plugin.number_nodes(model)
            path.write_bytes(model.SerializeToString())
            try:
                session = onnxruntime.InferenceSession(path, self._asking)
            except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no base of their own
                self.context.logger.info("onnxruntime refuses the graph: %s", error)
                return set()
        return {
            number(node.name)
            for piece in session.get_provider_graph_assignment_info()
            if piece.ep_name == self.context.options["ep_name"]
            for node in piece.get_nodes()
        }

    @plugin.hookimpl
    def compile(
        self, partitions: Sequence[plugin.Partition]
    ) -> Sequence[plugin.CompiledPartition]:
        """Have onnxruntime compile each partition to a context model in memory."""
        compiled = []
        for done, partition in enumerate(partitions):
            self.context.cancel.raise_if_requested()
            self.context.progress("compile", done, len(partitions))
            source = partition.model(inline_weights=True).SerializeToString()
            # True: whatever the vendor makes stands in the model.
            model = onnxruntime.ModelCompiler(
                self._session_options, source, True
            ).compile_to_bytes()
            self._made.append((partition, model))
            exporting = self.context.purpose is plugin.Purpose.EXPORT
            compiled.append(
                plugin.CompiledPartition(None) if exporting else self._runnable(model)
            )
        return compiled

    @plugin.hookimpl
    def get_ep_context_nodes(
        self, writer: plugin.ContextWriter
    ) -> Sequence[plugin.EPContextNode]:
        """Write all context models into one payload, in a share group those of all its
        members.
        """
        shared: dict[str, bytes] = self.context.workspace.get_or_create("models", dict)
        shared.update((partition.name, model) for partition, model in self._made)
        payload = writer.payload()
        if writer.final:
            names = [name for names in writer.graphs_by_model for name in names]
            plugin.write_blobs(
                payload, {name: shared[name] for name in names}, kind=KIND
            )
        said: dict[str, Any] = {"ep_sdk_version": onnxruntime.__version__}
        return [
            plugin.EPContextNode(partition, payload, attributes=said)
            for partition, _ in self._made
        ]

    @plugin.hookimpl
    def load_context(
        self, nodes: Sequence[plugin.ContextNode], reader: plugin.ContextReader
    ) -> Sequence[plugin.CompiledPartition]:
        """Make one onnxruntime session for each node."""
        opened = {
            payload: plugin.Blobs(payload, kind=KIND)
            for payload in set(map(reader.payload, nodes))
        }
        loaded = []
        for node in nodes:
            self.context.cancel.raise_if_requested()
            model = bytes(opened[reader.payload(node)][node.partition_name])
            try:
                loaded.append(self._runnable(model))
            except Exception as error:
                # Onnxruntime's exceptions have no base of their own.
                raise InvalidGraph(
                    f"onnxruntime refuses {node.name!r}: {error}", node=node.name
                ) from error
        return loaded

    def _runnable(self, model: bytes) -> plugin.CompiledPartition:
        session = onnxruntime.InferenceSession(model, self._session_options)
        names = [value.name for value in session.get_inputs()]

        def run(inputs: Arrays, outputs: Arrays | None = None) -> Arrays:
            results: list[np.ndarray] = session.run(
                None, dict(zip(names, inputs, strict=True))
            )
            for given, result in zip(
                outputs or (), results, strict=outputs is not None
            ):
                np.copyto(given, result)
            return results if outputs is None else outputs

        return plugin.CompiledPartition(run)

    @plugin.hookimpl
    def shutdown(self) -> None:
        """Let go of the models."""
        self._made.clear()


def _device(ep_name: str, library: str) -> onnxruntime.OrtEpDevice:
    """Return a device of a vendor's EP; its library stays registered, other sessions
    may use it.
    """
    try:
        with _registration:
            if library and ep_name not in {
                device.ep_name for device in onnxruntime.get_ep_devices()
            }:
                # The name given here is what this onnxruntime calls the EP, in context
                # models too.
                onnxruntime.register_execution_provider_library(ep_name, library)
        return next(
            device
            for device in onnxruntime.get_ep_devices()
            if device.ep_name == ep_name
        )
    except Exception as error:  # onnxruntime's exceptions have no base of their own
        message = (
            f"onnxruntime has no device for {ep_name} with the library {library!r}: "
            f"{error}"
        )
        raise InvalidArgument(
            message, hint="Set 'library' to the vendor's plugin-EP library."
        ) from error
