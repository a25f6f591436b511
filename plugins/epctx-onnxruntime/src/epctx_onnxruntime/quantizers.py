"""Shapes behind quantisers of `com.microsoft`, which stand between all operators of a
network.

onnxruntime alone has their schemas, and only onnx follows shapes that a model computes.
So they are for onnx what they are to types: a Cast.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING

import onnx
from onnx import ModelProto, TensorProto

from epctx_core.ext import infer_safely
from epctx_onnxruntime.graphs import all_graphs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import NodeProto, ValueInfoProto

_log = logging.getLogger("epctx.engines")
_QUANTIZERS = {"QuantizeLinear": 2, "DequantizeLinear": 1}
"""The input that has the type of the result: the zero point, the scale."""


def see_through_quantizers(inferred: ModelProto) -> None:
    """Declare, in place, what onnx infers behind quantisers of `com.microsoft`, too."""
    probe = ModelProto()
    probe.CopyFrom(inferred)
    graphs = [graph for _, graph in all_graphs(probe.graph)]
    elem_types: dict[str, int] = {}
    for graph in graphs:
        elem_types |= {
            v.name: v.type.tensor_type.elem_type
            for v in (*graph.input, *graph.value_info)
        }
        elem_types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    if not [node for graph in graphs for node in graph.node if _cast(node, elem_types)]:
        return
    try:
        inferred_probe = infer_safely(probe, strict=False)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        _log.debug("onnx does not infer what is behind quantisers: %s", error)
        return
    for (_, graph), (_, better) in zip(
        all_graphs(inferred.graph), all_graphs(inferred_probe.graph), strict=True
    ):
        declared = {
            value.name: value for value in chain(graph.value_info, graph.output)
        }
        for value in chain(better.value_info, better.output):
            target = declared.get(value.name)
            if _count_lengths(value) > (
                0 if target is None else _count_lengths(target)
            ):
                (target or graph.value_info.add(name=value.name)).type.CopyFrom(
                    value.type
                )


def _cast(node: NodeProto, elem_types: Mapping[str, int]) -> bool:
    """Turn a quantiser of `com.microsoft` into a Cast in place; return whether it was
    one with known types.
    """
    if node.domain != "com.microsoft" or node.op_type not in _QUANTIZERS:
        return False
    place = _QUANTIZERS[node.op_type]
    has_type = len(node.input) > place and node.input[place]
    kind = elem_types.get(node.input[place], 0) if has_type else TensorProto.UINT8
    if not kind:
        return False
    del node.input[1:]
    del node.attribute[:]
    node.attribute.append(onnx.helper.make_attribute("to", kind))
    node.op_type = "Cast"
    node.domain = ""
    return True


def _count_lengths(value: ValueInfoProto) -> int:
    """Return how much is known of a tensor: 0 without a type, 1 without a rank, then 2
    and one for each length.
    """
    kind = value.type.tensor_type
    if not kind.elem_type:
        return 0
    return (
        1
        + int(kind.HasField("shape"))
        + sum(bool(dim.HasField("dim_value")) for dim in kind.shape.dim)
    )
