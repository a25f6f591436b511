"""Contracts of what packages offer beside EPs: the engine that an EP may use for
models, formats of model files, isolation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import onnx

    from epctx_core.options import SessionOptions
    from epctx_core.plugin.types import EnginePolicy
    from epctx_core.plugin.views import TensorView

_R = TypeVar("_R")


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


class ModelFormat(Protocol):
    """Format of model files beside ONNX, decoded to ONNX; an object or a module with
    these functions.

    A package offers it by the entry-point group `epctx.model_formats`; the entry's name
    is the format's, as in `session.load_model_format`. It is imported only for models
    that are not ONNX, and only if the host names the format: by that option, or by a
    path with the name as its suffix, in any case.
    """

    def recognizes(self, data: bytes) -> bool:
        """Return whether bytes are a model in this format, by a look at its first
        bytes.
        """

    def decode(
        self, data: bytes, path: Path | None, count: Callable[[str], None]
    ) -> onnx.ModelProto:
        """Decode a model to ONNX.

        Args:
            data: the whole file.
            path: of the file, None for bytes.
            count: called with `messages`, `nodes`, `names` or `bodies` before each one
                is decoded; raises InvalidGraph for more than the host allows.

        Returns:
            The model; its large weights may be external tensors in the same file.

        Raises:
            InvalidProtobuf: it is damaged, or of an unknown version.
        """


class ProcessIsolation(Protocol):
    """Other processes in which sessions and compiles are done, and in which a strange
    file is read first, so that a crash there is an error here; an object or a module
    with these functions.

    A package offers it by the entry-point group `epctx.isolation`; a host chooses it by
    the session option `ep.isolate_by`.
    """

    def load(self, work: Any) -> Any:
        """Return the `SessionState` of a session that another process loads and runs.

        Args:
            work: the model with the host's options, a `Request`.

        Raises:
            EpctxError: as in process; PluginError or Fail if the process is lost.
        """

    def call(
        self,
        work: Any,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        result: type[_R],
        functions: Mapping[str, Callable[..., Any] | None],
    ) -> _R:
        """Call a function in another process; return its result.

        Args:
            work: whose options, EPs and progress these are, a `Request`; its `close`
                shuts down the EPs that the function leaves open.
            function: the function, which the process can import.
            arguments: its arguments by name.
            result: the class of its result, a dataclass; nothing else may come back.
            functions: functions of the host among the arguments, by what they do.

        Raises:
            EpctxError: the function raised it; PluginError or Fail if the process is
                lost.
        """

    def share(self, config: Any, arguments: Mapping[str, Any]) -> Any:
        """Return a `ShareGroup` in another process: `compile(model, sess_options,
        name)`, `finish(report class)` and `discard()`.

        Args:
            config: the options of its first model, a `SessionConfig`.
            arguments: those of the group.
        """

    def try_reading(
        self,
        model: str | bytes,
        session: SessionOptions,
        *,
        seconds: float,
        max_bytes: int,
    ) -> tuple[bool, str]:
        """Have another process load a model without its EPs.

        Args:
            model: its path, or its bytes.
            session: the options; those of EPs are left out.
            seconds: most time that it may take.
            max_bytes: most memory for data.

        Returns:
            Whether it was loaded; and how the process ended that did not survive it,
            empty for one that did.
        """
