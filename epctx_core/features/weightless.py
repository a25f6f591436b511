"""Weightless mode: payloads leave weights in the source model, noted by a compile and
found again by a load.

A reference is the weight's name in the source with its digest, type and shape and, for
one in a file, that file's name and the offset in it. It holds no path.

The source is what the host gives (a buffer, or a path), or the file that the EPContext
nodes name, beside the context model. Weights in files of their own need no source
model: the manifest says where they lie. Each that it names is checked against its
digest before an EP gets it; all are used where they lie.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError

from epctx_core.context.manifest import NO_MANIFEST
from epctx_core.context.metadata import MODE_KEY
from epctx_core.context.weights_folder import FOLDER_OPTION, WeightsFolder
from epctx_core.errors import (
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplementedByProvider,
)
from epctx_core.graph.counting import check_budget
from epctx_core.graph.mapping import MappedFile, OpenedFile, open_model_file
from epctx_core.graph.tensor_bytes import read_initializers, read_weight
from epctx_core.graph.weights import (
    ModelContent,
    OpenExternal,
    Weight,
    compute_digests_ahead,
    compute_raw_size,
)
from epctx_core.graph.wire import separate_weights
from epctx_core.options import WeightlessMode
from epctx_core.plugin import Purpose
from epctx_core.plugin.protos import ModelProto, TensorProto
from epctx_core.sessions.compatibility import format_weightless_modes
from epctx_core.sessions.stages import ModelFacts, Stages

if TYPE_CHECKING:
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.paths import ModelFolder
    from epctx_core.graph.model_io import SourceModel
    from epctx_core.graph.weights import Weights
    from epctx_core.options import InputBudget, SessionConfig
    from epctx_core.plugin import ProviderContext, TensorView
    from epctx_core.sessions.routing import ProviderChoice
    from epctx_core.sessions.stages import Request

_OPTION = "ep.enable_weightless_mode"
FILE_ATTRIBUTE = "onnx_model_filename"
"""Attribute of an EPContext node that names the source model's file."""


class SourceReference(NamedTuple):
    """Weight of the source model, as the manifest describes it.

    Attributes:
        digest: SHA-256 (hex) of its raw bytes.
        location: the file of weights that holds it, as the source names it; empty for
            an inline one.
        offset: of the bytes in that file.
    """

    digest: str
    elem_type: int
    shape: tuple[int, ...]
    location: str
    offset: int

    @property
    def nbytes(self) -> int:
        """Length of the raw bytes."""
        return compute_raw_size(self.elem_type, self.shape)


def read_references(data: Mapping[str, Sequence[Any]]) -> dict[str, SourceReference]:
    """Return references by name out of a manifest's JSON.

    Raises:
        ValueError, TypeError: they are not as the manifest writes them.
    """
    references: dict[str, SourceReference] = {}
    for name, (digest, elem_type, shape, location, offset) in data.items():
        numbers = [elem_type, offset, *shape]
        are_numbers = all(
            type(number) is int and 0 <= number < 1 << 63 for number in numbers
        )
        if (
            not are_numbers
            or elem_type >> 31
            or not isinstance(digest, str)
            or not isinstance(location, str)
        ):
            raise ValueError(
                f"the weight {name!r:.80} of the source is not described by numbers "
                "and texts"
            )
        references[name] = SourceReference(
            digest, elem_type, tuple(shape), location, offset
        )
    return references


class Weightless(Stages):
    """Stages of weightless mode."""

    def make_context(
        self, request: Request, choice: ProviderChoice, context: ProviderContext
    ) -> ProviderContext:
        """Tell an EP the mode in which it compiles.

        A load needs no mode: payloads say what they left out.

        Raises:
            NotImplementedByProvider: the EP does not know weightless mode.
            InvalidArgument: it knows it, but not this mode.
        """
        context = super().make_context(request, choice, context)
        mode = request.config.weightless
        if context.purpose is Purpose.LOAD or not mode:
            return context
        _check_mode(choice, mode)
        return replace(context, weightless=mode)

    def leave_weight(
        self, request: Request, source: SourceModel, weight: TensorView
    ) -> str | None:
        """Leave a weight that the mode covers and that is the source's own: none that
        an optimiser or the EP made, or that lies in a subgraph.
        """
        mode = request.config.weightless
        is_left = mode is WeightlessMode.ALL or (
            mode is WeightlessMode.EXTERNAL_ONLY and _find_location(weight, source)
        )
        if is_left and isinstance(weight, Weight):
            return weight.source_name
        return super().leave_weight(request, source, weight)

    def describe_model(
        self,
        request: Request,
        source: SourceModel,
        earlier: Manifest,
        left: Mapping[str, Mapping[str, TensorView]],
    ) -> ModelFacts:
        """State the mode, and the weights that payloads left, with those of payloads
        that were there already.

        Raises:
            InvalidArgument: both left different weights of one name.
        """
        facts = super().describe_model(request, source, earlier, left)
        old = earlier.source_weights
        used = {
            name: _make_reference(weight, source)
            for weights in left.values()
            for name, weight in weights.items()
        }
        _check_same_source(old, used)

        path = source.path
        attributes = {} if path is None else {FILE_ATTRIBUTE: path.name}
        mode = request.config.weightless
        facts = replace(
            facts,
            parts={**facts.parts, "source_weights": {**old, **used}},
            metadata={
                **facts.metadata,
                **({MODE_KEY: str(int(mode))} if mode else {}),
            },
            attributes={
                **facts.attributes,
                **{ep: attributes for ep, weights in left.items() if weights},
            },
        )
        return _add_source(facts, used.values(), attributes.values())

    def read_facts(
        self, manifest: Manifest, nodes: Sequence[ContextNodeRecord]
    ) -> ModelFacts:
        """State the files of the source in which payloads left weights."""
        facts = super().read_facts(manifest, nodes)
        names = (
            str(node.attributes[FILE_ATTRIBUTE])
            for node in nodes
            if FILE_ATTRIBUTE in node.attributes
        )
        return _add_source(facts, manifest.source_weights.values(), names)


def _check_mode(choice: ProviderChoice, mode: WeightlessMode) -> None:
    """Raise unless an EP supports a weightless mode."""
    ep = choice.name
    modes = choice.cls.weightless_modes
    if modes is None:
        raise NotImplementedByProvider(
            f"{ep} does not know weightless mode, which {_OPTION} asks for.",
            ep=ep,
            hint=f"Leave {_OPTION} and ep.enable_weightless out, or compile without "
            "this EP.",
        )
    if mode not in modes:
        raise InvalidArgument(
            f"{ep} does not support weightless mode {int(mode)} ({mode.name}); it "
            f"supports: {format_weightless_modes(modes)}.",
            ep=ep,
            hint=f"Set {_OPTION} to a mode that it supports, or leave it out.",
        )


def _find_location(weight: TensorView, source: SourceModel) -> str:
    """Return the source's name for the file in which a weight lies; empty for an inline
    one.
    """
    extent = weight.extent
    return "" if extent is None else source.locations.get(extent.file, "")


def _make_reference(weight: TensorView, source: SourceModel) -> SourceReference:
    return SourceReference(
        weight.digest,
        weight.elem_type,
        weight.shape,
        _find_location(weight, source),
        0 if weight.extent is None else weight.extent.offset,
    )


def _check_same_source(
    earlier: Mapping[str, SourceReference], used: Mapping[str, SourceReference]
) -> None:
    for name, reference in used.items():
        if earlier.get(name, reference) != reference:
            raise InvalidArgument(
                "the payloads that are there and the new ones leave different weights "
                f"{name!r} in their source.",
                hint=(
                    "Compile the model that it was made from, or without weightless "
                    "mode."
                ),
            )


def _add_source(
    facts: ModelFacts, references: Collection[SourceReference], models: Iterable[str]
) -> ModelFacts:
    """Add the files that references need to the facts about a context model: of the
    models those that hold inline weights, then files of weights.
    """
    inline = any(not reference.location for reference in references)
    files = [
        *facts.files,
        *(models if inline else ()),
        *(reference.location for reference in references),
    ]
    return replace(facts, files=tuple(dict.fromkeys(filter(None, files))))


def read_weights(
    view: memoryview,
    names: Collection[str] | None,
    open_external: OpenExternal,
    *,
    file: MappedFile | None = None,
    where: str,
    budget: InputBudget,
) -> Weights:
    """Return initializers of a model's main graph by name.

    Args:
        view: its bytes, which the weights keep alive.
        names: of the initializers; None for all.
        open_external: opens a file that the model names.
        file: the mapped file that they are, if any.
        where: names the model in messages.
        budget: limits of what the model without its weights may decode to.

    Raises:
        InvalidProtobuf: it is not a model.
        InvalidGraph: it exceeds the budget, or the bytes of a tensor do not fit its
            shape, or that names no file.
    """
    try:
        pieces, extents = separate_weights(view, 1, len(view))
        structure = b"".join(pieces)
        check_budget(structure, len(view), budget, None)
        graph = ModelProto.FromString(structure).graph
    except (DecodeError, ValueError) as error:
        raise InvalidProtobuf(
            f"{where} is not an ONNX model: {error}.", hint="Fetch it again."
        ) from error
    content = ModelContent(view=view, structure=structure, extents=extents, file=file)
    return read_initializers(graph, {}, open_external, model=content, names=names)


PATH_OPTION = "ep.context_source_model_path"
_HINT = (
    f"Set the session option {PATH_OPTION!r} to the source model, give its bytes to "
    "SessionOptions.set_weightless_source_model_buffer, or put it beside the context "
    "model under its old name."
)


class SourceWeights:
    """Weights of the source model for one session; nothing is opened before the first
    is asked for.

    Args:
        records: the model's EPContext nodes, which may name the source's file.
        manifest: what the model says about the weights that were left out, if it does.
        folder: where the context model's files lie, None for a model from bytes without
            one.
        config: says where the source and its weights lie (else beside the context
            model and beside the source; a buffer goes before a path), and what it may
            decode to.
    """

    def __init__(
        self,
        records: Iterable[ContextNodeRecord],
        *,
        manifest: Manifest | None,
        folder: ModelFolder | None,
        config: SessionConfig,
    ) -> None:
        self._files = list(
            dict.fromkeys(
                name
                for r in records
                if isinstance(name := r.attributes.get(FILE_ATTRIBUTE), str) and name
            )
        )
        self._references = (manifest or NO_MANIFEST).source_weights
        self._folder = folder
        self._path = config.source_model_path
        self._buffer = config.source_model_buffer
        self._weights_folder = config.external_initializers_folder
        self._budget = config.input_budget

    def source_tensor(self, name: str) -> Weight:
        """Return a weight; the first call digests all that the manifest names, several
        at once.

        Raises:
            InvalidGraph: no source, not this one, or a weight that it lacks.
        """
        weight = self._checked_weights.get(name)
        if weight is None:
            raise InvalidGraph(
                f"{self._where} has no weight {name!r}, which the context model "
                "refers to.",
                hint=_HINT,
            )
        return weight

    @cached_property
    def _checked_weights(self) -> Weights:
        """The weights that payloads may refer to, as they were when the model was
        compiled.
        """
        opened: dict[str, MappedFile] = {}
        weights = {
            name: read_weight(
                _make_external_tensor(name, reference), opened, self._open_beside
            )
            for name, reference in self._references.items()
            if reference.location and self._buffer is None and self._path is None
        }
        # Without a manifest all weights of the source.
        names = self._references.keys() - weights.keys()
        if names or not self._references:
            weights = {**self._read(names if self._references else None), **weights}
        references = {
            name: r for name, r in self._references.items() if name in weights
        }
        with compute_digests_ahead(weights[name] for name in references):
            for name, reference in references.items():
                _check(weights[name], reference, self._where)
        return weights

    def _open_beside(self, location: str, name: str) -> OpenedFile:
        """Open a file of weights without the source model."""
        if self._weights_folder is not None:
            return WeightsFolder(None, self._weights_folder).open(location, name)
        if self._folder is not None:
            return self._folder.open(
                location,
                what="the source's weights file",
                node=name,
                hint="Put it beside the context model, or set the session option "
                f"{FOLDER_OPTION!r} to its folder or {PATH_OPTION!r} to the "
                "source model.",
            )
        raise InvalidGraph(
            f"the weight {name!r} lies in {location!r}, a file of the source model, "
            "and the context model was given as bytes.",
            hint=f"Set the session option {FOLDER_OPTION!r} to the folder, or "
            f"{PATH_OPTION!r} to the source model.",
        )

    def _read(self, names: Collection[str] | None) -> Weights:
        """Return weights of the source model by name; None for all."""
        path: Path | None = None
        mapped: MappedFile | None = None
        view = self._buffer
        if view is None:
            with (
                _open_named(self._path)
                if self._path is not None
                else self._open_beside_model() as file
            ):
                mapped = MappedFile(file.fileno(), file.path)
                view = mapped.view
                path = Path(file.path)
        return read_weights(
            view,
            names,
            WeightsFolder(path, self._weights_folder).open,
            file=mapped,
            where=self._where,
            budget=self._budget,
        )

    def _open_beside_model(self) -> OpenedFile:
        if len(self._files) != 1 or self._folder is None:
            why = "no EPContext node names its file"
            if len(self._files) > 1:
                why = (
                    "the EPContext nodes name several source models: "
                    f"{', '.join(map(repr, self._files))}"
                )
            elif self._files:
                why = (
                    "the context model was given as bytes, which have no folder in "
                    f"which {self._files[0]!r} could lie"
                )
            raise InvalidGraph(
                f"weights of the source model are needed, and {why}.", hint=_HINT
            )
        return self._folder.open(self._files[0], what="the source model", hint=_HINT)

    @property
    def _where(self) -> str:
        if self._buffer is not None:
            return "the buffer that was given as the source model"
        return repr(
            self._path or (self._files[0] if self._files else "the source model")
        )


def _make_external_tensor(name: str, reference: SourceReference) -> TensorProto:
    tensor = TensorProto(
        name=name,
        data_type=reference.elem_type,
        dims=reference.shape,
        data_location=TensorProto.EXTERNAL,
    )
    for key, value in (
        ("location", reference.location),
        ("offset", str(reference.offset)),
    ):
        tensor.external_data.add(key=key, value=value)
    return tensor


def _open_named(path: str) -> OpenedFile:
    """Open the source that the host named."""
    try:
        with open_model_file(path) as (file, _):
            return OpenedFile(os.dup(file.fileno()), path)
    except (InvalidArgument, NoSuchFile) as error:
        raise NoSuchFile(
            f"{PATH_OPTION}: {error.message}", path=path, hint=_HINT
        ) from error


def _check(weight: Weight, reference: SourceReference, where: str) -> None:
    """Raise InvalidGraph unless a weight is what it was when the model was compiled."""
    file = weight.mapping[0] if weight.mapping is not None else None
    facts = weight.digest, weight.elem_type, weight.shape
    if facts != reference[:3]:
        raise InvalidGraph(
            f"the weight {weight.name!r} of the source model is not the one that was "
            f"compiled: in {repr(Path(file.path).name) if file else where} it has "
            "another digest, type or shape.",
            path=file.path if file else None,
            hint=(
                "Restore the source model that the context model was compiled from, "
                "or compile again."
            ),
        )
    if file is not None:
        file.check_unchanged()
