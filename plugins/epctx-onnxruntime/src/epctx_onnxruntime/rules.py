"""Rules for the models of a session: own threads, and optimisation before they are
prepared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

LIGHT_NODES = 8
THREADED_WEIGHTS = 1 << 18
THREADED_ELEMENTS = 1 << 16
"""Elements of weights, or of one input or output, from which a model gets its own
threads.
"""

OPTIMIZED_PIECES = 32
"""Models of a session up to which they are optimised; more gain too little for the
time.
"""

_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose", "QLinearConv"})
_HEAVY_OPERATORS = frozenset(
    {
        "Attention", "Conv", "ConvInteger", "ConvTranspose", "Einsum", "Gemm", "GRU",
        "If", "Loop", "LSTM", "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul",
        "RNN", "Scan",
    }
)  # fmt: skip


def fills_threads(model: ModelProto) -> bool:
    """Return whether a model has enough work for its own thread pool, which costs 0.6
    ms and 200 KiB.

    Convolutions have, and others with large weights, inputs or outputs: a MatMul of 32
    rows by 512 KiB takes less time than waking a thread twice.
    """
    graph = model.graph
    operators = {node.op_type for node in graph.node}
    if operators & _CONVOLUTIONS:
        return True
    if len(graph.node) <= LIGHT_NODES and not operators & _HEAVY_OPERATORS:
        return False
    weights = sum(math.prod(tensor.dims) for tensor in graph.initializer)
    shapes = [
        value.type.tensor_type.shape.dim for value in (*graph.input, *graph.output)
    ]
    # An open dimension counts as an infinite one.
    sizes = (
        math.prod(d.dim_value if d.HasField("dim_value") else math.inf for d in dims)
        for dims in shapes
    )
    return weights >= THREADED_WEIGHTS or max(sizes, default=0) >= THREADED_ELEMENTS


def is_heavy(model: ModelProto) -> bool:
    """Return whether optimising a model saves more time than it takes."""
    graph = model.graph
    return len(graph.node) > LIGHT_NODES or any(
        node.op_type in _HEAVY_OPERATORS for node in graph.node
    )
