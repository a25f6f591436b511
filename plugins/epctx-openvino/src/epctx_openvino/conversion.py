"""ONNX models as OpenVINO's: a partition whole, and of a graph what its frontend converts."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, NamedTuple

import onnx
from onnx import TensorProto, helper

from epctx_core.plugin import number_nodes
from epctx_openvino.native import core, import_openvino, shorten

if TYPE_CHECKING:
    import numpy as np
    import openvino

    from epctx_core.plugin import GraphView, Partition

_IN_MEMORY = "*/_ORT_MEM_ADDR_/*"
"""The location of an external tensor whose offset is an address, as onnxruntime's EP gives weights to the frontend."""


class Source(NamedTuple):
    """A model that OpenVINO can compile.

    Attributes:
        model: reads its large weights where they lie.
        weights: those, to be kept as long as the model, or what was compiled from it, is in use.
    """

    model: openvino.Model
    weights: list[np.ndarray]


def read_partition(partition: Partition) -> Source:
    """Return a partition as a model of OpenVINO, without a copy of its large weights.

    Raises:
        RuntimeError: OpenVINO does not read it.
    """
    model, kept = partition.model(), []
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            array = partition.weights[tensor.name].array()
            kept.append(array)
            place = {"location": _IN_MEMORY, "offset": str(array.ctypes.data), "length": str(array.nbytes)}
            del tensor.external_data[:]
            tensor.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in place.items())
    return Source(core().read_model(model.SerializeToString()), kept)


def find_unconverted(graph: GraphView) -> dict[int | None, str]:
    """Return a reason for each node that OpenVINO's frontend does not convert, by the node's index.

    One conversion tells of all nodes. No weight's bytes are needed: an input of its type and shape takes its place.
    """
    model = graph.model()
    number = number_nodes(model)
    for tensor in [t for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        model.graph.initializer.remove(tensor)
    frontend = import_openvino().frontend.FrontEndManager().load_by_framework("onnx")
    try:
        found = frontend.convert_partially(frontend.load(io.BytesIO(model.SerializeToString()))).get_ops()
    except Exception as error:  # noqa: BLE001 - its errors have no common type
        reason = f"OpenVINO's frontend refuses the graph: {shorten(error)}"
        return dict.fromkeys(range(len(model.graph.node)), reason)
    left = [each for each in found if each.get_type_name() == "NotSupportedONNXNode"]
    return {number(each.get_friendly_name()): "OpenVINO's frontend does not convert it" for each in left}
