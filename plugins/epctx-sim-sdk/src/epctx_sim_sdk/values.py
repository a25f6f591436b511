"""Facts about a node before a run, for a vendor's conditions: its constants, its
attributes as text, and conditions that several vendors have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView, NodeView

_CONSTANT_VALUES = ("value", "value_int", "value_ints", "value_float", "value_floats")


def is_constant(graph: GraphView, name: str) -> bool:
    """Return whether a value is known before a run: a weight, or what a Constant node
    gives.
    """
    return (
        graph.initializer(name) is not None or _find_constant(graph, name) is not None
    )


def constant(graph: GraphView, name: str) -> np.ndarray | None:
    """Return the value of a constant; None if it is none, or one of text."""
    weight = graph.initializer(name)
    if weight is not None:
        return weight.array()
    node = _find_constant(graph, name)
    attributes = node.attributes if node is not None else {}
    return next(
        (np.asarray(attributes[key]) for key in _CONSTANT_VALUES if key in attributes),
        None,
    )


def _find_constant(graph: GraphView, name: str) -> NodeView | None:
    producer = graph.producer(name)
    is_one = producer is not None and (producer.domain, producer.op_type) == (
        "",
        "Constant",
    )
    return producer if is_one else None


def text_attribute(node: NodeView, name: str, default: str) -> str:
    """Return an attribute as text, or the default where the node has none."""
    value: Any = node.attributes.get(name, default)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def refuse_mode(node: NodeView, vendor: str, default: str, *allowed: str) -> str | None:
    """Return the reason to refuse a node for its attribute `mode`, or None."""
    mode = text_attribute(node, "mode", default)
    if mode in allowed:
        return None
    return f"{node.op_type}: {vendor} does not take the mode {mode}"


def refuse_resize(node: NodeView, vendor: str) -> str | None:
    """Return the reason to refuse anything but nearest and linear interpolation over
    the whole image.
    """
    key = "coordinate_transformation_mode"
    if text_attribute(node, key, "half_pixel") == "tf_crop_and_resize":
        return f"{node.op_type}: {vendor} does not crop"
    return refuse_mode(node, vendor, "nearest", "nearest", "linear")
