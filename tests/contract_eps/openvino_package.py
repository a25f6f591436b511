"""An EP over the `openvino` package: what a small third-party plugin in Python looks like.

Imports the contract, the errors and the vendor's package, nothing else of epctx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx
import openvino

from epctx_core.errors import InvalidGraph
from epctx_core.plugin import (
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    ProviderOption,
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
        ValueInfo,
    )

OPERATORS = frozenset(
    {
        "Add", "AveragePool", "Conv", "Flatten", "Gemm", "GlobalAveragePool", "Identity", "MatMul", "MaxPool",
        "Neg", "Relu", "Reshape",
    }
)  # fmt: skip
ALIGNMENT = 4096


class OpenVinoPackageProvider(ExecutionProvider):
    """OpenVINO through its Python package."""

    name: ClassVar[str] = "OpenVinoPackageExecutionProvider"
    options: ClassVar[Sequence[ProviderOption]] = (
        ProviderOption("device_type", str, default="CPU", doc="OpenVINO's name of the device."),
        ProviderOption("precision", str, default="f32", choices=("f32", "bf16"), doc="Type of arithmetic."),
    )

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        self._core = openvino.Core()
        self._device = context.options["device_type"]
        self._compiled: list[tuple[Partition, openvino.CompiledModel]] = []

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take the operators of the table, wherever the ranks of all values are known."""

        def is_supported(node: NodeView) -> bool | str:
            if node.domain or node.op_type not in OPERATORS:
                return f"the operator {node.op_type} is not in the table"
            values = [graph.value(name) for name in (*node.inputs, *node.outputs) if name]
            return all(value.shape is not None for value in values) or "a value has no known rank"

        return supported_partitions(graph, is_supported)

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Compile one model for each partition."""
        config = {"INFERENCE_PRECISION_HINT": self.context.options["precision"]}
        compiled = []
        for done, partition in enumerate(partitions):
            self.context.cancel.raise_if_requested()
            self.context.progress("compile", done, len(partitions))
            source = self._core.read_model(_complete_model(partition).SerializeToString())
            model = self._core.compile_model(source, self._device, config)
            self._compiled.append((partition, model))
            compiled.append(_runnable(model, partition.outputs))
        return compiled

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        """Write all blobs into one payload; each node says where its own lies."""
        payload = writer.payload()
        nodes = []
        for partition, model in self._compiled:
            offset = payload.align(ALIGNMENT)
            payload.write(model.export_model().getbuffer())
            place = {"offset": offset, "length": payload.size - offset}
            facts = {"ep_sdk_version": openvino.__version__, "precision": self.context.options["precision"]}
            nodes.append(EPContextNode(partition, payload, attributes=place | facts))
        return nodes

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Import each node's blob from where it is mapped."""
        return [self._load(node, reader) for node in nodes]

    def _load(self, node: ContextNode, reader: ContextReader) -> CompiledPartition:
        self.context.cancel.raise_if_requested()
        view = reader.payload(node).view
        offset, length = node.attributes.get("offset", 0), node.attributes.get("length", -1)
        if not 0 <= offset < offset + length <= len(view):
            raise InvalidGraph(f"node {node.name!r} does not say where its blob lies.", node=node.name)
        blob = np.frombuffer(view, np.uint8, length, offset)
        # A blob does not hold the precision that it was compiled for.
        config = {"INFERENCE_PRECISION_HINT": node.attributes.get("precision", "f32")}
        try:
            tensor = openvino.Tensor(blob, blob.shape, openvino.Type.u8)
            model = self._core.import_model(tensor, self._device, config)
        except RuntimeError as error:
            raise InvalidGraph(f"OpenVINO refuses {node.name!r}: {error}", node=node.name) from error
        return _runnable(model, node.outputs, keep=view)

    @hookimpl
    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return memory that OpenVINO aligned for the device."""
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return openvino.Tensor(openvino.Type.u8, [count]).data.view(dtype).reshape(shape)

    @hookimpl
    def shutdown(self) -> None:
        """Let go of the models."""
        self._compiled.clear()


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


def _runnable(
    model: openvino.CompiledModel, outputs: Sequence[ValueInfo], keep: object = None
) -> CompiledPartition:
    """Return a model with positional inputs and outputs; `keep` lives as long as it does."""
    input_types = [port.element_type for port in model.inputs]
    output_types = [port.element_type for port in model.outputs]
    dtypes = [value.dtype for value in outputs]
    shapes = [None if p.partial_shape.is_dynamic else tuple(p.shape) for p in model.outputs]

    def run(
        inputs: Sequence[np.ndarray], given: Sequence[np.ndarray] | None = None, _keep: object = keep
    ) -> Sequence[np.ndarray]:
        request = model.create_infer_request()
        for place, (array, kind) in enumerate(zip(inputs, input_types, strict=True)):
            request.set_input_tensor(place, _shared(array, kind))
        if given is None and None not in shapes:
            given = [np.empty(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        if given is None:
            request.infer()
            made = [request.get_output_tensor(place).data.copy() for place in range(len(dtypes))]
            return [array.view(dtype) for array, dtype in zip(made, dtypes, strict=True)]
        for place, (array, kind) in enumerate(zip(given, output_types, strict=True)):
            request.set_output_tensor(place, _shared(array, kind))
        request.infer()
        return given

    return CompiledPartition(run)


def _shared(array: np.ndarray, kind: openvino.Type) -> openvino.Tensor:
    """Return a tensor over an array's memory; OpenVINO does not know numpy's bfloat16."""
    plain = array.view(np.uint16) if kind == openvino.Type.bf16 else array
    return openvino.Tensor(plain, array.shape, kind)
