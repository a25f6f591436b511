"""Where the initializers that stay go: into the model, into one file beside it, or wherever the host says.

What a protobuf cannot hold is said as early as it can be known. Bytes are not copied on the way: the model holds a
marker for them (`context.embedding`), a file gets them streamed like a payload's weights. Knows no folder and opens no
file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from onnx import ModelProto, TensorProto

from epctx_core.compiling.destination import is_utf8
from epctx_core.context.node_writer import Embeddable, new_marker
from epctx_core.context.payload_writer import PayloadWriter
from epctx_core.context.unfinished import canonical
from epctx_core.context.weights_folder import close_sealed, write_seal
from epctx_core.errors import EpctxError, Fail, InvalidArgument
from epctx_core.graph.index import walk_graphs
from epctx_core.graph.tensor_bytes import read_initializers
from epctx_core.graph.weights import (
    Weight,
    is_detached,
    make_detached_tensor,
    replace_data,
    set_external_location,
)
from epctx_core.options import WeightlessMode
from epctx_core.registry.guard import describe

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.context.manifest import PayloadEntry
    from epctx_core.sessions.assignment import Assignment

_LAST_OFFSET = (1 << 63) - 1
DEFAULT_THRESHOLD = 1024
"""Bytes from which `ModelCompiler` puts an initializer into the external file."""

PROTOBUF_LIMIT = (2 << 30) - 1
"""Bytes above which a protobuf cannot be written."""

_PAGE = 4096
_LINE = 64
"""Large weights lie on pages, so that they can be mapped and written directly; small ones on cache lines."""


@dataclass(frozen=True)
class OrtExternalInitializerInfo:
    """Where an initializer's bytes lie outside the model; as `onnxruntime.OrtExternalInitializerInfo`.

    Attributes:
        filepath: the file; relative to the context model's folder, or absolute inside that folder.
        file_offset: of the first byte.
        byte_size: how many bytes.
    """

    filepath: str
    file_offset: int
    byte_size: int


class InitializerValue:
    """An initializer as `get_initializer_location_func` sees it; methods as `onnxruntime.OrtValue`."""

    __slots__ = ("_weight",)

    def __init__(self, weight: Weight) -> None:
        self._weight = weight

    def numpy(self) -> np.ndarray:
        """Return a read-only array over the bytes, which are not copied."""
        return self._weight.array()

    def chunks(self) -> Iterator[memoryview]:
        """Yield the raw bytes in pieces of bounded size, to write them without having all in memory."""
        return self._weight.chunks()

    def shape(self) -> list[int]:
        """Return the dimensions."""
        return list(self._weight.shape)

    def element_type(self) -> int:
        """Return the element type as `onnx.TensorProto` numbers them."""
        return self._weight.elem_type

    def data_type(self) -> str:
        """Return the type in ONNX Runtime's words, such as `tensor(float)`."""
        return f"tensor({TensorProto.DataType.Name(self._weight.elem_type).lower()})"

    def tensor_size_in_bytes(self) -> int:
        """Return the length of the raw bytes."""
        return self._weight.nbytes

    def device_name(self) -> str:
        """Return where the bytes are: `cpu`."""
        return "cpu"

    def is_tensor(self) -> bool:
        """Return True."""
        return True

    def has_value(self) -> bool:
        """Return True."""
        return True


LocationFunc: TypeAlias = Callable[
    [str, InitializerValue, OrtExternalInitializerInfo | None], OrtExternalInitializerInfo | None
]
"""`locate(name, value, where it lies now or None)` says where a host put an initializer; None: into the model."""


@dataclass(frozen=True, kw_only=True)
class InitializerPlacement:
    """What a host wants for the initializers that stay.

    Attributes:
        file: the file for them, relative to the context model; None for none.
        threshold: bytes from which one goes into the file.
        locate: says for each where the host put it; not together with `file`.
    """

    file: str | None = None
    threshold: int = 0
    locate: LocationFunc | None = None

    def stays_inside(self, nbytes: int) -> bool:
        """Whether an initializer of that size is certain to be stored in the model."""
        # What has no bytes needs no place in a file.
        return self.locate is None and (self.file is None or nbytes < max(self.threshold, 1))


def placement_of(
    file: str | None, threshold: int, locate: LocationFunc | None, option: str | None
) -> InitializerPlacement:
    """Return where initializers go; the arguments of a compiler win over the session option.

    Raises:
        InvalidArgument: two contradict each other, one is wrong, or a name leaves the model's folder.
    """
    if file is not None and locate is not None:
        raise InvalidArgument(
            "external_initializers_file_path and get_initializer_location_func were both given.",
            hint="Give one of them: the function says for each initializer where it is.",
        )
    if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 0:
        raise InvalidArgument(
            f"external_initializers_size_threshold is a number of bytes from 0 on, not {threshold!r:.80}."
        )
    if locate is not None:
        return InitializerPlacement(locate=locate)
    name = option if file is None else file
    # In the one spelling that file and model agree on.
    name = None if name is None else canonical(name)
    return InitializerPlacement(file=name, threshold=0 if file is None else threshold)


def place_initializers(
    model: ModelProto,
    weights: Mapping[str, Weight],
    placement: InitializerPlacement,
    open_file: Callable[[str], Any],
    folder: Path | None,
) -> tuple[dict[bytes, Embeddable], PayloadEntry | None, tuple[str, ...]]:
    """Bring each initializer of a spliced model to its place, those of subgraphs too.

    Args:
        model: changed in place.
        weights: those of the main graph by name.
        placement: where they go.
        open_file: opens the file for them; called only if one goes there.
        folder: the context model's, None if it has none.

    Returns:
        Marker in the model to the bytes that belong there; what was written into the file of their own, None for
        nothing; the files in which the host put some, as the model names them.

    Raises:
        Fail: the host's function raised.
        InvalidArgument: it gave a location that the model could not name.
    """
    contents: dict[bytes, Embeddable] = {}
    named: dict[str, None] = {}
    offsets: dict[tuple[str, int], int] = {}
    writer: PayloadWriter | None = None
    everywhere = placement.file is not None or placement.locate is not None
    for path, graph in walk_graphs(model.graph) if everywhere else [((), model.graph)]:
        known = read_initializers(graph) if path else weights
        for tensor in graph.initializer:
            if tensor.name not in known:
                continue
            weight, location = known[tensor.name], None
            if placement.locate is not None:
                location = _ask(weight, placement.locate, folder)
                named.update({} if location is None else {location[0]: None})
            elif placement.file is not None and not placement.stays_inside(weight.nbytes):
                if writer is None:
                    writer = PayloadWriter(placement.file, open_file(placement.file), embedded=False)
                key = (weight.digest, weight.nbytes)
                if key not in offsets:
                    writer.align(_PAGE if weight.nbytes >= _PAGE else _LINE)
                    offsets[key] = writer.write_tensor(weight)
                location = placement.file, offsets[key]
            if location is not None:
                replace_data(tensor, make_detached_tensor(weight))
                set_external_location(tensor, *location)
            elif is_detached(tensor):
                marker = new_marker()
                replace_data(tensor, TensorProto(raw_data=marker))
                contents[marker] = weight
    entry = None if writer is None else close_sealed(writer)
    write_seal(model, entry)
    return contents, entry, tuple(named)


def _ask(weight: Weight, locate: LocationFunc, folder: Path | None) -> tuple[str, int] | None:
    """Return file and offset of an initializer that the host wrote, None for one that it leaves in the model."""
    extent = weight.extent
    now = OrtExternalInitializerInfo(extent.file, extent.offset, extent.length) if extent else None
    try:
        info = locate(weight.name, InitializerValue(weight), now)
    except EpctxError:
        raise
    except Exception as error:
        raise Fail(
            f"get_initializer_location_func raised for {weight.name!r}: {describe(error)}.",
            hint="The callback's own exception is the cause of this error.",
        ) from error
    if info is None:
        return None
    try:
        path, offset, size = os.fsdecode(info.filepath), index(info.file_offset), index(info.byte_size)
    except (AttributeError, TypeError):
        problem = f"gave {info!r:.80}, no OrtExternalInitializerInfo of a path and two numbers"
        raise _bad_location(weight.name, problem) from None
    if size != weight.nbytes or not 0 <= offset <= _LAST_OFFSET:
        problem = f"gave byte_size {size:,} at offset {offset:,} for {weight.nbytes:,} bytes"
        raise _bad_location(weight.name, problem)
    name = path
    if Path(path).is_absolute() and "\0" not in path and folder is not None:
        # As given first: what lies here may be a link into a cache.
        name = os.path.relpath(path, folder)
        if name.startswith(".."):
            name = os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
    try:
        name = canonical(name.replace(os.sep, "/"))
    except InvalidArgument:
        name = ""
    if not name or not is_utf8(name):
        problem = f"gave {path!r:.200}, which is no file in the context model's folder"
        raise _bad_location(weight.name, problem)
    return name, offset


def _bad_location(tensor: str, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"get_initializer_location_func {what}, for the initializer {tensor!r}.",
        hint="Give None to keep it in the model, or where its bytes lie: a file in the folder of the context model, "
        "the offset, and the number of bytes.",
    )


def check_weights_fit(
    assignment: Assignment, placement: InitializerPlacement, weightless: WeightlessMode, *, embedded: bool
) -> None:
    """Raise before anything is compiled if the weights alone exceed what a context model can hold.

    Args:
        assignment: who takes what.
        placement: where the initializers that stay go.
        weightless: which weights payloads leave in the source.
        embedded: whether payloads with the weights that EPs took are stored in the model.

    Raises:
        Fail: they do.
    """
    taken: list[Weight] = []
    if embedded and weightless is not WeightlessMode.ALL:
        every = (weight for partition in assignment.partitions for weight in partition.weights.values())
        taken = [w for w in every if weightless is WeightlessMode.NONE or w.extent is None]
    # Those of the main graph alone lie outside the protobuf.
    graph = assignment.main.graph
    read = (name for node in assignment.main.left_over() for name in graph.inputs[node])
    left = (graph.weights[name] for name in read if name in graph.weights)
    stored = [*taken, *(weight for weight in left if placement.stays_inside(weight.nbytes))]
    once = {id(weight): weight for weight in stored}.values()
    if sum(weight.nbytes for weight in once) > PROTOBUF_LIMIT:
        # Equal weights are stored once in a payload. To know it costs reading them, so only here.
        by_content = {weight.digest: weight.nbytes for weight in once}
        check_size(sum(by_content.values()), embedded=embedded and bool(taken), at_least=True)


def check_size(size: int, *, embedded: bool, at_least: bool = False) -> None:
    """Raise if a context model of that many bytes is more than a protobuf can hold.

    Raises:
        Fail: it is.
    """
    if size > PROTOBUF_LIMIT:
        raise Fail(
            f"the context model would have {'at least ' if at_least else ''}{size:,} bytes; a protobuf holds at most "
            f"{PROTOBUF_LIMIT:,}.",
            hint="Set ep.context_embed_mode=0, so that payloads go into a file of their own."
            if embedded
            else "Set ep.context_model_external_initializers_file_name (external_initializers_file_path of "
            "ModelCompiler), so that they go into a file of their own; or have an EP take more of the model.",
        )
