"""How engines are set up: threads and prepacking, by rule, with the host's overrides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

PREPACK_LIMIT = 64 << 20
"""Bytes of weights up to which prepacking (faster runs, a private copy, 1 ms a MiB to make) pays."""

LIGHT_NODES = 8

OPTIMIZED_PIECES = 32
"""Pieces of a session up to which those of the CPU EP are optimised; more gain too little for the time."""

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

    def pays_to_optimize(self, model: ModelProto) -> bool:
        """Whether a piece is optimised before it is prepared."""
        return self.optimizes and self.pieces <= OPTIMIZED_PIECES and _is_heavy(model)

    def threads(self, model: ModelProto, heavy: bool | None) -> int:
        """Return the thread count for a piece; 0 means one a core."""
        if self.intra_op_num_threads or self.pieces == 1:
            return self.intra_op_num_threads
        return 0 if (_is_heavy(model) if heavy is None else heavy) else 1


def _is_heavy(model: ModelProto) -> bool:
    graph = model.graph
    return len(graph.node) > LIGHT_NODES or any(node.op_type in _HEAVY_OPERATORS for node in graph.node)
