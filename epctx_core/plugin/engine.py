"""The core's own kernels, as an EP may use them: for tests, simulation, or the part its device lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import onnx


class PreparedModel(Protocol):
    """A model that an engine is ready to run; stateless, callable from many threads."""

    def run(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> Sequence[np.ndarray]:
        """Run; inputs and results are in the order of the model's graph inputs and outputs."""

    def close(self) -> None:
        """Release the engine's memory; `run` afterwards is an error."""


class Engine(Protocol):
    """Runs ONNX models on the CPU: onnxruntime where it is installed, else `onnx.reference`."""

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
            InvalidGraph: the model is not valid.
        """
