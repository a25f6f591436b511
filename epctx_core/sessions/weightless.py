"""Weightless mode when a model is compiled: whether all EPs can, and what is written about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.context.metadata import set_metadata
from epctx_core.context.weightless import (
    FILE_ATTRIBUTE,
    MODE_KEY,
    SourceReference,
    SourceReferences,
    files_of,
)
from epctx_core.errors import InvalidArgument, NotImplementedByProvider
from epctx_core.options import WeightlessMode

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from onnx import ModelProto

    from epctx_core.graph.model_io import SourceModel
    from epctx_core.plugin import TensorView
    from epctx_core.sessions.providers import ProviderChoice

_OPTION = "ep.enable_weightless_mode"
_TEXTS = {
    frozenset(): "none",
    frozenset({WeightlessMode.EXTERNAL_ONLY}): "external_only",
    frozenset({WeightlessMode.ALL}): "all",
    frozenset({WeightlessMode.EXTERNAL_ONLY, WeightlessMode.ALL}): "all_or_external_only",
}


def checked_mode(choices: Sequence[ProviderChoice], asked: WeightlessMode) -> WeightlessMode:
    """Return the mode that EPs are asked to compile in.

    Raises:
        NotImplementedByProvider: an EP does not know weightless mode.
        InvalidArgument: an EP knows it, but not this mode.
    """
    for choice in choices:
        modes = choice.cls.weightless_modes
        if modes is None:
            raise NotImplementedByProvider(
                f"{choice.name} does not know weightless mode, which {_OPTION} asks for.",
                ep=choice.name,
                hint=f"Leave {_OPTION} and ep.enable_weightless out, or compile without this EP.",
            )
        if asked not in modes:
            raise InvalidArgument(
                f"{choice.name} does not support weightless mode {int(asked)} ({asked.name}); "
                f"it supports: {weightless_modes_text(modes)}.",
                ep=choice.name,
                hint=f"Set {_OPTION} to a mode that it supports, or leave it out.",
            )
    return asked


def weightless_modes_text(modes: Collection[WeightlessMode] | None) -> str:
    """Return what an EP supports in ONNX Runtime's words."""
    return _TEXTS[frozenset(modes or ()) - {WeightlessMode.NONE}]


class SourceLedger:
    """The weights that the payloads of one compile leave in the source model.

    Args:
        mode: what the EPs compile in.
        source: the model being compiled.

    Attributes:
        tensors: the weights themselves, by their names in the source.
    """

    def __init__(self, mode: WeightlessMode, source: SourceModel) -> None:
        self._mode = mode
        self._source = source
        self._used: dict[str, SourceReference] = {}
        self.tensors: dict[str, TensorView] = {}

    def of_ep(self) -> SourceReferences:
        """Return what decides for the payloads of one more EP."""
        return SourceReferences(self._mode, self._source.locations)

    def close_ep(self, references: SourceReferences) -> Mapping[str, Any]:
        """Take over what an EP's payloads left out; return what its nodes say about the source."""
        self._used.update(references.used)
        self.tensors.update(references.tensors)
        path = self._source.path
        return {FILE_ATTRIBUTE: path.name} if references.used and path is not None else {}

    @property
    def weights(self) -> Mapping[str, SourceReference]:
        """By name, what all payloads left out."""
        return self._used

    @property
    def files(self) -> tuple[str, ...]:
        """The source's files that a load needs, as the source names them; without the model if it has no file."""
        path = self._source.path
        return files_of(self._used.values(), () if path is None else (path.name,))

    def record(self, proto: ModelProto) -> None:
        """Write the mode into a context model."""
        if self._mode is not WeightlessMode.NONE:
            set_metadata(proto, MODE_KEY, str(int(self._mode)))
