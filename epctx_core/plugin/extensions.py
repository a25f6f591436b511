"""Contract of packages with an engine: its base class, and helpers of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from epctx_core.errors import NotImplementedByProvider, RuntimeException

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from epctx_core.options import GraphOptimizationLevel
    from epctx_core.options.run import RunOptions
    from epctx_core.plugin.packages import OptimizedModel, RunnableModel
    from epctx_core.plugin.types import EnginePolicy
    from epctx_core.plugin.views import TensorView

_R = TypeVar("_R")


class BaseEngine(ABC):
    """Base class of engines; a package provides one by the entry-point group
    `epctx.engines`.

    Class methods but `set_seed` are called on engines: one that needs its policy there
    may make them methods.

    Args:
        policy: the settings of the session; `pieces` is set later.

    Attributes:
        name: name and version of the engine.
        checks: whether it checks models itself.
        optimizes: whether it can optimise whole models.
        runs_custom_ops: whether it takes the operators of
            `policy.custom_ops_libraries`.
        allocates: whether its models take None for some of the outputs of `run`, and
            allocate these.
    """

    name: ClassVar[str]
    checks: ClassVar[bool] = False
    optimizes: ClassVar[bool] = False
    runs_custom_ops: ClassVar[bool] = False
    allocates: ClassVar[bool] = False

    def __init__(self, policy: EnginePolicy) -> None:
        self.policy = policy

    @abstractmethod
    def prepare(
        self,
        model: onnx.ModelProto,
        weights: Mapping[str, np.ndarray] | None = None,
        *,
        heavy: bool | None = None,
    ) -> RunnableModel:
        """Make a model ready to run; see `Engine.prepare`.

        Raises:
            NotImplementedByProvider: for any refusal; the core determines the cause.
        """

    def pays_to_optimize(self, model: onnx.ModelProto) -> bool:  # noqa: ARG002 - for engines with an optimiser
        """Return whether to prepare a group of the CPU EP by `prepare_optimized`."""
        return False

    def prepare_optimized(
        self,
        model: onnx.ModelProto,  # noqa: ARG002
        weights: Mapping[str, TensorView],  # noqa: ARG002
    ) -> RunnableModel:
        """Make an optimised form of a group ready to run; it is not visible to anything
        else.

        Raises:
            NotImplementedByProvider: there is none, or as `prepare`; the core then
                prepares the group unchanged.
        """
        raise NotImplementedByProvider(f"{self.name} has no optimiser")

    def prepare_whole(
        self,
        model: onnx.ModelProto,  # noqa: ARG002
        weights: Mapping[str, TensorView],  # noqa: ARG002
    ) -> tuple[RunnableModel, Sequence[onnx.ValueInfoProto]]:
        """Make the whole model of a session ready to run; called for one of which no EP
        is asked, so that the core has not inferred its types.

        Args:
            model: not changed.
            weights: views by initializer name.

        Returns:
            The model, and its outputs with what the engine knows of their types.

        Raises:
            NotImplementedByProvider: as `prepare_optimized`; the core then infers types
                and prepares the groups of the model.
        """
        raise NotImplementedByProvider(f"{self.name} has no optimiser")

    def has_kernels(self, model: onnx.ModelProto) -> bool:
        """Return whether the engine accepts a model without detached weights."""
        try:
            self.prepare(model)
        except NotImplementedByProvider:
            return False
        return True

    def can_pass(self, elem_type: int | None) -> bool:  # noqa: ARG002 - most engines pass all
        """Return whether inputs and outputs may have a type; None stands for values
        that are not tensors.
        """
        return True

    @classmethod
    def optimize_model(
        cls,
        model: onnx.ModelProto,  # noqa: ARG003 - for engines with an optimiser
        weights: Mapping[str, TensorView],  # noqa: ARG003
        level: GraphOptimizationLevel,  # noqa: ARG003
        *,
        contrib: bool = False,  # noqa: ARG003
    ) -> OptimizedModel:
        """Return an equal model that computes faster.

        Args:
            model: not changed; its external tensors are found in `weights`.
            weights: views by initializer name.
            level: how far to go.
            contrib: whether operators of `com.microsoft` may be added.

        Raises:
            NotImplementedByProvider: there is none.
        """
        raise NotImplementedByProvider(f"{cls.name} has no optimiser")

    @classmethod
    def has_operator(cls, domain: str, op_type: str, version: int) -> bool:  # noqa: ARG003 - most have none
        """Return whether the engine has an operator in a version of one of ONNX's own
        domains, in which onnx does not have it; `resolve_types` then knows its types.
        """
        return False

    @classmethod  # noqa: B027 - for engines that know more operators than onnx
    def resolve_types(cls, inferred: onnx.ModelProto) -> None:
        """Declare the types of values of operators that onnx does not know, in place,
        as far as the engine knows them.
        """

    def find_libraries(
        self,
        model: onnx.ModelProto,  # noqa: ARG002
        skipped: Container[tuple[str, str]],  # noqa: ARG002
    ) -> dict[str, str]:
        """Return the domains of a model's custom operators, each with the path of the
        registered library that has them.

        Args:
            model: not changed; its large weights are elsewhere.
            skipped: operators that need none, by domain and name.

        Returns:
            An empty path for a domain that neither the engine nor a library has.
        """
        return {}

    @classmethod
    def set_seed(cls, seed: int) -> bool:  # noqa: ARG003 - for engines with a seed
        """Set the seed of random operators in later sessions; return whether that has
        an effect.
        """
        return False


_CURRENT: ContextVar[RunOptions | None] = ContextVar("epctx_run_options", default=None)


def current_options() -> RunOptions | None:
    """Return the options of this thread's current run, or None."""
    return _CURRENT.get()


def run_with_options(
    run: Callable[..., _R], feeds: Any, options: RunOptions, *rest: Any
) -> _R:
    """Return `run(feeds, options, *rest)`, with the options as `current_options`; a
    nested run has its own.
    """
    token = _CURRENT.set(options)
    try:
        return run(feeds, options, *rest)
    finally:
        _CURRENT.reset(token)


def write_in_place(
    results: Sequence[np.ndarray], outputs: Sequence[np.ndarray | None]
) -> Sequence[np.ndarray]:
    """Copy results into given arrays and return these; numpy alone would broadcast and
    cast to make them fit. A result for which None is given is returned as it is.

    Raises:
        RuntimeException: a result has another type or shape than its array.
    """
    placed = list(results)
    for index, (result, target) in enumerate(zip(results, outputs, strict=True)):
        if target is None or target is result:
            continue
        if result.shape != target.shape or result.dtype != target.dtype:
            raise RuntimeException(
                f"output {index} is {result.dtype}{list(result.shape)}; the memory "
                f"given for it is {target.dtype}{list(target.shape)}.",
                hint=(
                    "Either the caller gave wrong memory, or the model declares what "
                    "its operators do not compute; correct it."
                ),
            )
        target[...] = result
        placed[index] = target
    return placed
