"""Weights that payloads leave in the source model (weightless mode): what is noted about each, and by whom.

A reference is the weight's name in the source with its digest, type and shape and, for one in a file, that file's
name and the place in it. It holds no path. `weights` finds them again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from onnx import TensorProto

from epctx_core.graph.weights import Weight, raw_size
from epctx_core.options import WeightlessMode

if TYPE_CHECKING:
    from epctx_core.plugin import TensorView

MODE_KEY = "weightless_mode"
"""ONNX Runtime's metadata key for the mode that a model was compiled with."""
FILE_ATTRIBUTE = "onnx_model_filename"
"""The attribute of an EPContext node that names the source model's file."""


class SourceReference(NamedTuple):
    """One weight of the source.

    Attributes:
        digest: SHA-256 (hex) of its raw bytes.
        location: the file of weights that holds it, as the source names it; empty for an inline one.
        offset: its place in that file.
    """

    digest: str
    elem_type: int
    shape: tuple[int, ...]
    location: str
    offset: int

    @property
    def nbytes(self) -> int:
        """Length of the raw bytes.

        Raises:
            KeyError, TypeError: no type of numbers.
        """
        if self.elem_type == TensorProto.STRING:
            raise KeyError(self.elem_type)
        return raw_size(self.elem_type, self.shape)


def read_references(data: Mapping[str, Sequence[Any]]) -> dict[str, SourceReference]:
    """Return references by name out of a manifest's JSON.

    Raises:
        ValueError, TypeError: they are not as the manifest writes them.
    """
    found: dict[str, SourceReference] = {}
    for name, (digest, elem_type, shape, location, offset) in data.items():
        numbers = [elem_type, offset, *shape]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("a weight of the source is described by something else than whole numbers")
        if not isinstance(digest, str) or not isinstance(location, str):
            raise TypeError("a weight of the source has a digest or a file that is no text")
        found[name] = SourceReference(digest, elem_type, tuple(shape), location, offset)
    return found


def files_of(references: Collection[SourceReference], models: Iterable[str]) -> tuple[str, ...]:
    """Return the files that references need: of the models those that hold inline weights, then files of weights."""
    inline = any(not reference.location for reference in references)
    locations = (reference.location for reference in references)
    return tuple(dict.fromkeys(filter(None, (*(models if inline else ()), *locations))))


class SourceReferences:
    """Decides which weights one EP's payloads leave in the source, and notes them.

    Args:
        mode: what the host asked for.
        locations: the real path of each of the source's files of weights, with its name there.

    Attributes:
        used: the weights that were left out, by name.
        tensors: the same, as the EP has them.
    """

    def __init__(self, mode: WeightlessMode, locations: Mapping[str, str]) -> None:
        self.used: dict[str, SourceReference] = {}
        self.tensors: dict[str, TensorView] = {}
        self._mode = mode
        self._locations = locations

    def reference(self, view: TensorView) -> str | None:
        """Return the name under which a load finds a weight in the source; None if it has to be stored.

        Stored is what the mode does not cover, and what is not the source's own: weights that an optimiser
        or the EP made, or that are written in bodies of control flow.
        """
        if self._mode is WeightlessMode.NONE or not isinstance(view, Weight) or view.source_name is None:
            return None
        extent = view.extent
        location = self._locations.get(extent.file, "") if extent is not None else ""
        if self._mode is WeightlessMode.EXTERNAL_ONLY and not location:
            return None
        self.used[view.source_name] = SourceReference(
            view.digest, view.elem_type, view.shape, location, extent.offset if extent is not None else 0
        )
        self.tensors[view.source_name] = view
        return view.source_name
