"""The binary format: one container with many graphs, written in one pass and read from a mapping.

The header's digest covers everything before the weights, and the tables carry each weight's digest.
Opening checks the former and reads no weight. The format is described in the package's README.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epctx_core.errors import EPFail, InvalidGraph
from epctx_sim_sdk.foreign import recognise
from epctx_sim_sdk.tables import (
    MAX_TABLES,
    BadTablesError,
    GraphEntry,
    Structure,
    Tables,
    Weight,
    decode,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epctx_core.plugin import Payload, TensorView
    from epctx_sim_sdk.compiler import SimGraph

MAGIC = b"EPCTXSIM"
FORMAT_VERSION = 1
PAGE = 4096
_LINE = 64
_PAGE_ALIGNED_FROM = 1 << 18
_FIELDS = struct.Struct("<8sIIQQQQ")
HEADER_SIZE = _FIELDS.size + hashlib.sha256().digest_size


class _UnreadableError(Exception):
    """The text completes "the payload a.bin "."""


@dataclass(frozen=True, kw_only=True)
class _Header:
    tables: int
    structures: int
    weights_start: int
    total: int

    def pack(self) -> bytes:
        return _FIELDS.pack(
            MAGIC, FORMAT_VERSION, HEADER_SIZE, self.tables, self.structures, self.weights_start, self.total
        )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """Everything decided before the first byte is written."""

    tables: Tables
    head: bytes
    weights_start: int
    stored: Sequence[tuple[int, TensorView]]
    total: int


def write_container(
    payload: Payload,
    graphs: Sequence[SimGraph],
    made_by: Mapping[str, str],
    *,
    before_weight: Callable[[int, int], None] = lambda _done, _total: None,
) -> Tables:
    """Write graphs into a fresh payload, front to back.

    Weights of equal content are stored once, whatever their names and graphs. Same graphs and facts
    give the same bytes.

    Args:
        payload: nothing may have been written to it.
        graphs: at least one; their names differ.
        made_by: facts for version rules, such as `sdk` and `driver`.
        before_weight: called with (weights written, weights in all) before each weight.

    Returns:
        What was written as tables.

    Raises:
        EPFail: two graphs have one name, or the payload put something elsewhere than planned.
    """
    plan = _plan(graphs, made_by)
    _expect(payload.size, 0, "the start of the payload")
    _expect(payload.write(plan.head), 0, "the header")
    _expect(payload.align(PAGE), plan.weights_start, "the first weight")
    for done, (offset, view) in enumerate(plan.stored):
        before_weight(done, len(plan.stored))
        payload.align(_alignment(view.nbytes))
        _expect(payload.write_tensor(view), offset, f"weight {view.name!r}")
    _expect(payload.size, plan.total, "the end of the payload")
    return plan.tables


def _expect(found: int, planned: int, what: str) -> None:
    if found != planned:
        raise EPFail(f"the container's layout does not hold: {what} lies at {found}, planned was {planned}.")


def _alignment(nbytes: int) -> int:
    return PAGE if nbytes >= _PAGE_ALIGNED_FROM else _LINE


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _plan(graphs: Sequence[SimGraph], made_by: Mapping[str, str]) -> _Plan:
    layout = _Layout()
    entries: dict[str, GraphEntry] = {}
    for graph in graphs:
        if graph.name in entries:
            raise EPFail(f"two graphs of one container are called {graph.name!r}.", node=graph.name)
        entries[graph.name] = GraphEntry(
            name=graph.name,
            structure=layout.structure(graph),
            weights=tuple((name, layout.weight(view)) for name, view in graph.weights.items()),
            inputs=graph.inputs,
            outputs=graph.outputs,
        )
    structures, weights = tuple(layout.structures), tuple(layout.weights)
    tables = Tables(made_by=made_by, structures=structures, weights=weights, graphs=entries)
    return _place(tables, layout)


def _place(tables: Tables, layout: _Layout) -> _Plan:
    encoded = encode(tables)
    if len(encoded) > MAX_TABLES:
        raise EPFail(f"the container's tables have {len(encoded)} bytes; it holds at most {MAX_TABLES}.")
    body = b"".join((encoded, *layout.blobs))
    start = _aligned(HEADER_SIZE + len(body), PAGE)
    total = start + layout.weight_bytes
    header = _Header(
        tables=len(encoded), structures=layout.structure_bytes, weights_start=start, total=total
    ).pack()
    padding = bytes(start - HEADER_SIZE - len(body))
    digest = hashlib.sha256(b"".join((header, body, padding))).digest()
    stored = [(start + offset, view) for offset, view in layout.stored]
    return _Plan(tables=tables, head=header + digest + body, weights_start=start, stored=stored, total=total)


class _Layout:
    """Gives structures and weights their places; equal ones get the same."""

    def __init__(self) -> None:
        self.structures: list[Structure] = []
        self.weights: list[Weight] = []
        self.blobs: list[bytes] = []
        self.stored: list[tuple[int, TensorView]] = []
        self.structure_bytes = 0
        self.weight_bytes = 0
        self._structure_of: dict[bytes, int] = {}
        self._weight_of: dict[Weight, int] = {}
        self._offset_of: dict[tuple[str, int], int] = {}

    def structure(self, graph: SimGraph) -> int:
        content = graph.structure
        if content not in self._structure_of:
            self._structure_of[content] = len(self.structures)
            size = graph.activation_bytes
            place = Structure(offset=self.structure_bytes, length=len(content), activation_bytes=size)
            self.structures.append(place)
            self.blobs.append(content)
            self.structure_bytes += len(content)
        return self._structure_of[content]

    def weight(self, view: TensorView) -> int:
        content = (view.digest, view.nbytes)
        if content not in self._offset_of:
            offset = _aligned(self.weight_bytes, _alignment(view.nbytes))
            self._offset_of[content] = offset
            self.stored.append((offset, view))
            self.weight_bytes = offset + view.nbytes
        weight = Weight(
            offset=self._offset_of[content],
            length=view.nbytes,
            elem_type=view.elem_type,
            shape=tuple(view.shape),
            digest=view.digest,
        )
        if weight not in self._weight_of:
            self._weight_of[weight] = len(self.weights)
            self.weights.append(weight)
        return self._weight_of[weight]


class Container:
    """An opened container. Its arrays are views over the payload and keep the mapping alive.

    Attributes:
        subject: what it is in messages, such as `the payload net_qnn.bin`.
        tables: the checked tables.
    """

    def __init__(self, view: memoryview, tables: Tables, header: _Header, subject: str) -> None:
        self.subject = subject
        self.tables = tables
        structures = HEADER_SIZE + header.tables
        self._structures = view[structures : structures + header.structures]
        self._weights = view[header.weights_start : header.total]

    def structure(self, entry: GraphEntry) -> bytes:
        """Return the serialised ONNX model of a graph."""
        place = self.tables.structures[entry.structure]
        return bytes(self._structures[place.offset : place.offset + place.length])

    def arrays(self, entry: GraphEntry) -> dict[str, np.ndarray]:
        """Return a graph's weights as read-only arrays over the payload, nothing copied.

        Raises:
            InvalidGraph: a weight's type and shape do not fit its length.
        """
        return {name: self._array(self.tables.weights[place], name) for name, place in entry.weights}

    def _array(self, weight: Weight, name: str) -> np.ndarray:
        dtype = _dtype(weight.elem_type)
        count = math.prod(weight.shape)
        # Without elements no dimension is bounded by the length, and numpy refuses very long ones.
        fits = dtype is not None and count * dtype.itemsize == weight.length
        if dtype is None or not fits or (not count and max(weight.shape) > MAX_TABLES):
            raise InvalidGraph(
                f"{self.subject} is damaged: weight {name!r} has {weight.length} bytes, which do not fit"
                f" element type {weight.elem_type} and shape {list(weight.shape)}."
            )
        if not count:
            return np.zeros(weight.shape, dtype)
        array = np.frombuffer(self._weights, dtype, count, weight.offset).reshape(weight.shape)
        array.flags.writeable = False
        return array

    def damaged_weights(self) -> list[int]:
        """Read all weights and return the places (in `tables.weights`) of those with a wrong digest."""
        return [
            place
            for place, weight in enumerate(self.tables.weights)
            if hashlib.sha256(self._weights[weight.offset : weight.offset + weight.length]).hexdigest()
            != weight.digest
        ]


def _dtype(elem_type: int) -> np.dtype[np.generic] | None:
    import onnx

    if elem_type == onnx.TensorProto.STRING:
        return None
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except KeyError:
        return None


def open_container(view: memoryview, *, ep: str, node: str, name: str) -> Container:
    """Open a payload. Reads header, tables and structures; no weight is read.

    Args:
        view: the whole payload.
        ep: the EP type, for messages.
        node: the EPContext node, for messages.
        name: the payload's name, for messages.

    Raises:
        InvalidGraph: empty, truncated, altered, of another format, or another vendor's.
    """
    subject = f"the payload {name}"
    view = view.cast("B").toreadonly() if view.format != "B" or not view.readonly else view
    try:
        header = _read_header(view, ep)
        tables = _read_tables(view, header)
    except _UnreadableError as error:
        raise InvalidGraph(
            f"{ep} cannot load node {node!r}: {subject} {error}.",
            node=node,
            ep=ep,
            hint="Compile the source model again, or restore the payload from where it came.",
        ) from error
    return Container(view, tables, header, subject)


def _read_tables(view: memoryview, header: _Header) -> Tables:
    content = bytes(view[HEADER_SIZE : HEADER_SIZE + header.tables])
    try:
        return decode(content, (header.structures, header.total - header.weights_start))
    except BadTablesError as error:
        raise _UnreadableError(f"is damaged: {error}") from error


def _read_header(view: memoryview, ep: str) -> _Header:
    """Check magic, sizes and digest. The text of the error completes "the payload a.bin ..."."""
    if not len(view):
        raise _UnreadableError("is empty")
    if bytes(view[: len(MAGIC)]) != MAGIC:
        _refuse_foreign(view, ep)
    if len(view) < HEADER_SIZE:
        raise _UnreadableError(
            f"is truncated: it has {len(view)} bytes, and its header alone needs {HEADER_SIZE}"
        )
    _, version, size, *places = _FIELDS.unpack_from(view)
    if (version, size) != (FORMAT_VERSION, HEADER_SIZE):
        raise _UnreadableError(
            f"has format {version} ({size} bytes of header); this simulated SDK reads {FORMAT_VERSION}"
        )
    header = _Header(tables=places[0], structures=places[1], weights_start=places[2], total=places[3])
    if header.total != len(view):
        kind = "truncated" if header.total > len(view) else "longer than it should be"
        raise _UnreadableError(f"is {kind}: it has {len(view)} bytes, and its header says {header.total}")
    start = _aligned(HEADER_SIZE + header.tables + header.structures, PAGE)
    if header.tables > MAX_TABLES or header.weights_start != start or start > header.total:
        raise _UnreadableError("is damaged: the sizes in its header contradict each other")
    digest = hashlib.sha256(view[: _FIELDS.size])
    digest.update(view[HEADER_SIZE : header.weights_start])
    if digest.digest() != bytes(view[_FIELDS.size : HEADER_SIZE]):
        raise _UnreadableError(
            "is damaged: its header and tables do not have the digest that is written in it"
        )
    return header


def _refuse_foreign(view: memoryview, ep: str) -> None:
    what = recognise(view)
    if what is not None:
        raise _UnreadableError(
            f"is {what}; this {ep} is simulated and reads only what the simulated SDK wrote"
        )
    if MAGIC.startswith(bytes(view[: len(MAGIC)])):
        raise _UnreadableError("is truncated: not even the first 8 bytes are complete")
    raise _UnreadableError(
        f"is damaged or foreign: it begins with {bytes(view[:8]).hex(' ')}, which is neither the mark of this"
        " simulated SDK nor that of a vendor's format known here"
    )
