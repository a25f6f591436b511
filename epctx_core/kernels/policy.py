"""How engines are set up: threads and prepacking, by rule, with the host's overrides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

PREPACK_LIMIT = 64 << 20
"""Bytes of weights up to which prepacking (faster runs, a private copy, 1 ms a MiB to make) pays."""

LIGHT_NODES = 8

THREADED_WEIGHTS = 1 << 18
THREADED_ELEMENTS = 1 << 16
"""Elements of weights, or of one value at the boundary, from which a piece of a session gets its own threads."""

OPTIMIZED_PIECES = 32
"""Pieces of a session up to which those of the CPU EP are optimised; more gain too little for the time."""

_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "ConvTranspose", "QLinearConv"})
_HEAVY_OPERATORS = frozenset(
    {
        "Attention", "Conv", "ConvInteger", "ConvTranspose", "Einsum", "Gemm", "GRU", "If", "Loop", "LSTM",
        "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN", "Scan",
    }
)  # fmt: skip


@dataclass(kw_only=True)
class EnginePolicy:
    """The settings of one session's engines.

    Attributes:
        intra_op_num_threads: what the host set; 0 for by rule.
        prefer_latency: True to prepack always, False never, None by rule.
        optimizes: whether pieces of the CPU EP are optimised before they are prepared, if it pays.
        pieces: how many pieces the session runs on engines; set before the first is prepared.
    """

    intra_op_num_threads: int = 0
    prefer_latency: bool | None = None
    optimizes: bool = False
    pieces: int = 1

    def prepacks(self, weight_bytes: int) -> bool:
        """Whether a piece with so many bytes of weights is prepacked."""
        return weight_bytes <= PREPACK_LIMIT if self.prefer_latency is None else self.prefer_latency

    def is_alone(self) -> bool:
        """Whether there is one piece and nobody asked to spare memory: it is run as onnxruntime would run it."""
        return self.pieces == 1 and self.prefer_latency is not False

    def pays_to_optimize(self, model: ModelProto) -> bool:
        """Whether a piece is optimised before it is prepared: what is the whole session, and heavy ones if few."""
        return self.optimizes and (self.pieces == 1 or (self.pieces <= OPTIMIZED_PIECES and _is_heavy(model)))

    def threads(self, model: ModelProto, heavy: bool | None) -> int:
        """Return the thread count for a piece; 0 means one a core."""
        if self.intra_op_num_threads or (self.pieces == 1 and heavy is None):
            return self.intra_op_num_threads
        return 0 if (_fills_threads(model) if heavy is None else heavy) else 1


def _fills_threads(model: ModelProto) -> bool:
    """Whether a piece has work for a thread pool of its own, which costs 0.6 ms and 200 KiB to make.

    Convolutions have. Others have if their weights or their boundary are large: a MatMul of 32 rows by
    512 KiB takes less time than waking a thread twice.
    """
    graph = model.graph
    operators = {node.op_type for node in graph.node}
    if operators & _CONVOLUTIONS:
        return True
    if len(graph.node) <= LIGHT_NODES and not operators & _HEAVY_OPERATORS:
        return False
    weights = sum(math.prod(tensor.dims) for tensor in graph.initializer)
    return weights >= THREADED_WEIGHTS or any(
        _elements(value) >= THREADED_ELEMENTS for value in (*graph.input, *graph.output)
    )


def _elements(value: ValueInfoProto) -> float:
    """Return how many elements a tensor has; infinitely many if that is open."""
    dims = value.type.tensor_type.shape.dim
    return math.prod(d.dim_value if d.HasField("dim_value") else math.inf for d in dims)


def _is_heavy(model: ModelProto) -> bool:
    graph = model.graph
    return len(graph.node) > LIGHT_NODES or any(node.op_type in _HEAVY_OPERATORS for node in graph.node)
