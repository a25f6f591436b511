"""ONNX models as OpenVINO's: a partition whole, and of a graph what its frontend
converts.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

import onnx
from onnx import TensorProto, helper

from epctx_core.plugin import number_nodes
from epctx_openvino.native import core, import_openvino, shorten

if TYPE_CHECKING:
    from collections.abc import Container

    import numpy as np
    import openvino

    from epctx_core.plugin import GraphView, Partition

_IN_MEMORY = "*/_ORT_MEM_ADDR_/*"
"""The location of an external tensor whose offset is an address, as onnxruntime's EP
gives weights to the frontend.
"""


class Source(NamedTuple):
    """A model that OpenVINO can compile.

    Attributes:
        model: reads its large weights where they lie.
        weights: those, to be kept as long as the model, or what was compiled from it,
            is in use.
    """

    model: openvino.Model
    weights: list[np.ndarray]


def read_partition(partition: Partition) -> Source:
    """Return a partition as a model of OpenVINO, without a copy of its large weights.

    Raises:
        RuntimeError: OpenVINO does not read it.
    """
    model = partition.model()
    kept = []
    _cast_to_bool_by_float(model, partition)
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            array = partition.weights[tensor.name].array()
            kept.append(array)
            place = {
                "location": _IN_MEMORY,
                "offset": str(array.ctypes.data),
                "length": str(array.nbytes),
            }
            del tensor.external_data[:]
            tensor.external_data.extend(
                onnx.StringStringEntryProto(key=k, value=v) for k, v in place.items()
            )
    return Source(core().read_model(model.SerializeToString()), kept)


def _cast_to_bool_by_float(model: onnx.ModelProto, partition: Partition) -> None:
    """Put a Cast to float before each of integers to booleans.

    OpenVINO takes an integer for True by its lower 32 bits alone; a float it makes of
    all of them.
    """
    nodes = []
    for node in model.graph.node:
        if (
            node.op_type == "Cast"
            and not node.domain
            and casts_to_bool(partition, node.input[0], node.output[0])
        ):
            name = f"epctx_float_of_{node.output[0]}"
            nodes.append(
                helper.make_node("Cast", [node.input[0]], [name], to=TensorProto.FLOAT)
            )
            node.input[0] = name
        nodes.append(node)
    if len(nodes) > len(model.graph.node):
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(copies)


def casts_to_bool(values: Partition | GraphView, source: str, made: str) -> bool:
    """Return whether a Cast makes booleans of integers of which OpenVINO does not look
    at all bits.
    """
    wide = {
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT32,
        TensorProto.UINT64,
    }
    return (
        values.value(made).elem_type == TensorProto.BOOL
        and values.value(source).elem_type in wide
    )


def find_unconverted(graph: GraphView) -> dict[int | None, str]:
    """Return a reason for each node that OpenVINO's frontend does not convert, by the
    node's index.

    One conversion tells of all nodes. No weight's bytes are needed: an input of its
    type and shape takes its place.
    """
    model = graph.model()
    number = number_nodes(model)
    for tensor in [
        t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL
    ]:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
        model.graph.initializer.remove(tensor)
    frontend = import_openvino().frontend.FrontEndManager().load_by_framework("onnx")
    try:
        operators = frontend.convert_partially(
            frontend.load(io.BytesIO(model.SerializeToString()))
        ).get_ops()
    except Exception as error:  # noqa: BLE001 - its errors have no common type
        reason = f"OpenVINO's frontend refuses the graph: {shorten(error)}"
        return dict.fromkeys(range(len(model.graph.node)), reason)
    left = [
        each for each in operators if each.get_type_name() == "NotSupportedONNXNode"
    ]
    reasons = {
        number(each.get_friendly_name()): "OpenVINO's frontend does not convert it"
        for each in left
    }
    return (
        dict.fromkeys(
            _find_unranked(model, reasons),
            "OpenVINO needs the rank of each value, which is not proven here",
        )
        | reasons
    )


def _find_unranked(
    model: onnx.ModelProto, unconverted: Container[int | None]
) -> list[int]:
    """Return the indices of nodes that depend on a value of unproven rank that another
    engine makes.

    That is what a Loop or the like carries on or makes, and results of custom
    operators.
    """
    if _list_unranked(model.graph, unconverted):
        # Proven shapes alone: what the model declares is not in it.
        model = onnx.shape_inference.infer_shapes(model)
    return _list_unranked(model.graph, unconverted)


def _list_unranked(
    graph: onnx.GraphProto, unconverted: Container[int | None]
) -> list[int]:
    unranked = {
        value.name
        for value in graph.input
        if not value.type.tensor_type.HasField("shape")
    }
    typed = (*graph.value_info, *graph.output)
    ranked = {value.name for value in typed if value.type.tensor_type.HasField("shape")}
    indices = []
    for index, node in enumerate(graph.node):
        leaves = not unranked.isdisjoint(node.input)
        if leaves:
            indices.append(index)
        if (
            leaves
            or index in unconverted
            or any(attribute.HasField("g") for attribute in node.attribute)
        ):
            unranked.update(name for name in node.output if name not in ranked)
    return indices
