"""Quantised operators that the simulated VitisAI EP takes, as one table, with a reason
for each refusal.

The operators are those of convolution networks that AMD's documentation of Ryzen AI
lists for activations of 8 or 16 bits and weights of 8 (XINT8, A8W8, A16W8). It names
neither ranks nor attributes, but says that some forms may not be supported: of the four
layers every form is taken that static quantisers write, of the other operators what is
usual. Edit the table to change what is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epctx_sim_sdk.values import refuse_mode, refuse_resize
from onnx import TensorProto

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView, NodeView

Rule = Callable[["NodeView", "GraphView"], str | None]

ACTIVATIONS = frozenset(
    {TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16}
)
WEIGHTS = frozenset({TensorProto.INT8})
BIASES = frozenset({TensorProto.INT32})
MAX_RANK = 5
"""Dimensions of layers and of operators that move data; others take at most 4."""
QUANTIZERS = frozenset({"", "com.microsoft"})
"""Domains of QuantizeLinear and DequantizeLinear."""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Conditions of one operator.

    Inputs that none of the fields name come from a DequantizeLinear of 8 or 16 bits.

    Attributes:
        weight: the input that is a constant: INT8, dequantised, zero point 0, one scale
            a tensor or a channel.
        bias: the input that is an INT32 constant, dequantised.
        plain: inputs that are constants and not quantised: shapes, axes, limits.
        ranks: the ranks of the first input.
        followed: whether an activation of `FOLLOWING` may stand between it and its
            QuantizeLinear.
        rule: a further condition; returns the reason to refuse, or None.
    """

    weight: int | None = None
    bias: int | None = None
    plain: tuple[int, ...] = ()
    ranks: range = range(1, 5)
    followed: bool = False
    rule: Rule | None = None


def _refuse_other_axes(node: NodeView, graph: GraphView) -> str | None:
    """Softmax over the last axis; before opset 13 it also covers those behind its
    axis.
    """
    rank = len(graph.value(node.inputs[0]).shape or ())
    axis = int(node.attributes.get("axis", -1 if node.opset_version >= 13 else 1))  # noqa: PLR2004 - see above
    return (
        None
        if axis % max(rank, 1) == rank - 1
        else "Softmax: this EP takes the last axis only"
    )


def _refuse_other_borders(node: NodeView, _graph: GraphView) -> str | None:
    """Padding with a constant."""
    return refuse_mode(node, "this EP", "constant", "constant")


def _refuse_other_interpolation(node: NodeView, _graph: GraphView) -> str | None:
    """Nearest and linear interpolation over the whole image."""
    return refuse_resize(node, "this EP")


def _make_rows(names: str, operator: Operator) -> dict[str, Operator]:
    return dict.fromkeys(names.split(), operator)


_IMAGE = range(4, 5)
_ANY = range(1, MAX_RANK + 1)

OPERATORS: Mapping[str, Operator] = {
    # layers
    **_make_rows(
        "Conv ConvTranspose",
        Operator(weight=1, bias=2, ranks=range(3, MAX_RANK + 1), followed=True),
    ),
    **_make_rows("Gemm", Operator(weight=1, bias=2, ranks=range(2, 3), followed=True)),
    **_make_rows("MatMul", Operator(ranks=_ANY)),
    # pools
    **_make_rows(
        "AveragePool GlobalAveragePool GlobalMaxPool MaxPool", Operator(ranks=_IMAGE)
    ),
    **_make_rows("ReduceMean", Operator(plain=(1,))),
    # two values and more
    **_make_rows("Add", Operator(followed=True)),
    **_make_rows("Div Max Min Mul Sub", Operator()),
    **_make_rows("Concat", Operator()),
    # one value each
    **_make_rows("HardSigmoid HardSwish LeakyRelu Relu Sigmoid Tanh", Operator()),
    **_make_rows("Clip", Operator(plain=(1, 2))),
    **_make_rows("Softmax", Operator(rule=_refuse_other_axes)),
    # moving data
    **_make_rows("DepthToSpace", Operator(ranks=_IMAGE)),
    **_make_rows("Flatten Identity Transpose", Operator(ranks=_ANY)),
    **_make_rows("Reshape Squeeze Unsqueeze", Operator(plain=(1,), ranks=_ANY)),
    **_make_rows("Slice", Operator(plain=(1, 2, 3, 4))),
    **_make_rows("Pad", Operator(plain=(1, 2, 3), rule=_refuse_other_borders)),
    **_make_rows(
        "Resize",
        Operator(plain=(1, 2, 3), ranks=_IMAGE, rule=_refuse_other_interpolation),
    ),
}

FOLLOWING = frozenset({"Clip", "LeakyRelu", "Relu"})
"""Activations that the device computes together with the layer before them."""
