"""Placement of the initializers that stay: in the model, in one file beside it, or
where the host says.

A model that is too large for a protobuf is refused as early as possible. Bytes are not
copied on the way: the model holds a marker for them (`context.payload_writer`), a file
gets them streamed like a payload's weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_core.context.payload_writer import Embeddable, PayloadWriter, make_marker
from epctx_core.context.weights_folder import make_checksum_line, write_checksum
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.file_names import find_unwritable, is_utf8, normalise_path
from epctx_core.frozen import dataclass
from epctx_core.graph.model_io import MOST_BYTES
from epctx_core.graph.tensor_bytes import read_initializers
from epctx_core.graph.walks import walk_graphs
from epctx_core.graph.weights import (
    Weight,
    is_detached,
    make_detached_tensor,
    replace_data,
    set_external_location,
)
from epctx_core.options.choices import is_whole
from epctx_core.plugin.protos import ELEMENT_TYPES, ModelProto, TensorProto
from epctx_core.registry.guard import blame_host
from epctx_core.sessions import host

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.context.digests import PayloadEntry
    from epctx_core.graph.mapping import PathInput
    from epctx_core.graph.weights import Weights
    from epctx_core.sessions.assignment import Assignment

_LAST_OFFSET = (1 << 63) - 1
DEFAULT_THRESHOLD = 1024
"""Bytes from which `ModelCompiler` puts an initializer into the external file."""

_PAGE = 4096
_LINE = 64
"""Alignment: large weights start at pages, so that they can be mapped and written
directly, small ones at cache lines.
"""


@dataclass(frozen=True)
class OrtExternalInitializerInfo:
    """Location of an initializer's bytes outside of the model; as
    `onnxruntime.OrtExternalInitializerInfo`.

    Attributes:
        filepath: the file; relative to the context model's folder, or absolute inside
            that folder.
        file_offset: offset of the first byte.
        byte_size: number of bytes.
    """

    filepath: str
    file_offset: int
    byte_size: int


class InitializerValue:
    """An initializer as `get_initializer_location_func` sees it; methods as
    `onnxruntime.OrtValue`.
    """

    __slots__ = ("_weight",)

    def __init__(self, weight: Weight) -> None:
        self._weight = weight

    def numpy(self) -> np.ndarray:
        """Return a read-only array over the bytes, which are not copied."""
        return self._weight.array()

    def chunks(self) -> Iterator[memoryview]:
        """Yield the raw bytes in chunks of bounded size, to write them without having
        all in memory.
        """
        return self._weight.chunks()

    def shape(self) -> list[int]:
        """Return the dimensions."""
        return list(self._weight.shape)

    def element_type(self) -> int:
        """Return the element type as `onnx.TensorProto` numbers them."""
        return self._weight.elem_type

    def data_type(self) -> str:
        """Return the type as ONNX Runtime spells it, such as `tensor(float)`."""
        return f"tensor({ELEMENT_TYPES[self._weight.elem_type]})"

    def tensor_size_in_bytes(self) -> int:
        """Return the length of the raw bytes."""
        return self._weight.nbytes

    def device_name(self) -> str:
        """Return the device of the bytes: `cpu`."""
        return "cpu"

    def is_tensor(self) -> bool:
        """Return True."""
        return True

    def has_value(self) -> bool:
        """Return True."""
        return True


LocationFunc: TypeAlias = Callable[
    [str, InitializerValue, OrtExternalInitializerInfo | None],
    OrtExternalInitializerInfo | None,
]
"""`locate(name, value, present location or None)` returns where the host put an
initializer; None: in the model.
"""


@dataclass(frozen=True, kw_only=True)
class InitializerPlacement:
    """Placement of the initializers that stay, as the host asks for it.

    Attributes:
        file: file for them, relative to the context model; None for no file.
        threshold: bytes from which one goes into the file.
        locate: the host's function that locates each of them; not together with `file`.
    """

    file: str | None = None
    threshold: int = 0
    locate: LocationFunc | None = None

    def is_stored_inside(self, nbytes: int) -> bool:
        """Return whether an initializer of that size is certain to be stored in the
        model.
        """
        # A tensor without bytes is never stored in a file.
        return self.locate is None and (
            self.file is None or nbytes < max(self.threshold, 1)
        )


def make_placement(
    path: PathInput | None,
    threshold: int,
    locate: LocationFunc | None,
    option: str | None,
) -> InitializerPlacement:
    """Return the placement of initializers; the arguments of a compiler override the
    session option.

    Raises:
        InvalidArgument: two arguments contradict each other, one is wrong, or a name
            leaves the model's folder.
    """
    file = host.check_optional(host.check_path, "external_initializers_file_path", path)
    host.check_optional(host.check_function, "get_initializer_location_func", locate)
    if file is not None and locate is not None:
        raise InvalidArgument(
            "external_initializers_file_path and get_initializer_location_func were "
            "both given.",
            hint=(
                "Give one of them: the function says for each initializer where it is."
            ),
        )

    if not is_whole(threshold) or threshold < 0:
        raise InvalidArgument(
            "external_initializers_size_threshold must be a number of bytes from 0 "
            f"on, not {threshold!r:.80}."
        )

    if locate is not None:
        return InitializerPlacement(locate=locate)
    name = option if file is None else file

    # In the one spelling that file and model agree on.
    name = None if name is None else normalise_path(name)
    return InitializerPlacement(file=name, threshold=0 if file is None else threshold)


def _add_checksum(writer: PayloadWriter) -> PayloadEntry:
    """Append the checksum to a file of initializers; return the entry of all of it."""
    writer.write(make_checksum_line(writer.make_entry()))
    return writer.make_entry()


def place_initializers(
    model: ModelProto,
    weights: Weights,
    placement: InitializerPlacement,
    open_file: Callable[[str], Any],
    folder: Path | None,
) -> tuple[dict[bytes, Embeddable], PayloadEntry | None, tuple[str, ...]]:
    """Store each initializer of a spliced model where it goes, those of subgraphs too.

    Args:
        model: changed in place.
        weights: weights of the main graph by name.
        placement: the placement that the host asked for.
        open_file: opens the file for them; called only if one goes there.
        folder: folder of the context model, None without one.

    Returns:
        Marker in the model to the bytes that belong there; entry of the file for them,
        None without one; the files in which the host put some, as the model names them.

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
        graph_weights = read_initializers(graph, {}) if path else weights
        for tensor in graph.initializer:
            if tensor.name not in graph_weights:
                continue
            weight = graph_weights[tensor.name]
            location = None
            if placement.locate is not None:
                location = _ask(weight, placement.locate, folder)
            elif placement.file is not None and not placement.is_stored_inside(
                weight.nbytes
            ):
                if writer is None:
                    writer = PayloadWriter(
                        placement.file, open_file(placement.file), embedded=False
                    )
                key = (weight.digest, weight.nbytes)
                if key not in offsets:
                    writer.align(_PAGE if weight.nbytes >= _PAGE else _LINE)
                    offsets[key] = writer.write_tensor(weight)
                location = placement.file, offsets[key]
            if location is not None:
                named[location[0]] = None
                replace_data(tensor, make_detached_tensor(weight))
                set_external_location(tensor, *location)
            elif is_detached(tensor):
                marker = make_marker()
                replace_data(tensor, TensorProto(dims=tensor.dims, raw_data=marker))
                contents[marker] = weight

    entry = None if writer is None else _add_checksum(writer)
    write_checksum(model, entry)
    return contents, entry, tuple(named) if placement.locate is not None else ()


def _ask(
    weight: Weight, locate: LocationFunc, folder: Path | None
) -> tuple[str, int] | None:
    """Return file and offset of an initializer that the host wrote, None for one that
    it leaves in the model.
    """
    extent = weight.extent
    now = (
        OrtExternalInitializerInfo(extent.file, extent.offset, extent.length)
        if extent
        else None
    )
    with blame_host(f"get_initializer_location_func raised for {weight.name!r}"):
        info = locate(weight.name, InitializerValue(weight), now)
    if info is None:
        return None
    try:
        path = os.fsdecode(info.filepath)
        offset = index(info.file_offset)
        size = index(info.byte_size)
    except (AttributeError, TypeError):
        raise _location_error(
            weight.name,
            f"gave {info!r:.80}, which is not an OrtExternalInitializerInfo of a path "
            "and two numbers",
        ) from None

    if size != weight.nbytes or not 0 <= offset <= _LAST_OFFSET:
        raise _location_error(
            weight.name,
            f"gave byte_size {size:,} at offset {offset:,} for {weight.nbytes:,} bytes",
        )

    name = path
    if Path(path).is_absolute() and "\0" not in path and folder is not None:
        # The path as given first: a file in the folder may be a link into a cache.
        name = os.path.relpath(path, folder)
        if name.startswith(".."):
            name = os.path.relpath(os.path.realpath(path), os.path.realpath(folder))

    name = name.replace(os.sep, "/")
    if find_unwritable(name) or not is_utf8(name):
        raise _location_error(
            weight.name,
            f"gave {path!r:.200}, which is not a file in the context model's folder",
        )

    return normalise_path(name), offset


def _location_error(tensor: str, problem: str) -> InvalidArgument:
    return InvalidArgument(
        f"get_initializer_location_func {problem}, for the initializer {tensor!r}.",
        hint=(
            "Give None to keep it in the model, or where its bytes lie: a file in the "
            "folder of the context model, the offset, and the number of bytes."
        ),
    )


def check_weights_fit(
    assignment: Assignment,
    placement: InitializerPlacement,
    leave: Callable[[Weight], str | None],
    *,
    embedded: bool,
) -> None:
    """Raise before anything is compiled if the weights alone exceed what a context
    model can hold.

    Args:
        assignment: the EP of each node.
        placement: placement of the initializers that stay.
        leave: returns the name of a weight that payloads leave in the source, None for
            any other.
        embedded: whether payloads with the weights that EPs took are stored in the
            model.

    Raises:
        Fail: they do.
    """
    embedded_weights = (
        weight
        for partition in (assignment.partitions if embedded else ())
        for weight in partition.weights.values()
        if leave(weight) is None
    )

    # Only weights of the main graph lie outside of the protobuf.
    graph = assignment.main.graph
    read = (name for node in assignment.main.left_over() for name in graph.inputs[node])
    left = (graph.weights[name] for name in read if name in graph.weights)
    stored = [
        *embedded_weights,
        *(weight for weight in left if placement.is_stored_inside(weight.nbytes)),
    ]
    once = {id(weight): weight for weight in stored}.values()
    if sum(weight.nbytes for weight in once) <= MOST_BYTES:
        return
    # Equal weights are stored once in a payload. Digests cost reading all bytes, so
    # only where the first ones do not tell enough weights apart.
    for identify in (_read_beginning, lambda weight: weight.digest):
        sizes = {(weight.nbytes, identify(weight)): weight.nbytes for weight in once}
        check_size(sum(sizes.values()))


def _read_beginning(weight: Weight) -> bytes:
    return bytes(next(weight.chunks(), b"")[:64])


def check_size(size: int) -> None:
    """Raise if a context model of that many bytes, or of more, is more than a protobuf
    can hold.

    Raises:
        Fail: it is.
    """
    if size > MOST_BYTES:
        raise Fail(
            f"the context model would have at least {size:,} bytes; a protobuf holds "
            f"at most {MOST_BYTES:,}.",
            hint=(
                "Set ep.context_embed_mode=0 and "
                "ep.context_model_external_initializers_file_name, so that payloads "
                "and initializers go into files of their own."
            ),
        )
