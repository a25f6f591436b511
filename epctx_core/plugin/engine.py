"""Engines, which run ONNX models on the CPU: what an EP is lent, and what a package brings that has one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from epctx_core.errors import NotImplementedByProvider

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from epctx_core.options import GraphOptimizationLevel
    from epctx_core.plugin.views import TensorView


class OptimizedModel(NamedTuple):
    """A model that computes the same as another one, faster.

    Attributes:
        model: the same inputs and outputs; large weights stand as external tensors.
        weights: the views behind those: the given ones where they are unchanged, else new ones in memory.
    """

    model: onnx.ModelProto
    weights: Mapping[str, TensorView]


class RunnableModel(Protocol):
    """A model that an engine made ready; several handles may share it. It keeps its weights alive."""

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> Sequence[np.ndarray]:
        """Run; inputs and results are in the order of the model's graph inputs and outputs."""


class PreparedModel(RunnableModel, Protocol):
    """A model that an EP's engine is ready to run; stateless, callable from many threads."""

    def close(self) -> None:
        """Release the engine's memory; `run` afterwards is an error."""


class Engine(Protocol):
    """Runs ONNX models on the CPU: the session's engine, and `onnx.reference` for what that one refuses."""

    @property
    def name(self) -> str:
        """Engine and version, such as `onnxruntime 1.31.1`."""

    def prepare(
        self,
        model: onnx.ModelProto,
        weights: Mapping[str, np.ndarray] | None = None,
        *,
        heavy: bool | None = None,
    ) -> PreparedModel:
        """Make a model ready to run.

        Args:
            model: its initializers that stand as external tensors are taken from `weights`.
            weights: arrays by initializer name. They are used in place, never copied unless the
                engine prepacks, and kept alive by the result.
            heavy: whether a thread pool pays for itself; None to have the engine judge by the model.

        Raises:
            NotImplementedByProvider: an operator that the engine does not have.
            InvalidGraph: the model is not valid, or was optimised with `layouts` for another machine or engine.
        """

    def optimize(
        self, model: onnx.ModelProto, weights: Mapping[str, TensorView], *, layouts: bool = False
    ) -> OptimizedModel | None:
        """Return an equal model that computes faster; None where there is none.

        The result holds ONNX's operators and those of other domains that were there. A model is worth optimising
        once; what was optimised is not to be given again.

        Args:
            model: not changed; its external tensors are found in `weights`.
            weights: views by initializer name; unchanged ones are not read.
            layouts: whether the result may also hold the engine's own operators and arrangements of weights for this
                machine's CPU. Its `metadata_props` then have an entry `epctx.cpu_layout`, which has to stay, and
                `prepare` refuses the model where the entry does not fit: an EP that keeps it in a payload must know
                a way back.
        """


@dataclass(kw_only=True)
class EnginePolicy:
    """The settings of one session's engine.

    Attributes:
        engine: the entry point's name that the host chose; None for the engine that is installed.
        intra_op_num_threads: what the host set; 0 for by rule.
        prefer_latency: True to spend memory on faster runs, False never to, None by rule.
        optimizes: whether pieces of the CPU EP may be optimised before they are prepared.
        pieces: how many pieces the session runs on engines; set before the first is prepared.
    """

    engine: str | None = None
    intra_op_num_threads: int = 0
    prefer_latency: bool | None = None
    optimizes: bool = False
    pieces: int = 1


class NotOptimizedError(Exception):
    """The engine's optimiser gave no model; the text says why."""


class BaseEngine(ABC):
    """Base class of engines; a package brings one by the entry-point group `epctx.engines`.

    Args:
        policy: the settings of the session; `pieces` is set later.

    Attributes:
        name: the engine with its version.
        checks: whether it checks models for itself.
        optimizes: whether it can optimise whole models.
    """

    name: ClassVar[str]
    checks: ClassVar[bool] = False
    optimizes: ClassVar[bool] = False

    def __init__(self, policy: EnginePolicy) -> None:
        self.policy = policy

    @property
    def layout(self) -> str:
        """Text for `epctx.cpu_layout` in models that are optimised here with private layouts; empty without any."""
        return ""

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
            NotImplementedByProvider: whatever the engine refuses; the core finds out what is wrong.
        """

    def pays_to_optimize(self, model: onnx.ModelProto) -> bool:  # noqa: ARG002 - for engines with an optimiser
        """Whether a piece of the CPU EP is to be prepared by `prepare_optimized`."""
        return False

    def prepare_optimized(self, model: onnx.ModelProto, weights: Mapping[str, TensorView]) -> RunnableModel:  # noqa: ARG002
        """Make an optimised form of a piece ready to run, which nobody else gets to see.

        Raises:
            NotOptimizedError: there is none; the core prepares the piece as it is.
            NotImplementedByProvider: as `prepare`.
        """
        raise NotOptimizedError(f"{self.name} has no optimiser")

    def has_kernels(self, model: onnx.ModelProto) -> bool:
        """Whether the engine takes a model without detached weights."""
        try:
            self.prepare(model)
        except NotImplementedByProvider:
            return False
        return True

    def can_pass(self, elem_type: int | None) -> bool:  # noqa: ARG002 - most engines pass all
        """Whether tensors of a type come in and go out; None is what is not a tensor."""
        return True

    @classmethod
    def optimize_model(
        cls,
        model: onnx.ModelProto,  # noqa: ARG003 - for engines with an optimiser
        weights: Mapping[str, TensorView],  # noqa: ARG003
        level: GraphOptimizationLevel,  # noqa: ARG003
        *,
        contrib: bool = False,  # noqa: ARG003
        layouts: bool = False,  # noqa: ARG003
    ) -> OptimizedModel:
        """Return an equal model that computes faster.

        Args:
            model: not changed; its external tensors are found in `weights`.
            weights: views by initializer name.
            level: how far to go.
            contrib: whether operators of `com.microsoft` may be added.
            layouts: see `Engine.optimize`.

        Raises:
            NotOptimizedError: there is none.
        """
        raise NotOptimizedError(f"{cls.name} has no optimiser")

    @classmethod  # noqa: B027 - for engines that know more operators than onnx
    def resolve_types(cls, inferred: onnx.ModelProto) -> None:
        """Declare values of operators that onnx does not know, in place, as far as the engine knows them."""

    @classmethod
    def set_seed(cls, seed: int) -> bool:  # noqa: ARG003 - for engines with a seed
        """Set the seed of random operators in sessions made later; return whether that has an effect."""
        return False
