"""Contracts of packages that extend epctx by something else than an EP or an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import onnx

    from epctx_core.options import SessionOptions
    from epctx_core.plugin.kernels import OperatorTypes
    from epctx_core.plugin.provider import ExecutionProvider
    from epctx_core.plugin.types import Purpose
    from epctx_core.plugin.views import TensorView


class GraphTransformer(Protocol):
    """Function that a host has called on models before EPs see them; any callable of
    this signature is one.

    A host names it in `SessionOptions.add_graph_transformer` or the config entry
    `session.graph_transformers`; a package offers it by the entry-point group
    `epctx.graph_transformers`.
    """

    def __call__(
        self, model: onnx.ModelProto, weights: Mapping[str, TensorView], level: int, /
    ) -> onnx.ModelProto | None:
        """Return an equal model, or None to leave it unchanged; the rules are those of
        `HookSpecs.optimize_model`.

        Called in the host's order before any other optimisation, at every level. Same
        model, same result: what is compiled is found again in caches by the
        transformer's version.
        """


class ModelFormat(Protocol):
    """Format of model files beside ONNX, decoded to ONNX; an object or a module with
    these functions.

    A package offers it by the entry-point group `epctx.model_formats`; the entry's name
    is the format's, as in `session.load_model_format`. It is imported only for files
    that are not ONNX.
    """

    def recognizes(self, data: bytes) -> bool:
        """Return whether bytes are a model in this format, by a look at its first
        bytes.
        """

    def decode(
        self, data: bytes, path: Path | None, count: Callable[[str], None]
    ) -> tuple[onnx.ModelProto, Sequence[OperatorTypes]]:
        """Decode a model to ONNX.

        Args:
            data: the whole file.
            path: of the file, None for bytes.
            count: called with `messages`, `nodes`, `names` or `bodies` before each one
                is decoded; raises InvalidGraph for more than the host allows.

        Returns:
            The model, whose large weights may be external tensors in the same file; and
            the operators that it states types for.

        Raises:
            InvalidProtobuf: it is damaged, or of an unknown version.
        """


class ProcessIsolation(Protocol):
    """Processes in which EPs work, and in which a strange file is read first, so that a
    crash there is an error here; an object or a module with these functions.

    A package offers it by the entry-point group `epctx.isolation`; a host chooses it by
    the session option `ep.isolate_by`.
    """

    def isolate(
        self,
        record: Any,
        cls: type[ExecutionProvider],
        purpose: Purpose,
        *,
        mode: str,
        seconds: int,
        max_bytes: int | None,
    ) -> type[ExecutionProvider]:
        """Return the class whose instances a session uses: its hooks work in another
        process. `cls` itself if none of this purpose's work is to be isolated.

        Args:
            record: the EP's `epctx_core.PluginRecord`.
            cls: the EP's class.
            purpose: of the instances.
            mode: `compile` for the work of a compile alone, `all` for all.
            seconds: most time for one call.
            max_bytes: most memory for data of a process; None for no limit.

        Raises:
            InvalidArgument, NotImplementedByProvider: the EP cannot be isolated.
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
