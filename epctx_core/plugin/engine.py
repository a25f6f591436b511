"""The engine that an EP is lent: it runs ONNX models on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import numpy as np
    import onnx

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
