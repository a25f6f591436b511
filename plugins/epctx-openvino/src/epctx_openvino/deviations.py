"""Operators that OpenVINO computes otherwise than ONNX says, by their attributes and
inputs.

Found by running ONNX's own cases on OpenVINO 2026.4; types are the business of
`narrowing`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from epctx_core.plugin import read_inputs

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView, NodeView

Rule: TypeAlias = "tuple[Callable[[GraphView, NodeView], bool], str]"

_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
_FIXED = {"Dropout": (1, 2), "Tile": (1,), "Unsqueeze": (1,)} | dict.fromkeys(
    _REDUCTIONS, (1,)
)
"""By operator, the inputs that OpenVINO ignores, or computes wrongly, where only a run
knows them.
"""


def explain_deviation(graph: GraphView, node: NodeView) -> str:
    """Return in what OpenVINO's operator differs from ONNX's here; an empty text if in
    nothing.
    """
    if node.domain:
        return ""
    inputs = read_inputs(graph, node)
    for position in _FIXED.get(node.op_type, ()):
        if position < len(inputs) and not _is_constant(graph, inputs[position]):
            return (
                f"OpenVINO needs the input {position} of {node.op_type} as a constant"
            )
    for applies, reason in _RULES.get(node.op_type, ()):
        if applies(graph, node):
            return reason
    return ""


def is_read(graph: GraphView, name: str) -> bool:
    """Return whether a node reads a value, or the graph returns it; False for an
    omitted one.
    """
    return bool(name) and (
        bool(graph.consumers(name))
        or any(output.name == name for output in graph.outputs)
    )


def _is_constant(graph: GraphView, name: str) -> bool:
    """Return whether a value is omitted, or known before a run."""
    producer = graph.producer(name) if name else None
    return (
        not name
        or bool(graph.initializer(name))
        or (producer is not None and producer.op_type == "Constant")
    )


def _always_deviates(_graph: GraphView, _node: NodeView) -> bool:
    return True


def _reads_indices(graph: GraphView, node: NodeView) -> bool:
    return len(node.outputs) > 1 and is_read(graph, node.outputs[1])


def _has_batch_first(_graph: GraphView, node: NodeView) -> bool:
    return bool(node.attributes.get("layout", 0))


def _has_peepholes(_graph: GraphView, node: NodeView) -> bool:
    return any(node.inputs[7:])


def _skips_the_end(_graph: GraphView, node: NodeView) -> bool:
    """Return whether the last of the windows may begin behind the input."""
    kernel = node.attributes.get("kernel_shape", [])
    strides = node.attributes.get("strides", [])
    return bool(node.attributes.get("ceil_mode", 0)) and any(
        step > length for step, length in zip(strides, kernel, strict=False)
    )


def _resizes_otherwise(_graph: GraphView, node: NodeView) -> bool:
    attributes = node.attributes
    policy = attributes.get("keep_aspect_ratio_policy", "stretch")
    return (
        bool(attributes.get("antialias", 0) or attributes.get("exclude_outside", 0))
        or policy != "stretch"
    )


def _has_window(_graph: GraphView, node: NodeView) -> bool:
    return any(
        node.attributes.get(side, -1) != -1
        for side in ("left_window_size", "right_window_size")
    )


def _makes_unknown_rank(graph: GraphView, node: NodeView) -> bool:
    """Return whether OpenVINO cannot know the rank of the output, since it does not
    know how long the shape is.
    """
    shape = graph.initializer(node.inputs[1]) or graph.value(node.inputs[1])
    return not shape.shape or not isinstance(shape.shape[0], int)


def _is_crd(_graph: GraphView, node: NodeView) -> bool:
    return bool(node.attributes.get("mode", "DCR") == "CRD")


_LAYOUT: Rule = (_has_batch_first, "OpenVINO ignores the attribute layout")
_RANK: Rule = (_makes_unknown_rank, "OpenVINO needs to know how long the shape is")
_CEIL: Rule = (
    _skips_the_end,
    "OpenVINO's pooling counts a window behind the end of the input",
)
_RULES: dict[str, tuple[Rule, ...]] = {
    "Attention": ((_has_window, "OpenVINO ignores the window of an Attention"),),
    "AveragePool": (_CEIL,),
    "DFT": ((_always_deviates, "OpenVINO's DFT gives other shapes"),),
    "DynamicQuantizeLinear": (
        (
            _always_deviates,
            "OpenVINO's quotients differ in the last digit, and then by a whole step",
        ),
    ),
    "Expand": (_RANK,),
    "GRU": (_LAYOUT,),
    "LSTM": (_LAYOUT, (_has_peepholes, "OpenVINO ignores peepholes")),
    "LpPool": (_CEIL,),
    "MaxPool": (_CEIL,),
    "RNN": (_LAYOUT,),
    "Reshape": (_RANK,),
    "Resize": (
        (
            _resizes_otherwise,
            "OpenVINO ignores antialias, exclude_outside and keep_aspect_ratio_policy",
        ),
    ),
    "SpaceToDepth": ((_is_crd, "OpenVINO ignores the attribute mode"),),
    "TopK": (
        (
            _reads_indices,
            "of equal elements, OpenVINO's TopK does not give the lowest index",
        ),
    ),
}
