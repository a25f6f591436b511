"""The simulated compiler: from a partition to the SDK's own graph.

Opens no device and reads no weight: large weights stay views until the graph is written
or run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from epctx_core.errors import EPFail
from epctx_sim_sdk.precision import store_as_half

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from epctx_core.plugin import Partition, TensorType, TensorView, ValueInfo

_ALIGNMENT = 128
"""Bytes: each activation begins on a vector register's width."""


def activation_peak(partition: Partition) -> int:
    """Return the bytes of the largest set of activations that live at the same time.

    Inputs and outputs count too, because the device works on copies of its own. Each
    value lives from the node that makes it to the last node that reads it. Weights, and
    what is computed from weights alone, do not count. Linear in the nodes.
    """
    nodes = partition.nodes
    last_read = {
        name: index
        for index, node in enumerate(nodes)
        for name in (*node.inputs, *node.implicit_inputs)
    }
    last_read |= {value.name: len(nodes) for value in partition.outputs}
    freed = [0] * (len(nodes) + 1)
    live = 0
    for value in partition.inputs:
        size = _measure_size(value.type)
        live += size
        freed[last_read.get(value.name, 0)] += size

    peak = live
    constants = set(partition.weights)
    for index, node in enumerate(nodes):
        if constants.issuperset(filter(None, (*node.inputs, *node.implicit_inputs))):
            constants.update(node.outputs)
        else:
            for name in filter(None, node.outputs):
                size = _measure_size(partition.value(name).type)
                live += size
                freed[last_read.get(name, index)] += size
        peak = max(peak, live)
        live -= freed[index]
    return peak


def _measure_size(kind: TensorType) -> int:
    """Return the bytes of a value; 0 if they are not known before a run."""
    if kind.dtype is None or kind.elem_type == onnx.TensorProto.STRING:
        return 0
    lengths = [length for length in kind.shape or () if isinstance(length, int)]
    if kind.shape is None or len(lengths) < len(kind.shape):
        return 0
    return -(-math.prod(lengths) * kind.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT


WEIGHT_LOCATION = "epctx-weight"
"""The location of every weight that is in the container: the one of the core's engines,
which weights above `container.SMALL` have from the start.
"""


def canonicalise(model: onnx.ModelProto) -> dict[str, str]:
    """Rename every value by its place in the graph and remove all that does not
    compute.

    Values become `i0..` (inputs), `w0..` (weights, in order of first use) and `v0..`
    (the rest). The model is changed in place.

    Args:
        model: one partition's, where nothing but nodes and text can say more.

    Returns:
        The new name of each value.
    """
    graph = model.graph
    names = _number_names(graph)
    graph.initializer.sort(key=lambda tensor: int(names[tensor.name][1:]))
    _rename(graph, names)
    imports = sorted({(opset.domain, opset.version) for opset in model.opset_import})
    del model.opset_import[:]
    for domain, version in imports:
        model.opset_import.add(domain=domain, version=version)
    return names


def _number_names(graph: onnx.GraphProto) -> dict[str, str]:
    weights = {tensor.name for tensor in graph.initializer}
    names = {value.name: f"i{index}" for index, value in enumerate(graph.input)}
    counts = {"w": 0, "v": 0}
    for name in _list_names(graph):
        if name and name not in names:
            kind = "w" if name in weights else "v"
            names[name] = f"{kind}{counts[kind]}"
            counts[kind] += 1
    return names


def _list_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that nodes read and write and that the graph gives, subgraphs
    included.
    """
    for node in graph.node:
        yield from node.input
        for subgraph in _list_subgraphs(node):
            yield from (value.name for value in subgraph.input)
            yield from (tensor.name for tensor in subgraph.initializer)
            yield from _list_names(subgraph)
        yield from node.output
    yield from (value.name for value in graph.output)


def _list_subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    graph.name = "graph"
    graph.ClearField("doc_string")
    for notes in (
        graph.value_info,
        graph.quantization_annotation,
        graph.metadata_props,
    ):
        del notes[:]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = names[value.name]
        value.ClearField("doc_string")
    for node in graph.node:
        _rename_node(node, names)


def _rename_node(node: onnx.NodeProto, names: dict[str, str]) -> None:
    node.ClearField("name")
    node.ClearField("doc_string")
    del node.metadata_props[:]
    node.input[:] = [names.get(name, "") for name in node.input]
    node.output[:] = [names.get(name, "") for name in node.output]
    for attribute in node.attribute:
        attribute.ClearField("doc_string")
    for subgraph in _list_subgraphs(node):
        _rename(subgraph, names)


@dataclass(kw_only=True, slots=True)
class SimGraph:
    """A compiled partition.

    Never changed; not frozen, because a network can have very many.

    Attributes:
        structure: a serialised ONNX model without names of its own and without large
            weights.
        weights: the views behind the structure's external initializers, by their names
            there.
        partition: what was compiled; kept, because the views are valid only as long as
            it lives.
    """

    structure: bytes
    weights: Mapping[str, TensorView]
    partition: Partition

    @property
    def name(self) -> str:
        """The graph's name in a container.

        Making it may read all weights, so only writing asks for it.
        """
        return self.partition.name

    @property
    def activation_bytes(self) -> int:
        """Device memory for activations, planned for the network's own operators."""
        return activation_peak(self.partition)

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """Values that flow in, in order."""
        return self.partition.inputs

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """Values that flow out, in order."""
        return self.partition.outputs

    def model(self) -> onnx.ModelProto:
        """Return the structure as a new ONNX model."""
        model: onnx.ModelProto = onnx.ModelProto.FromString(self.structure)
        return model


def compile_partition(
    partition: Partition,
    *,
    ep: str,
    fp16: bool = False,
    weightless: bool = False,
) -> SimGraph:
    """Convert a partition to the SDK's graph.

    Args:
        partition: as the core gave it.
        ep: the EP name, for messages.
        fp16: store float32 weights as float16.
        weightless: keep no value of the source's small weights in the structure either.

    Raises:
        EPFail: the partition holds something that the container cannot.
    """
    model = partition.model()
    external = {
        tensor.name: partition.weights[tensor.name]
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    weights: Mapping[str, TensorView] = (
        store_as_half(model, external) if fp16 else external
    )
    if weightless:
        weights = {**weights, **_detach_small(model, partition.weights)}
    names = canonicalise(model)
    stored = {names[old]: view for old, view in weights.items()}
    for view in stored.values():
        _check_weight(view, partition, ep)

    order = [tensor.name for tensor in model.graph.initializer]
    return SimGraph(
        structure=model.SerializeToString(deterministic=True),
        weights={name: stored[name] for name in order if name in stored},
        partition=partition,
    )


def _detach_small(
    model: onnx.ModelProto, views: Mapping[str, TensorView]
) -> dict[str, TensorView]:
    """Take the values of the source's weights that are inline out of a model; return
    the weights by name.
    """
    detached: dict[str, TensorView] = {}
    for tensor in model.graph.initializer:
        view = views.get(tensor.name)
        if (
            view is None
            or view.source_name is None
            or tensor.data_location == onnx.TensorProto.EXTERNAL
        ):
            continue
        # Packed types, and tensors of nothing, stay where they are.
        size = math.prod(view.shape) * view.dtype.itemsize
        if view.nbytes and size == view.nbytes:
            tensor.CopyFrom(
                onnx.TensorProto(
                    name=tensor.name,
                    data_type=tensor.data_type,
                    dims=tensor.dims,
                    data_location=onnx.TensorProto.EXTERNAL,
                )
            )
            tensor.external_data.add(key="location", value=WEIGHT_LOCATION)
            detached[tensor.name] = view
    return detached


def _check_weight(view: TensorView, partition: Partition, ep: str) -> None:
    count = math.prod(view.shape)
    if count * view.dtype.itemsize != view.nbytes:
        raise EPFail(
            f"{ep} cannot compile partition {partition.name!r}: weight {view.name!r} "
            f"has {view.nbytes} bytes for {count} elements of {view.dtype}, and the "
            "container holds no packed types.",
            ep=ep,
            node=partition.name,
            hint="Leave nodes with weights of less than 8 bits a value to another EP.",
        )
