"""What engines have in common: what each one does, settings by rule, the options of the run that they are in."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from epctx_core.errors import RuntimeException

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

    from epctx_core.options.run import RunOptions

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


R = TypeVar("R")


class _Current(threading.local):
    options: RunOptions | None = None


CURRENT = _Current()
"""`CURRENT.options` is None outside of runs with options."""


def run_stoppably(run: Callable[[Any, RunOptions], R], feeds: Any, options: RunOptions) -> R:
    """Return `run(feeds, options)`, while engines see the options; a run inside a run has its own."""
    outer, CURRENT.options = CURRENT.options, options
    try:
        return run(feeds, options)
    finally:
        CURRENT.options = outer


class RunnableModel(Protocol):
    """What one engine makes; several handles may share it. It keeps the weights it was made with alive."""

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> Sequence[np.ndarray]:
        """Run; inputs and results in the order of the model."""


class SingleEngine(Protocol):
    """onnxruntime or the reference.

    Attributes:
        name: with its version.
        checks: whether it checks models for itself.
    """

    name: str
    checks: bool

    def prepare(
        self, model: ModelProto, weights: Mapping[str, np.ndarray] | None = None, *, heavy: bool | None = None
    ) -> RunnableModel:
        """Make a model ready to run; raise NotImplementedByProvider for whatever the engine refuses."""

    def has_kernels(self, model: ModelProto) -> bool:
        """Whether the engine takes a model without detached weights."""

    def can_pass(self, elem_type: int | None) -> bool:
        """Whether tensors of a type come in and go out."""


def write_in_place(results: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Copy results into given memory and return that; numpy alone would broadcast and cast to make them fit.

    Raises:
        RuntimeException: a result has another type or shape than the memory for it.
    """
    for place, (result, target) in enumerate(zip(results, outputs, strict=True)):
        if result.shape != target.shape or result.dtype != target.dtype:
            raise RuntimeException(
                f"output {place} is {result.dtype}{list(result.shape)}; the memory given for it is "
                f"{target.dtype}{list(target.shape)}.",
                hint="The model declares a type or a shape that is not what its operators compute; correct it.",
            )
        np.copyto(target, result)
    return outputs
