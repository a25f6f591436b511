"""An EP over the `openvino` package: what a small third-party plugin in Python looks
like.

Imports the contract, the errors and the vendor's package, nothing else of epctx.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from onnx import TensorProto, helper

from epctx_core import plugin
from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    import openvino

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
FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
KIND = "openvino 1"
Arrays: TypeAlias = Sequence[np.ndarray]


@functools.cache
def _core() -> openvino.Core:
    """Return the one core of this process.

    OpenVINO's CPU device gives the thread that first compiles a signal stack of its own
    and takes it away when the core ends. When another thread ends it, or two cores end
    in the order in which they began, the thread is left with memory that is gone, and
    the next signal kills the process.
    """
    import openvino  # here, because importing it starts threads and writes statistics

    return openvino.Core()


def unconverted(graph: plugin.GraphView) -> set[int | None]:
    """Return the indices of the nodes that OpenVINO's front end does not convert."""
    from openvino.frontend import FrontEndManager

    model = graph.model()
    number = plugin.number_nodes(model)
    # No weight's bytes are needed to ask: an input of its type and shape does.
    for tensor in [
        t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL
    ]:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
        model.graph.initializer.remove(tensor)
    frontend = FrontEndManager().load_by_framework("onnx")
    try:
        found = frontend.convert_partially(
            frontend.load(io.BytesIO(model.SerializeToString()))
        ).get_ops()
    except RuntimeError:
        # Such as for an operator of which it knows the name and not the version.
        return set(range(len(model.graph.node)))
    return {
        number(o.get_friendly_name())
        for o in found
        if o.get_type_name() == "NotSupportedONNXNode"
    }


class OpenVinoPackageProvider(plugin.ExecutionProvider):
    """OpenVINO through its Python package."""

    name = "OpenVinoPackageExecutionProvider"
    vendor = "epctx tests, over the openvino package"
    options = (
        plugin.ProviderOption(
            "device_type", str, default="CPU", doc="OpenVINO's name of the device."
        ),
        plugin.ProviderOption(
            "precision", str, default="f32", choices=("f32", "bf16"), doc="Arithmetic."
        ),
    )

    def __init__(self, context: plugin.ProviderContext) -> None:
        super().__init__(context)
        self._device = context.options["device_type"]
        self._compiled: list[tuple[plugin.Partition, openvino.CompiledModel]] = []
        self._blobs: list[np.ndarray] = []

    @plugin.hookimpl
    def get_capability(
        self, graph: plugin.GraphView
    ) -> Sequence[plugin.ComputeCapability | plugin.Refusal]:
        """Take the operators of the table that the front end converts, on floats of a
        known rank.
        """
        refused = unconverted(graph)

        def is_supported(node: plugin.NodeView) -> bool | str:
            if node.domain or node.op_type not in OPERATORS:
                return f"the operator {node.op_type} is not in the table"
            names = filter(None, (*node.inputs, *node.outputs))
            values = [graph.initializer(name) or graph.value(name) for name in names]
            if any(
                value.elem_type not in FLOATS or value.shape is None for value in values
            ):
                return "a value is no float, or has no known rank"
            return (
                node.index not in refused or "OpenVINO's front end does not convert it"
            )

        return plugin.supported_partitions(graph, is_supported)

    @plugin.hookimpl
    def compile(
        self, partitions: Sequence[plugin.Partition]
    ) -> Sequence[plugin.CompiledPartition]:
        """Compile one model for each partition; through files, so that weights are
        mapped, not copied.
        """
        config = {"INFERENCE_PRECISION_HINT": self.context.options["precision"]}
        compiled = []
        for done, partition in enumerate(partitions):
            self.context.cancel.raise_if_requested()
            self.context.progress("compile", done, len(partitions))
            with self.context.scratch() as folder:
                partition.save(folder / "model.onnx")
                model = _core().compile_model(
                    folder / "model.onnx", self._device, config
                )
            self._compiled.append((partition, model))
            compiled.append(_runnable(model, partition.outputs))
        return compiled

    @plugin.hookimpl
    def get_ep_context_nodes(
        self, writer: plugin.ContextWriter
    ) -> Sequence[plugin.EPContextNode]:
        """Write all blobs into one payload, in a share group those of all its
        models.
        """
        import openvino

        shared: dict[str, Any] = self.context.workspace.get_or_create("blobs", dict)
        for partition, model in self._compiled:
            if (
                partition.name not in shared
            ):  # OpenVINO does not export the same bytes twice
                shared[partition.name] = model.export_model().getbuffer()
        payload = writer.payload()
        if writer.final:
            blobs = {
                name: shared[name] for names in writer.graphs_by_model for name in names
            }
            precision = {"precision": self.context.options["precision"]}
            plugin.write_blobs(
                payload, blobs, dict.fromkeys(blobs, precision), kind=KIND
            )
        said = {"ep_sdk_version": openvino.__version__}
        return [
            plugin.EPContextNode(partition, payload, attributes=said)
            for partition, _ in self._compiled
        ]

    @plugin.hookimpl
    def load_context(
        self, nodes: Sequence[plugin.ContextNode], reader: plugin.ContextReader
    ) -> Sequence[plugin.CompiledPartition]:
        """Import each node's blob from where it is mapped."""
        import openvino

        opened = {
            payload: plugin.Blobs(payload, kind=KIND)
            for payload in set(map(reader.payload, nodes))
        }
        loaded = []
        for node in nodes:
            self.context.cancel.raise_if_requested()
            blobs = opened[reader.payload(node)]
            blob = np.frombuffer(blobs[node.partition_name], np.uint8)
            try:
                tensor = openvino.Tensor(blob, blob.shape, openvino.Type.u8)
                # A blob does not hold the precision that it was compiled for.
                config = {
                    "INFERENCE_PRECISION_HINT": blobs.facts(node.partition_name)[
                        "precision"
                    ]
                }
                model = _core().import_model(tensor, self._device, config)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise InvalidGraph(
                    f"OpenVINO refuses {node.name!r}: {error}", node=node.name
                ) from error
            # The model reads its weights from here as long as it lives.
            self._blobs.append(blob)
            loaded.append(_runnable(model, node.outputs))
        return loaded

    @plugin.hookimpl
    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return memory that OpenVINO aligned for the device."""
        import openvino

        return (
            openvino.Tensor(openvino.Type.u8, [*shape, dtype.itemsize])
            .data.view(dtype)
            .reshape(shape)
        )

    @plugin.hookimpl
    def shutdown(self) -> None:
        """Let go of models and blobs."""
        self._compiled.clear()
        self._blobs.clear()


def _runnable(
    model: openvino.CompiledModel, values: Sequence[plugin.ValueInfo]
) -> plugin.CompiledPartition:
    """Return a model with positional inputs and outputs; each run has a request of its
    own.
    """
    import openvino

    def run(inputs: Arrays, outputs: Arrays | None = None) -> Arrays:
        request = model.create_infer_request()
        arrays = (*inputs, *(outputs or ()))
        for port, array in zip(
            (*model.inputs, *model.outputs), arrays, strict=outputs is not None
        ):
            # As plain numbers of the same size: OpenVINO does not know numpy's
            # bfloat16.
            tensor = openvino.Tensor(
                array.view(f"u{array.itemsize}"), array.shape, port.element_type
            )
            request.set_tensor(port, tensor)
        request.infer()
        if outputs is not None:
            return outputs
        made = zip(model.outputs, values, strict=True)
        return [
            request.get_tensor(port).data.copy().view(value.dtype)
            for port, value in made
        ]

    return plugin.CompiledPartition(run)
