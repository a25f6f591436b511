"""Weights that payloads left in the source model (weightless mode), found again when they are loaded.

The source is what the host gives (a buffer, or a path), or the file that the EPContext nodes name, beside
the context model. Weights in files of their own need no source model: the manifest says where they lie.
Each is checked against its digest before an EP gets it, and used where it lies.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.paths import OpenedFile
from epctx_core.context.weightless.references import FILE_ATTRIBUTE, SourceReference
from epctx_core.context.weightless.source_model import read_weights
from epctx_core.context.weights_folder import FOLDER_OPTION, WeightsFolder
from epctx_core.errors import InvalidGraph, NoSuchFile
from epctx_core.graph.digests import digests_ahead
from epctx_core.graph.mapping import MappedFile
from epctx_core.graph.weights import Weight

if TYPE_CHECKING:
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.paths import ModelFolder

PATH_OPTION = "ep.context_source_model_path"
_HINT = (
    f"Set the session option {PATH_OPTION!r} to the source model, give its bytes to "
    "SessionOptions.set_weightless_source_model_buffer, or put it beside the context model under its old name."
)
_CHANGED = "Restore the source model that the context model was compiled from, or compile again."


class SourceWeights:
    """The source's weights for one session; nothing is opened before the first is asked for.

    Args:
        records: the model's EPContext nodes, which may name the source's file.
        manifest: what the model says about the weights that were left out, if it does.
        folder: where the context model's files lie, None for a model from bytes without one.
        path: the source as the host named it.
        buffer: the source as the host gave it; goes before `path`.
        weights_folder: where the host says that external weights lie; else they lie beside the source.
    """

    def __init__(
        self,
        records: Iterable[ContextNodeRecord],
        *,
        manifest: Manifest | None,
        folder: ModelFolder | None,
        path: str | None,
        buffer: memoryview | None,
        weights_folder: str | None,
    ) -> None:
        self._files = list(
            dict.fromkeys(
                name for r in records if isinstance(name := r.attributes.get(FILE_ATTRIBUTE), str) and name
            )
        )
        self._references: Mapping[str, SourceReference] = manifest.source_weights if manifest else {}
        self._folder = folder
        self._path = path
        self._buffer = buffer
        self._weights_folder = weights_folder
        self._mapped: dict[str, MappedFile] = {}

    def tensor(self, name: str) -> Weight:
        """Return a weight; the first call digests all that the manifest names, several at once.

        Raises:
            InvalidGraph: no source, not this one, or a weight that it lacks.
        """
        weight = self._checked.get(name)
        if weight is None:
            raise _missing(name, self._where)
        return weight

    @property
    def _is_given(self) -> bool:
        return self._buffer is not None or self._path is not None

    @cached_property
    def _checked(self) -> dict[str, Weight]:
        """The weights that payloads may refer to, as they were when the model was compiled."""
        found = self._find()
        with digests_ahead(found[name] for name in self._references):
            for name, reference in self._references.items():
                _check(found[name], reference, self._where)
        return found

    def _find(self) -> dict[str, Weight]:
        """Return all weights that the manifest names, or all of the source for a model without a manifest."""
        beside = {
            name: self._in_file(name, reference)
            for name, reference in self._references.items()
            if reference.location and not self._is_given
        }
        wanted = self._references.keys() - beside.keys()
        if not wanted and self._references:
            return beside
        source = self._read(wanted if self._references else None)
        for name in wanted:
            if name not in source:
                raise _missing(name, self._where)
        return {**source, **beside}

    def _in_file(self, name: str, reference: SourceReference) -> Weight:
        """Return a weight out of a file of weights, without the source model."""
        mapped = self._mapped.get(reference.location)
        if mapped is None:
            mapped = self._mapped[reference.location] = self._map(name, reference.location)
        try:
            size = reference.nbytes
        except (KeyError, TypeError):
            raise InvalidGraph(f"the weight {name!r} of the source has no known element type.") from None
        if reference.offset + size > mapped.size:
            raise _changed(name, f"{reference.location!r} ends before it", mapped.path)
        data = mapped.view[reference.offset : reference.offset + size]
        return Weight(
            name, reference.elem_type, reference.shape, data, mapped=mapped, offset=reference.offset
        )

    def _map(self, name: str, location: str) -> MappedFile:
        what = "the source's weights file"
        if self._weights_folder is not None:
            file = WeightsFolder(None, self._weights_folder).open(location, name)
        elif self._folder is not None:
            try:
                file = self._folder.open(location, what=what, node=name)
            except InvalidGraph as error:
                error.hint = (
                    f"Put it beside the context model, or set the session option {FOLDER_OPTION!r} to its folder "
                    f"or {PATH_OPTION!r} to the source model."
                )
                raise
        else:
            raise InvalidGraph(
                f"the weight {name!r} lies in {location!r}, a file of the source model, and the context model was "
                "given as bytes.",
                hint=f"Set the session option {FOLDER_OPTION!r} to the folder, or {PATH_OPTION!r} to the source model.",
            )
        with file:
            return MappedFile(file.fileno(), file.path)

    def _read(self, wanted: Collection[str] | None) -> dict[str, Weight]:
        """Return weights of the source model by name; None for all."""
        path: Path | None = None
        if self._buffer is not None:
            model: MappedFile | memoryview = self._buffer
        else:
            with self._open_file() as file:
                model, path = MappedFile(file.fileno(), file.path), Path(file.path)
        folder = WeightsFolder(path, self._weights_folder)
        return read_weights(model, wanted, folder.open, where=self._where)

    def _open_file(self) -> OpenedFile:
        if self._path is not None:
            return _open_named(self._path)
        if len(self._files) != 1 or self._folder is None:
            raise InvalidGraph(
                f"weights of the source model are needed, and {self._why_unknown()}.", hint=_HINT
            )
        try:
            return self._folder.open(self._files[0], what="the source model")
        except InvalidGraph as error:
            error.hint = _HINT
            raise

    def _why_unknown(self) -> str:
        if len(self._files) > 1:
            return f"the EPContext nodes name several source models: {', '.join(map(repr, self._files))}"
        if self._files:
            return f"the context model was given as bytes, which have no folder in which {self._files[0]!r} could lie"
        return "no EPContext node names its file"

    @property
    def _where(self) -> str:
        if self._buffer is not None:
            return "the buffer that was given as the source model"
        return repr(self._path or (self._files[0] if self._files else "the source model"))


def _open_named(path: str) -> OpenedFile:
    """Open the source that the host named."""
    reason = "which is no file"
    if Path(path).is_file():
        try:
            return OpenedFile(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)), path)
        except OSError as error:
            reason = f"which cannot be read: {error.strerror}"
    raise NoSuchFile(f"{PATH_OPTION} names {path!r}, {reason}.", path=path, hint=_HINT)


def _check(weight: Weight, reference: SourceReference, where: str) -> None:
    """Raise InvalidGraph unless a weight is what it was when the model was compiled."""
    mapping = weight.mapping
    where = repr(Path(mapping[0].path).name) if mapping is not None else where
    path = mapping[0].path if mapping is not None else None
    if (weight.elem_type, weight.shape) != (reference.elem_type, reference.shape):
        raise _changed(weight.name, f"in {where} it has another type or shape", path)
    if weight.digest != reference.digest:
        raise _changed(weight.name, f"in {where} it has another digest", path)
    if mapping is not None:
        mapping[0].check_unchanged()


def _changed(name: str, what: str, path: str | None = None) -> InvalidGraph:
    return InvalidGraph(
        f"the weight {name!r} of the source model is not the one that was compiled: {what}.",
        path=path,
        hint=_CHANGED,
    )


def _missing(name: str, where: str) -> InvalidGraph:
    return InvalidGraph(f"{where} has no weight {name!r}, which the context model refers to.", hint=_HINT)
