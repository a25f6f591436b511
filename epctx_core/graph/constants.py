"""What Constant nodes give, as weights: every piece that reads one then has it at hand, as onnxruntime's graphs do.

As a value that flows from piece to piece a constant would be unknown where it decides a shape: onnxruntime
refuses a Scan whose body's shapes it cannot tell, and EPs refuse a Reshape without its shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import GraphProto, TensorProto, helper

from epctx_core.graph.weights import body_weights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onnx import NodeProto

    from epctx_core.graph.weights import Weight

OPERATORS = frozenset({("", "Constant"), ("ai.onnx", "Constant")})
_NUMBERS = {
    "value_float": TensorProto.FLOAT,
    "value_floats": TensorProto.FLOAT,
    "value_int": TensorProto.INT64,
    "value_ints": TensorProto.INT64,
}


def node_weights(nodes: Iterable[NodeProto]) -> dict[str, Weight]:
    """Return the values of Constant nodes by name; without those that are text or sparse.

    Raises:
        InvalidGraph: a constant whose bytes do not fit its shape.
    """
    held = GraphProto()
    for node in nodes:
        if (node.domain, node.op_type) in OPERATORS and len(node.attribute) == len(node.output) == 1:
            _add_value(held, node)
    return body_weights(held)


def _add_value(held: GraphProto, node: NodeProto) -> None:
    (attribute,), (name,) = node.attribute, node.output
    if attribute.name == "value":
        held.initializer.add().CopyFrom(attribute.t)
        held.initializer[-1].name = name
    elif attribute.name in _NUMBERS:
        value = helper.get_attribute_value(attribute)
        several = attribute.name.endswith("s")
        shape, numbers = ([len(value)], value) if several else ([], [value])
        held.initializer.append(helper.make_tensor(name, _NUMBERS[attribute.name], shape, numbers))
