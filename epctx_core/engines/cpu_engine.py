"""The engine of a session: the chosen one, and onnx's reference for what that one refuses."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from onnx import AttributeProto, ModelProto

from epctx_core.engines.choice import (
    BUILT_IN,
    INSTALL,
    blame_engine,
    by_environment,
    chosen_entry,
    engine_class,
)
from epctx_core.errors import InvalidGraph, NotImplementedByProvider, RuntimeException
from epctx_core.graph.weights import is_detached
from epctx_core.options import GraphOptimizationLevel

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.plugin import (
        BaseEngine,
        EnginePolicy,
        OptimizedModel,
        PreparedModel,
        RunnableModel,
        TensorView,
    )

SHARED_NODES = 128
"""Nodes up to which a piece is looked up among the prepared ones: larger ones are seldom equal."""

_LAYOUT = "epctx.cpu_layout"
"""The metadata key of a model that holds an engine's own layouts; see `epctx_core.plugin.Engine.optimize`."""

_log = logging.getLogger("epctx.engines")


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
    """The engine of one session; implements `epctx_core.plugin.Engine`. Chosen on first use.

    Raises:
        PackageMissing: the host or the environment names an engine that is not installed.
    """

    def __init__(self, policy: EnginePolicy) -> None:
        self.policy = policy
        if policy.engine or by_environment():
            chosen_entry(policy.engine)
        self._shared: WeakValueDictionary[bytes, RunnableModel] = WeakValueDictionary()
        self._lock = threading.Lock()

    @cached_property
    def _engine(self) -> BaseEngine:
        engine = engine_class(self.policy.engine)(self.policy)
        if engine.name.startswith(BUILT_IN):
            asked = BUILT_IN in (self.policy.engine, by_environment())
            _log.log(
                logging.INFO if asked else logging.WARNING,
                "nodes of this session run on %s, which is slow and does not have all operators; faster: %s",
                engine.name,
                INSTALL,
            )
        return engine

    @property
    def name(self) -> str:
        """The engine asked first, with its version."""
        return engine_class(self.policy.engine).name

    def prepare(
        self, model: ModelProto, weights: Mapping[str, np.ndarray] | None = None, *, heavy: bool | None = None
    ) -> PreparedModel:
        """Make a model ready to run; see `epctx_core.plugin.Engine.prepare`."""
        self._check_layout(model)
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
                    model, arrays, lambda part: self._engine.prepare(part, arrays, heavy=heavy)
                )
                if key is not None:
                    self._shared[key] = shared
        return PreparedHandle(shared)

    def prepare_piece(self, model: ModelProto, weights: Mapping[str, TensorView]) -> PreparedModel:
        """Make a piece of the default CPU EP ready to run, optimised where that pays."""
        arrays = {name: weight.array() for name, weight in weights.items()}
        with blame_engine(self.policy.engine):
            pays = self.policy.optimizes and self._engine.pays_to_optimize(model)
        if not pays:
            return self.prepare(model, arrays)

        def prepare(part: ModelProto) -> RunnableModel:
            own = {t.name: weights[t.name] for t in part.graph.initializer if t.name in weights}
            try:
                return self._engine.prepare_optimized(part, own)
            except NotImplementedByProvider as error:
                _log.info("a piece stays as it is: %s.", error.message)
            return self._engine.prepare(part, arrays)

        return PreparedHandle(self._prepare(model, arrays, prepare))

    def optimize(
        self, model: ModelProto, weights: Mapping[str, TensorView], *, layouts: bool = False
    ) -> OptimizedModel | None:
        """Return an equal, faster model; see `epctx_core.plugin.Engine.optimize`."""
        level = GraphOptimizationLevel.ORT_ENABLE_ALL
        try:
            with blame_engine(self.policy.engine):
                return engine_class(self.policy.engine).optimize_model(model, weights, level, layouts=layouts)
        except NotImplementedByProvider as error:
            _log.info("a piece stays as it is: %s.", error.message)
            return None

    def _check_layout(self, model: ModelProto) -> None:
        """Raise InvalidGraph for a model with private layouts that are not this engine's here."""
        layout = next((entry.value for entry in model.metadata_props if entry.key == _LAYOUT), None)
        if layout is not None and layout != self._engine.layout:
            raise InvalidGraph(
                f"a piece was optimised for {layout}, here is {self._engine.layout or self._engine.name}.",
                hint="Compile the source model again on this machine.",
            )

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

        def blamed(part: ModelProto) -> RunnableModel:
            with blame_engine(self.policy.engine):
                return fast(part)

        try:
            if self._engine.checks:
                return blamed(model)
            from epctx_core.engines.splitting import checked_piece

            # The reference would stumble in a run over what nobody has checked.
            return blamed(checked_piece(model))
        except NotImplementedByProvider as error:
            from epctx_core.engines.splitting import Fallback

            return Fallback(self._engine, weights, blamed, error).prepare(model)


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
