"""The conditions on attributes and constants that single operators need; named by the
table of operators.

Each takes a node and its graph and returns the reason to refuse the node, or None. What
they refuse, OpenVINO's reader of ONNX models refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from epctx_sim_sdk.values import constant, is_constant, refuse_mode, text_attribute

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView, NodeView

Condition: TypeAlias = "Callable[[NodeView, GraphView], str | None]"

_ACTIVATIONS = frozenset({"sigmoid", "tanh", "relu"})


def inference_only(node: NodeView, graph: GraphView) -> str | None:
    """Training is refused, and so is what a run could switch to training."""
    flag_name = ""
    if node.op_type == "Dropout":
        flag_name = next(iter(node.inputs[2:]), "")

    flag = constant(graph, flag_name) if flag_name else np.False_
    if node.attributes.get("training_mode") or flag is None or flag.any():
        return f"{node.op_type}: OpenVINO does not train"
    return None


def usual_activations(node: NodeView, _graph: GraphView) -> str | None:
    """Sigmoid, tanh and relu."""
    unusual = [
        name
        for name in node.attributes.get("activations", ())
        if name.lower() not in _ACTIVATIONS
    ]
    return (
        f"{node.op_type}: OpenVINO does not take the activation {unusual[0]}"
        if unusual
        else None
    )


def outwards(node: NodeView, _graph: GraphView) -> str | None:
    """Padding with a constant, the edge or a reflection."""
    return refuse_mode(node, "OpenVINO", "constant", "constant", "edge", "reflect")


def whole_image(node: NodeView, _graph: GraphView) -> str | None:
    """Plain interpolation over the whole image."""
    mode = text_attribute(node, "coordinate_transformation_mode", "half_pixel")
    if mode in ("tf_crop_and_resize", "half_pixel_symmetric"):
        return f"Resize: OpenVINO does not take the coordinates {mode}"
    asked = [
        name for name in ("antialias", "exclude_outside") if node.attributes.get(name)
    ]
    return f"Resize: OpenVINO does not take the attribute {asked[0]}" if asked else None


def one_result(node: NodeView, graph: GraphView) -> str | None:
    """The mean and the deviation are not given."""
    results = {value.name for value in graph.outputs}
    read = any(
        name and (name in results or graph.consumers(name)) for name in node.outputs[1:]
    )
    return (
        f"{node.op_type}: OpenVINO gives only the first of its results"
        if read
        else None
    )


def not_to_a_scalar(node: NodeView, graph: GraphView) -> str | None:
    """A shape without dimensions is refused."""
    shape = graph.value(node.inputs[1]).shape if len(node.inputs) > 1 else None
    return (
        "Reshape: OpenVINO does not take an empty shape"
        if shape and 0 in shape
        else None
    )


def known_axes(node: NodeView, graph: GraphView) -> str | None:
    """The rank of the result must be known."""
    computed = len(node.inputs) > 1 and not is_constant(graph, node.inputs[1])
    return "Unsqueeze: OpenVINO needs the axes to be constants" if computed else None
