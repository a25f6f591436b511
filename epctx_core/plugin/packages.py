"""Contracts of packages that offer neither an EP nor an engine: formats of model files,
isolation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

    from epctx_core.options import SessionOptions

_R = TypeVar("_R")


class ModelFormat(Protocol):
    """Format of model files beside ONNX, decoded to ONNX; an object or a module with
    these functions.

    A package offers it by the entry-point group `epctx.model_formats`; the entry's name
    is the format's, as in `session.load_model_format`. It is imported only for models
    that are not ONNX, and only if the host names the format: by that option, or by a
    path whose suffix is the name, in any case.
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
            The model, whose large weights may be external tensors in the same file.

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
            work: the model with the host's options, a `Work`.

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
            work: whose options, EPs and progress these are, a `Work`.
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
