"""Computation on the CPU: the engine that an EP may use for models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from epctx_core.plugin.types import EnginePolicy
    from epctx_core.plugin.views import TensorView


class OptimizedModel(NamedTuple):
    """A model that computes the same as another one, faster.

    Attributes:
        model: has the same inputs and outputs; large weights are external tensors.
        weights: the views of those: the given ones if unchanged, else new ones in
            memory.
    """

    model: onnx.ModelProto
    weights: Mapping[str, TensorView]


class RunnableModel(Protocol):
    """A model that an engine made ready; it keeps its weights alive."""

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> Sequence[np.ndarray]:
        """Run; inputs and results are in the order of the model's graph inputs and
        outputs.

        Args:
            inputs: an array each.
            outputs: memory for the results, into which
                `epctx_core.plugin.write_in_place` copies what an engine cannot compute
                there. Some may be None where the engine `allocates`.
        """


class PreparedModel(Protocol):
    """A model that an EP's engine is ready to run; stateless, callable from many
    threads.
    """

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> Sequence[np.ndarray]:
        """Run; inputs and results are in the order of the model's graph inputs and
        outputs.
        """

    def close(self) -> None:
        """Release the engine's memory; `run` afterwards is an error."""


class Engine(Protocol):
    """Runs ONNX models on the CPU: the session's engine, and `onnx.reference` for what
    that one refuses.

    Attributes:
        policy: its settings; a session changes some while it is made.
    """

    policy: EnginePolicy

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
            model: its initializers that stand as external tensors are taken from
                `weights`.
            weights: arrays by initializer name. They are used in place, never copied
                unless the engine prepacks, and kept alive by the result.
            heavy: whether a thread pool pays for itself; None to have the engine judge
                by the model.

        Raises:
            NotImplementedByProvider: an operator that the engine does not have.
            InvalidGraph: the model is not valid, or was optimised with `contrib` for
                another engine.
        """

    def optimize(
        self,
        model: onnx.ModelProto,
        weights: Mapping[str, TensorView],
        *,
        contrib: bool = False,
    ) -> OptimizedModel | None:
        """Return an equal model that computes faster; None where there is none.

        The result contains ONNX's operators, and those of other domains that the model
        had. Optimise a model only once.

        Args:
            model: not changed; its external tensors are found in `weights`.
            weights: views by initializer name; unchanged ones are not read.
            contrib: whether the result may also have the engine's own operators, some
                of which are in ONNX's domain. Whoever keeps it sets the entry
                `epctx.cpu_layout` of its `metadata_props` to the engine's name.

        `prepare` refuses a model whose entry does not fit: an EP that keeps such a
        model in a payload must know a way back, or keep another form beside it.
        """
