"""How much device memory the activations of a graph need at once.

Works on shapes alone; a value whose size is not known before a run counts as nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALIGNMENT = 128
"""Bytes: each activation begins on a vector register's width."""


def activation_peak(model: onnx.ModelProto) -> int:
    """Return the bytes of the largest set of activations that live at the same time.

    Inputs and outputs count too, because the device works on copies of its own. Each value lives from
    the node that makes it to the last node that reads it. Weights, and what is computed from weights
    alone, do not count. Linear in the nodes.

    Args:
        model: one partition, without value types inside; weights may stand as external tensors.
    """
    graph = model.graph
    sizes = _sizes(model)
    last_read = {name: index for index, node in enumerate(graph.node) for name in _reads(node)}
    last_read |= {value.name: len(graph.node) for value in graph.output}
    freed = [0] * (len(graph.node) + 1)
    live = 0
    for value in graph.input:
        live += sizes.get(value.name, 0)
        freed[last_read.get(value.name, 0)] += sizes.get(value.name, 0)
    peak = live
    for index, node in enumerate(graph.node):
        for name in node.output:
            live += sizes.get(name, 0)
            freed[last_read.get(name, index)] += sizes.get(name, 0)
        peak = max(peak, live)
        live -= freed[index]
    return peak


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for body in (*attribute.graphs, attribute.g):
            yield from (name for inner in body.node for name in _reads(inner))


def _sizes(model: onnx.ModelProto) -> dict[str, int]:
    """Return the bytes of each activation, by name."""
    constants = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if constants.issuperset(filter(None, node.input)):
            constants.update(node.output)
    graph = _with_types(model)
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name: _size(value.type.tensor_type) for value in values if value.name not in constants}


def _with_types(model: onnx.ModelProto) -> onnx.GraphProto:
    """Return the graph with inferred types; onnx would look for the files of external weights."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    tensors = list(probe.graph.initializer)
    del probe.graph.initializer[:]
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            probe.graph.input.append(value)
        else:
            probe.graph.initializer.append(tensor)
    return onnx.shape_inference.infer_shapes(probe, data_prop=True).graph


def _size(tensor: onnx.TypeProto.Tensor) -> int:
    known = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
    if not known or tensor.elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return 0
    count: int = math.prod(dim.dim_value for dim in tensor.shape.dim)
    nbytes: int = count * int(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize)
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
