"""The conditions on attributes and constants that single operators need; named by the
table of operators.

Each takes a node and its graph and returns the reason to refuse the node, or None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_sim_sdk.values import constant, refuse_mode, refuse_resize, text_attribute

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView, NodeView


def is_number(graph: GraphView, name: str, number: float, tolerance: float) -> bool:
    """Return whether a value is one constant number, to a share of it."""
    # Of a weight the shape says whether it is worth reading.
    weight = graph.initializer(name)
    if weight is not None and weight.shape not in ((), (1,)):
        return False
    array = constant(graph, name)
    return (
        array is not None
        and array.size == 1
        and abs(float(array.item()) - number) <= tolerance * number
    )


def lstm(node: NodeView, _graph: GraphView) -> str | None:
    """No sequence lengths, no peepholes, the sequence first, the usual activations."""
    if len(node.inputs) > 4 and node.inputs[4]:  # noqa: PLR2004 - the place of sequence_lens
        return "LSTM: QNN takes no sequence lengths"
    if len(node.inputs) > 7 and node.inputs[7]:  # noqa: PLR2004 - the place of P
        return "LSTM: QNN takes no peephole weights"
    unusual = [
        name
        for name in ("activations", "clip", "layout", "input_forget")
        if node.attributes.get(name)
    ]
    return f"LSTM: QNN does not take the attribute {unusual[0]}" if unusual else None


def inference_only(node: NodeView, graph: GraphView) -> str | None:
    """Training is refused."""
    flag = (
        constant(graph, node.inputs[2])
        if node.op_type == "Dropout" and len(node.inputs) > 2  # noqa: PLR2004
        else None
    )
    if node.attributes.get("training_mode") or (flag is not None and flag.any()):
        return f"{node.op_type}: QNN does not train"
    return None


def second_norm(node: NodeView, _graph: GraphView) -> str | None:
    """Only the Euclidean norm."""
    return (
        None
        if node.attributes.get("p", 2) == 2  # noqa: PLR2004
        else "LpNormalization: QNN takes p=2 only"
    )


def resize(node: NodeView, _graph: GraphView) -> str | None:
    """Nearest and linear interpolation over the whole image."""
    return refuse_resize(node, "QNN")


def pad(node: NodeView, _graph: GraphView) -> str | None:
    """Padding outwards with a constant, the edge or a reflection."""
    return refuse_mode(node, "QNN", "constant", "constant", "edge", "reflect")


def positive_indices(node: NodeView, graph: GraphView) -> str | None:
    """QNN does not count from the end.

    Indices that are not constants cannot be checked here.
    """
    indices = constant(graph, node.inputs[1])
    if indices is not None and indices.size and indices.min() < 0:
        return f"{node.op_type}: QNN takes no negative indices"
    if node.attributes.get("batch_dims"):
        return f"{node.op_type}: QNN takes no batch dimensions"
    return None


def plain_scatter(node: NodeView, graph: GraphView) -> str | None:
    """Overwriting only, indices from the front."""
    if text_attribute(node, "reduction", "none") != "none":
        return f"{node.op_type}: QNN does not reduce while it scatters"
    return positive_indices(node, graph)


def one_scale(node: NodeView, _graph: GraphView) -> str | None:
    """One scale a tensor or a channel."""
    blocked = node.attributes.get("block_size", 0) or node.attributes.get(
        "output_dtype", 0
    )
    return (
        f"{node.op_type}: QNN takes one scale a tensor or a channel"
        if blocked
        else None
    )
