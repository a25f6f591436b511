"""An EP over the `openvino` package: what a small third-party plugin in Python looks like.

Imports the contract, the errors and the vendor's package, nothing else of epctx.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import openvino

from epctx_core import plugin
from epctx_core.errors import InvalidGraph

OPERATORS = {"Add", "Conv", "Flatten", "Gemm", "GlobalAveragePool", "MatMul", "MaxPool", "Neg", "Relu"}
ALIGNMENT = 4096
Arrays: TypeAlias = Sequence[np.ndarray]


@functools.cache
def _core() -> openvino.Core:
    """Return the one core of this process.

    OpenVINO's CPU device gives the thread that first compiles a signal stack of its own and takes it away when
    the core ends. When another thread ends it, or two cores end in the order in which they began, the thread is
    left with memory that is gone, and the next signal kills the process.
    """
    return openvino.Core()


class OpenVinoPackageProvider(plugin.ExecutionProvider):
    """OpenVINO through its Python package."""

    name = "OpenVinoPackageExecutionProvider"
    options = (
        plugin.ProviderOption("device_type", str, default="CPU", doc="OpenVINO's name of the device."),
        plugin.ProviderOption("precision", str, default="f32", choices=("f32", "bf16"), doc="Arithmetic."),
    )

    def __init__(self, context: plugin.ProviderContext) -> None:
        super().__init__(context)
        self._core = _core()
        self._device = context.options["device_type"]
        self._compiled: list[tuple[plugin.Partition, openvino.CompiledModel]] = []
        self._blobs: list[np.ndarray] = []

    @plugin.hookimpl
    def get_capability(self, graph: plugin.GraphView) -> Sequence[plugin.ComputeCapability | plugin.Refusal]:
        """Take the operators of the table, wherever the ranks of all values are known."""

        def is_supported(node: plugin.NodeView) -> bool | str:
            if node.domain or node.op_type not in OPERATORS:
                return f"the operator {node.op_type} is not in the table"
            values = [graph.value(name) for name in (*node.inputs, *node.outputs) if name]
            return all(value.shape is not None for value in values) or "a value has no known rank"

        return plugin.supported_partitions(graph, is_supported)

    @plugin.hookimpl
    def compile(self, partitions: Sequence[plugin.Partition]) -> Sequence[plugin.CompiledPartition]:
        """Compile one model for each partition; through files, so that weights are mapped, not copied."""
        config = {"INFERENCE_PRECISION_HINT": self.context.options["precision"]}
        compiled = []
        for done, partition in enumerate(partitions):
            self.context.cancel.raise_if_requested()
            self.context.progress("compile", done, len(partitions))
            with self.context.scratch() as folder:
                partition.save(folder / "model.onnx")
                model = self._core.compile_model(folder / "model.onnx", self._device, config)
            self._compiled.append((partition, model))
            compiled.append(_runnable(model, partition.outputs))
        return compiled

    @plugin.hookimpl
    def get_ep_context_nodes(self, writer: plugin.ContextWriter) -> Sequence[plugin.EPContextNode]:
        """Write all blobs into one payload; each node says where its own lies."""
        payload = writer.payload()
        nodes = []
        for partition, model in self._compiled:
            facts = {"offset": payload.align(ALIGNMENT), "precision": self.context.options["precision"]}
            payload.write(model.export_model().getbuffer())
            facts |= {"length": payload.size - facts["offset"], "ep_sdk_version": openvino.__version__}
            nodes.append(plugin.EPContextNode(partition, payload, attributes=facts))
        return nodes

    @plugin.hookimpl
    def load_context(
        self, nodes: Sequence[plugin.ContextNode], reader: plugin.ContextReader
    ) -> Sequence[plugin.CompiledPartition]:
        """Import each node's blob from where it is mapped."""
        loaded = []
        for node in nodes:
            self.context.cancel.raise_if_requested()
            view, facts = reader.payload(node).view, node.attributes
            try:
                blob = np.frombuffer(view, np.uint8, facts["length"], facts["offset"])
                tensor = openvino.Tensor(blob, blob.shape, openvino.Type.u8)
                # A blob does not hold the precision that it was compiled for.
                config = {"INFERENCE_PRECISION_HINT": facts["precision"]}
                model = self._core.import_model(tensor, self._device, config)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise InvalidGraph(f"OpenVINO refuses {node.name!r}: {error}", node=node.name) from error
            # The model reads its weights from here as long as it lives.
            self._blobs.append(blob)
            loaded.append(_runnable(model, node.outputs))
        return loaded

    @plugin.hookimpl
    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return memory that OpenVINO aligned for the device."""
        return openvino.Tensor(openvino.Type.u8, [*shape, dtype.itemsize]).data.view(dtype).reshape(shape)

    @plugin.hookimpl
    def shutdown(self) -> None:
        """Let go of models and blobs."""
        self._compiled.clear()
        self._blobs.clear()


def _runnable(model: openvino.CompiledModel, values: Sequence[plugin.ValueInfo]) -> plugin.CompiledPartition:
    """Return a model with positional inputs and outputs; each run has a request of its own."""

    def run(inputs: Arrays, outputs: Arrays | None = None) -> Arrays:
        request = model.create_infer_request()
        arrays = (*inputs, *(outputs or ()))
        for port, array in zip((*model.inputs, *model.outputs), arrays, strict=outputs is not None):
            # As plain numbers of the same size: OpenVINO does not know numpy's bfloat16.
            tensor = openvino.Tensor(array.view(f"u{array.itemsize}"), array.shape, port.element_type)
            request.set_tensor(port, tensor)
        request.infer()
        if outputs is not None:
            return outputs
        made = zip(model.outputs, values, strict=True)
        return [request.get_tensor(port).data.copy().view(value.dtype) for port, value in made]

    return plugin.CompiledPartition(run)
