"""How engines are set up: threads and prepacking, by rule, with the host's overrides."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import onnx
from onnx import AttributeProto, ModelProto

from epctx_core.errors import InvalidGraph, NotImplementedByProvider, RuntimeException
from epctx_core.graph.model_io import checked_piece, structure
from epctx_core.graph.weights import is_detached
from epctx_core.options import GraphOptimizationLevel

if TYPE_CHECKING:
    import numpy as np
    from onnx import ValueInfoProto

    from epctx_core.kernels.splitting import Part
    from epctx_core.options.run import RunOptions
    from epctx_core.plugin import OptimizedModel, PreparedModel, TensorView

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


SHARED_NODES = 128
"""Nodes up to which a piece is looked up among the prepared ones: larger ones are seldom equal."""

_LISTED = 20
"""Nodes of a piece that the log names."""

_log = logging.getLogger("epctx.kernels")


class RunnableModel(Protocol):
    """What one engine makes; several handles may share it. It keeps the weights it was made with alive."""

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> Sequence[np.ndarray]:
        """Run; inputs and results in the order of the model."""


class SingleEngine(Protocol):
    """onnxruntime or the reference."""

    name: str

    def prepare(
        self, model: ModelProto, weights: Mapping[str, np.ndarray] | None = None, *, heavy: bool | None = None
    ) -> RunnableModel:
        """Make a model ready to run; raise NotImplementedByProvider for whatever the engine refuses."""

    def has_kernels(self, model: ModelProto) -> bool:
        """Whether the engine takes a model without detached weights."""

    def can_pass(self, elem_type: int | None) -> bool:
        """Whether tensors of a type come in and go out."""


class PreparedHandle:
    """One user's hold on a prepared model that may be shared; implements `PreparedModel`."""

    __slots__ = ("run",)

    def __init__(self, model: RunnableModel) -> None:
        # A bound method on the instance: no detour on the way to the engine.
        self.run = model.run

    def close(self) -> None:
        """Let go of the model; its memory is released when the last handle and the last call are gone."""
        self.run = _closed


def _closed(
    inputs: Sequence[np.ndarray],  # noqa: ARG001 - the signature is `run`'s
    outputs: Sequence[np.ndarray] | None = None,  # noqa: ARG001
) -> Sequence[np.ndarray]:
    raise RuntimeException("a prepared model was run after it was closed.")


class CpuEngine:
    """The engine of one session; implements `epctx_core.plugin.Engine`."""

    def __init__(self, policy: EnginePolicy) -> None:
        self.policy = policy
        self._engines = _installed_engines(policy)
        self._shared: WeakValueDictionary[bytes, RunnableModel] = WeakValueDictionary()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The engine asked first, with its version."""
        return self._engines[0].name

    def prepare(
        self, model: ModelProto, weights: Mapping[str, np.ndarray] | None = None, *, heavy: bool | None = None
    ) -> PreparedModel:
        """Make a model ready to run; see `epctx_core.plugin.Engine.prepare`."""
        if model.metadata_props:
            model, weights = _fitted(model, weights or {})
        # Each array is fetched once: its address is in the key, and what is prepared keeps it alive.
        arrays = {
            t.name: weights[t.name]
            for t in model.graph.initializer
            if is_detached(t) and weights and t.name in weights
        }
        key = _structure_key(model, arrays) if len(model.graph.node) <= SHARED_NODES else None
        with self._lock:
            shared = None if key is None else self._shared.get(key)
            if shared is None:
                shared = self._prepare(
                    model, arrays, lambda part: self._engines[0].prepare(part, arrays, heavy=heavy)
                )
                if key is not None:
                    self._shared[key] = shared
        return PreparedHandle(shared)

    def prepare_piece(self, model: ModelProto, weights: Mapping[str, TensorView]) -> PreparedModel:
        """Make a piece of the default CPU EP ready to run, with all of onnxruntime's optimisations where they pay."""
        arrays = {name: weight.array() for name, weight in weights.items()}
        if not self.policy.pays_to_optimize(model):
            return self.prepare(model, arrays)
        from epctx_core.kernels.optimiser import NotOptimizedError

        def prepare(part: ModelProto) -> RunnableModel:
            own = {t.name: weights[t.name] for t in part.graph.initializer if t.name in weights}
            try:
                return self._prepare_optimized(part, own)
            except (NotOptimizedError, NotImplementedByProvider) as error:
                _log.info("a piece stays as it is: %s.", error)
            return self._engines[0].prepare(part, arrays)

        return PreparedHandle(self._prepare(model, arrays, prepare))

    def _prepare_optimized(self, model: ModelProto, weights: Mapping[str, TensorView]) -> RunnableModel:
        """Have the first engine run an optimised form of a piece, which nobody else gets to see."""
        from epctx_core.kernels.optimiser import Allowed, NotOptimizedError, optimize

        engine = self._engines[0]
        if not hasattr(engine, "prepare_optimized"):
            raise NotOptimizedError(f"{engine.name} has no optimiser")
        if self.policy.is_alone() or self._may_be_copied(model, weights):
            made: RunnableModel = engine.prepare_optimized(model, weights)
            return made
        found = optimize(model, weights, GraphOptimizationLevel.ORT_ENABLE_ALL, Allowed(anything=True))
        return engine.prepare(found.model, {name: weight.array() for name, weight in found.weights.items()})

    def _may_be_copied(self, model: ModelProto, weights: Mapping[str, TensorView]) -> bool:
        """Whether an engine that optimises for itself, over copies of all weights, needs not much more memory."""
        if any(weight.extent is not None or weight.dtype.isbuiltin != 1 for weight in weights.values()):
            # Those in files are mapped, and an optimised model leaves them there. Numpy's own types can be lent.
            return False
        from epctx_core.kernels.optimiser import rewritten_bytes

        kept = sum(weight.nbytes for weight in weights.values()) - rewritten_bytes(model, weights)
        return kept <= PREPACK_LIMIT

    def optimize(self, model: ModelProto, weights: Mapping[str, TensorView]) -> OptimizedModel | None:
        """Return an equal, faster model; see `epctx_core.plugin.Engine.optimize`."""
        from epctx_core.kernels.optimiser import Allowed, NotOptimizedError, optimize

        try:
            return optimize(model, weights, GraphOptimizationLevel.ORT_ENABLE_ALL, Allowed(layouts=True))
        except NotOptimizedError as error:
            _log.info("a piece stays as it is: %s.", error)
            return None

    def _prepare(
        self,
        model: ModelProto,
        weights: Mapping[str, np.ndarray],
        fast: Callable[[ModelProto], RunnableModel],
    ) -> RunnableModel:
        """Prepare a piece, and what the first engine refuses of it on the other.

        Args:
            model: the piece.
            weights: arrays for its detached initializers.
            fast: prepares a model on the first engine.
        """
        first, *others = self._engines
        try:
            # onnxruntime looks for itself; the reference would stumble in a run over what nobody has checked.
            return fast(model if others else checked_piece(model))
        except NotImplementedByProvider as error:
            refusal = error
        model = checked_piece(model)
        _check_types(model, refusal)
        if others and len(model.graph.node) > 1:
            from epctx_core.kernels.splitting import SplitModel, split

            parts = split(model, first)
            if parts is not None:
                prepared = SplitModel(model, parts, lambda part: self._part(part, weights, fast, refusal))
                slow = [node.op_type for part in parts if not part.fast for node in part.model.graph.node]
                _log.warning(
                    "%d of the %d nodes of a piece of the model run on %s, which is slow: %s",
                    len(slow),
                    len(model.graph.node),
                    others[0].name,
                    ", ".join(sorted(set(slow))),
                )
                return prepared
        whole = self._on_another(model, weights, [refusal])
        _log.warning("a piece of the model runs on %s, which is slow: %s", others[0].name, refusal.message)
        return whole

    def _part(
        self,
        part: Part,
        weights: Mapping[str, np.ndarray],
        fast: Callable[[ModelProto], RunnableModel],
        refusal: NotImplementedByProvider,
    ) -> RunnableModel:
        if part.fast:
            try:
                prepared = fast(part.model)
            except NotImplementedByProvider as error:
                refusal = error
            else:
                _log.info("%s runs %s", self.name, _listed(part.model))
                return prepared
        return self._on_another(part.model, weights, [refusal])

    def _on_another(
        self,
        model: ModelProto,
        weights: Mapping[str, np.ndarray],
        refusals: list[NotImplementedByProvider],
    ) -> RunnableModel:
        """Prepare on the first of the other engines that can.

        Raises:
            NotImplementedByProvider: none can; it names the node.
        """
        for engine in self._engines[1:]:
            try:
                prepared = engine.prepare(model, weights)
            except NotImplementedByProvider as error:
                refusals.append(error)
            else:
                _log.info("%s runs %s: %s", engine.name, _listed(model), refusals[0].message)
                return prepared
        raise _no_engine(model, self._engines, refusals)


def _listed(model: ModelProto) -> str:
    """Return a piece's nodes for the log."""
    nodes = [f"{node.op_type} {node.name!r}" if node.name else node.op_type for node in model.graph.node]
    more = f" and {len(nodes) - _LISTED:,} more" if len(nodes) > _LISTED else ""
    return f"{len(nodes):,} node{'s' * (len(nodes) > 1)} of the model ({', '.join(nodes[:_LISTED])}{more})"


def _check_types(model: ModelProto, refusal: NotImplementedByProvider) -> None:
    """Raise InvalidGraph if inference proves that a refused model is wrong; declared lengths are hints and left out."""
    probe = ModelProto()
    probe.CopyFrom(structure(model))
    del probe.graph.value_info[:]
    for value in probe.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
    try:
        onnx.shape_inference.infer_shapes(probe, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError) as error:
        text = " ".join(str(error).split())
        raise InvalidGraph(f"a piece of the model is wrong: {text}") from refusal
    except RuntimeError:  # inference itself gave up, which proves nothing
        return


def _fitted(
    model: ModelProto, weights: Mapping[str, np.ndarray]
) -> tuple[ModelProto, Mapping[str, np.ndarray]]:
    """Return a model that this CPU computes rightly; see `epctx_core.kernels.nchwc`."""
    from epctx_core.kernels.nchwc import NotPlainError, fit, read_mark, this_layout

    try:
        fitted, arrays = fit(model, weights)
    except NotPlainError as error:
        raise InvalidGraph(
            f"a piece was optimised for {read_mark(model)}, here is {this_layout() or 'no onnxruntime'}, and"
            f" {error}.",
            hint="Compile the source model again on this machine.",
        ) from error
    if fitted is not model:
        _log.info(
            "a piece was optimised for %s, here is %s; compiling again would make it faster.",
            read_mark(model), this_layout() or "no onnxruntime",
        )  # fmt: skip
    return fitted, arrays


def _installed_engines(policy: EnginePolicy) -> list[SingleEngine]:
    from epctx_core.kernels.reference_engine import ReferenceEngine

    reference: list[SingleEngine] = [ReferenceEngine()]
    if importlib.util.find_spec("onnxruntime") is None:
        return reference
    try:
        from epctx_core.kernels.onnxruntime_engine import OnnxRuntimeEngine
    except ImportError as error:
        _log.warning("onnxruntime is installed but does not import, so onnx.reference is used: %s", error)
        return reference
    return [OnnxRuntimeEngine(policy), *reference]


def _no_engine(
    model: ModelProto, engines: Sequence[SingleEngine], refusals: Sequence[NotImplementedByProvider]
) -> NotImplementedByProvider:
    """Say which node no engine can run."""
    from epctx_core.kernels.splitting import find_lacking

    node = find_lacking(model, engines)
    what = (
        _listed(model) if node is None else f"node {node.name!r} ({node.domain or 'ai.onnx'}::{node.op_type})"
    )
    return NotImplementedByProvider(
        f"no engine can run {what}: {'; '.join(refusal.message for refusal in refusals)}",
        node=None if node is None else node.name,
        hint="Add an EP that takes this operator, or install onnxruntime: pip install 'epctx-core[ort]'.",
    )


def _structure_key(model: ModelProto, weights: Mapping[str, np.ndarray]) -> bytes | None:
    """Return a key that is equal for equal computations over the same memory, whatever the names.

    None for a model whose bodies use names of the enclosing scope: renaming those is not worth it.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    numbers: dict[str, str] = {"": ""}

    def canonical(name: str) -> str:
        return numbers.setdefault(name, str(len(numbers)))

    for value in graph.input:
        value.name = canonical(value.name)
    memory = []
    for tensor in graph.initializer:
        if is_detached(tensor) and tensor.name in weights:
            array = weights[tensor.name]
            memory.append((array.__array_interface__["data"][0], array.strides))
        tensor.name = canonical(tensor.name)
    if graph.sparse_initializer:
        return None
    for node in graph.node:
        if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
            return None
        node.name = node.doc_string = ""
        del node.metadata_props[:]
        node.input[:] = [canonical(name) for name in node.input]
        node.output[:] = [canonical(name) for name in node.output]
    for value in graph.output:
        value.name = canonical(value.name)
    del graph.value_info[:]
    sha = hashlib.sha256(copy.SerializeToString(deterministic=True))
    sha.update(repr(memory).encode())
    return sha.digest()
