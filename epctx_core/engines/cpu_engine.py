"""Engine of a session: the chosen one, and onnx's reference for operators that the
chosen one lacks.

`onnx.reference` is built in, and at most one more is used, by an entry point: that of
epctx-onnxruntime where it is installed, another only if the host names it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    NotImplementedByProvider,
    RuntimeException,
)
from epctx_core.graph.weights import is_detached
from epctx_core.options import GraphOptimizationLevel
from epctx_core.options.choices import is_whole
from epctx_core.options.strict import log_without_effect
from epctx_core.registry.installed import EntryPoint, list_entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from onnx import ModelProto, ValueInfoProto

    from epctx_core.plugin import (
        BaseEngine,
        EnginePolicy,
        OptimizedModel,
        RunnableModel,
        TensorView,
    )
    from epctx_core.plugin.types import RunFunction

GROUP = "epctx.engines"
"""One entry for each engine: its value is `module:Class`, a subclass of
`epctx_core.plugin.BaseEngine`.
"""
BUILT_IN = "onnx.reference"
ONNXRUNTIME = "onnxruntime"
"""The engine of epctx-onnxruntime."""

_VARIABLE = "EPCTX_ENGINE"
_LAYOUT = "epctx.cpu_layout"
"""The metadata key of a model with an engine's own operators, with the engine's name;
see `epctx_core.plugin.Engine.optimize`.
"""

_log = logging.getLogger("epctx.engines")


@cache
def read_environment() -> str:
    """Return the engine that the environment names; read once."""
    return os.environ.get(_VARIABLE, "")


@cache
def find_engine(named: str | None) -> EntryPoint | None:
    """Return the entry point of the engine to use, None for the built-in one; imports
    nothing of it.

    Args:
        named: by the session option; None for the one in EPCTX_ENGINE, else the one
            that is called `onnxruntime`, if any.

    Raises:
        PackageMissing: the named engine is not installed.
        InvalidArgument: several packages have it.
    """
    chosen = named or read_environment()
    if chosen == BUILT_IN:
        return None
    if not chosen:
        return next((e for e in list_entries(GROUP) if e.name == ONNXRUNTIME), None)
    # Few loads name one.
    from epctx_core.registry.entries import find_entry

    named_by = "session.engine" if named else _VARIABLE
    return find_entry(GROUP, chosen, "engine", named_by=named_by)


@cache
def load_engine_class(named: str | None = None) -> type[BaseEngine]:
    """Return the class of the engine to use, see `find_engine`; the built-in one if
    that is broken.
    """
    entry = find_engine(named)
    if entry is not None:
        from epctx_core.plugin import BaseEngine, EnginePolicy

        try:
            cls = entry.load()
            if isinstance(cls, type) and issubclass(cls, BaseEngine):
                # One that is abstract, has no name or lacks its library fails here and
                # not in each session.
                cls(EnginePolicy())
                _log.debug("the engine %r is %s", entry.name, cls.name)
                return cls
            why = f"{entry.value} is not a subclass of epctx_core.plugin.BaseEngine"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a broken package must not end the host
            why = f"{type(error).__name__}: {error}"
        from epctx_core.registry.entries import describe_entry

        _log.warning(
            "%s is broken, so %s is used: %s",
            describe_entry(entry, "engine"),
            BUILT_IN,
            why,
        )
    from epctx_core.engines.reference_engine import ReferenceEngine

    return ReferenceEngine


def make_engine(policy: EnginePolicy) -> BaseEngine:
    """Return the engine that a policy chooses; see `load_engine_class`.

    Raises:
        InvalidArgument: the host registered custom operators, which the engine does not
            run.
        Fail: a library of custom operators cannot be used.
    """
    engine = load_engine_class(policy.engine)
    if policy.custom_ops_libraries and not engine.runs_custom_ops:
        from epctx_core.installing import install_engine_command

        raise InvalidArgument(
            "custom operators need the engine on onnxruntime, and the engine here is "
            f"{engine.name}.",
            hint=f"{install_engine_command()}, and set session.engine to "
            f"{ONNXRUNTIME!r}; or register no library of custom operators.",
        )
    return engine(policy)


@contextmanager
def blame_engine(named: str | None) -> Iterator[None]:
    """Attribute untyped exceptions of the chosen engine to the package that it is from.

    Raises:
        PluginError: the engine raised something else.
    """
    try:
        yield
    except (EpctxError, MemoryError):
        raise
    except Exception as error:
        entry = find_engine(named)
        if entry is None or load_engine_class(named).name.startswith(BUILT_IN):
            raise
        from epctx_core.registry.entries import entry_error

        hint = (
            "This is a fault of the engine; its own exception is the cause of this "
            f"error. Without it: session.engine={BUILT_IN}"
        )
        what = f"failed: {type(error).__name__}: {error}"
        raise entry_error(entry, "engine", what, hint) from error


class PreparedHandle:
    """A prepared model until it is closed; implements `PreparedModel`."""

    __slots__ = ("run",)

    def __init__(self, run: RunFunction) -> None:
        # The engine's own, on the instance: no detour on the way to it.
        self.run: Callable[..., Sequence[np.ndarray]] = run

    def close(self) -> None:
        """Release the model; its memory is freed after the last running call."""
        self.run = _refuse_closed


def _refuse_closed(inputs: Any, outputs: Any = None) -> NoReturn:  # noqa: ARG001 - the signature is `run`'s
    raise RuntimeException("a prepared model was run after it was closed.")


class CpuEngine:
    """The engine of one session; implements `epctx_core.plugin.Engine`.

    Chosen on first use.

    Raises:
        PackageMissing, InvalidArgument: the engine that the host or the environment
            names is not installed, or is in several packages.
    """

    def __init__(self, policy: EnginePolicy) -> None:
        self.policy = policy
        if policy.engine or read_environment():
            find_engine(policy.engine)
        if policy.custom_ops_libraries:
            # A wrong library is an error in any session, as in onnxruntime.
            make_engine(policy)

    @cached_property
    def _engine(self) -> BaseEngine:
        engine = make_engine(self.policy)
        if engine.name.startswith(BUILT_IN):
            from epctx_core.installing import install_engine_command

            asked = BUILT_IN in (self.policy.engine, read_environment())
            is_missing = not asked and find_engine(self.policy.engine) is None
            _log.log(
                logging.INFO if asked else logging.WARNING,
                (
                    "nodes of this session run on %s, which is slow and does not have "
                    "all operators%s"
                ),
                engine.name,
                f"; onnxruntime's kernels are faster: {install_engine_command()}"
                if is_missing
                else "",
            )
        return engine

    @property
    def name(self) -> str:
        """The engine asked first, with its version."""
        return load_engine_class(self.policy.engine).name

    @property
    def allocates(self) -> bool:
        """See `epctx_core.plugin.BaseEngine`."""
        return self._engine.allocates

    def prepare(
        self,
        model: ModelProto,
        weights: Mapping[str, np.ndarray] | None = None,
        *,
        heavy: bool | None = None,
    ) -> PreparedHandle:
        """Make a model ready to run; see `epctx_core.plugin.Engine.prepare`."""
        layout = next(
            (entry.value for entry in model.metadata_props if entry.key == _LAYOUT),
            None,
        )
        if layout not in {None, self._engine.name}:
            raise InvalidGraph(
                f"a group of nodes was optimised for {layout}; the engine here is "
                f"{self._engine.name}.",
                hint="Compile the source model again on this machine.",
            )

        # Each array is fetched once, however many parts the model is prepared in.
        arrays = {
            tensor.name: weights[tensor.name]
            for tensor in model.graph.initializer
            if weights and is_detached(tensor) and tensor.name in weights
        }
        return self._prepare(
            model, arrays, lambda part: self._engine.prepare(part, arrays, heavy=heavy)
        )

    def prepare_group(
        self, model: ModelProto, weights: Mapping[str, TensorView]
    ) -> PreparedHandle:
        """Prepare a group of nodes of the default CPU EP, optimised where that pays."""
        arrays = {name: weight.array() for name, weight in weights.items()}
        with blame_engine(self.policy.engine):
            pays = self.policy.optimizes and self._engine.pays_to_optimize(model)
        if not pays:
            return self.prepare(model, arrays)

        def prepare(part: ModelProto) -> RunnableModel:
            initializers = {
                t.name: weights[t.name]
                for t in part.graph.initializer
                if t.name in weights
            }
            try:
                return self._engine.prepare_optimized(part, initializers)
            except NotImplementedByProvider as error:
                _log.info("a group of nodes is not optimised: %s.", error.message)
            return self._engine.prepare(part, arrays)

        return self._prepare(model, arrays, prepare)

    def prepare_whole(
        self, model: ModelProto, weights: Mapping[str, TensorView]
    ) -> tuple[RunnableModel, Sequence[ValueInfoProto]] | None:
        """Prepare the whole model of a session; None where the engine refuses it."""
        self.policy.pieces = 1
        try:
            with blame_engine(self.policy.engine):
                return self._engine.prepare_whole(model, weights)
        except NotImplementedByProvider:
            return None

    def optimize(
        self,
        model: ModelProto,
        weights: Mapping[str, TensorView],
        *,
        contrib: bool = False,
    ) -> OptimizedModel | None:
        """Return an equal, faster model; see `epctx_core.plugin.Engine.optimize`."""
        level = GraphOptimizationLevel.ORT_ENABLE_ALL
        try:
            with blame_engine(self.policy.engine):
                return make_engine(self.policy).optimize_model(
                    model, weights, level, contrib=contrib
                )
        except NotImplementedByProvider as error:
            _log.info("a group of nodes is not optimised: %s.", error.message)
            return None

    def _prepare(
        self,
        model: ModelProto,
        arrays: Mapping[str, np.ndarray],
        fast: Callable[[ModelProto], RunnableModel],
    ) -> PreparedHandle:
        """Prepare a group of nodes, with the reference for the part that the first
        engine refuses.

        Args:
            model: of the group.
            arrays: for its detached initializers.
            fast: prepares a model on the first engine.
        """

        def blamed(part: ModelProto) -> RunFunction:
            with blame_engine(self.policy.engine):
                return fast(part).run

        try:
            if not self._engine.checks:
                from epctx_core.engines.splitting import check_group

                # The reference would fail in a run on a model that was not checked.
                model = check_group(model)
            return PreparedHandle(blamed(model))
        except NotImplementedByProvider as error:
            from epctx_core.engines.splitting import prepare_in_parts

            return PreparedHandle(
                prepare_in_parts(model, arrays, self._engine, blamed, error)
            )


def set_seed(seed: int) -> None:
    """Set the seed from which sessions that are made later draw random numbers on the
    engine.

    Raises:
        InvalidArgument: it is not a whole number.
    """
    if not is_whole(seed):
        raise InvalidArgument(f"a seed is a whole number, not {seed!r:.80}.")
    engine = load_engine_class()
    if not engine.set_seed(seed):
        log_without_effect("set_seed", f"the engine {engine.name} has no seed")
