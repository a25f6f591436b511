"""The binary format: one container with many graphs, read from a mapping.

Head, weights, graphs and tables, foot: so that it can be written front to back before
any digest is known. The foot's digest covers everything but the weights, and the tables
carry each weight's digest. Opening checks the former and reads no weight. `writing`
writes it; the package's README describes it. Every number out of a file is checked here
before anything uses it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from epctx_core.errors import InvalidGraph
from epctx_core.plugin import TensorType, ValueInfo
from epctx_sim_sdk.versions import RESTORE

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from epctx_core.plugin import TensorView

    FromSource: TypeAlias = Callable[[str], TensorView]

SMALL = 1024
"""Bytes up to which the core leaves a weight inside a partition's model."""
MAX_TABLES = 1 << 28
MAX_RANK = 32
MAX_LENGTH = 1 << 62
MAX_PARTS = 1 << 23
"""Entries of all lists and objects in the tables; each takes 20 to 100 bytes of memory,
up to 30 times its text.
"""
_MAX_ELEM_TYPE = 255
_GRAPH_KEYS = {"name", "structure", "weights", "inputs", "outputs"}
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BadTablesError(ValueError):
    """The tables are not as this module writes them; the text completes "the payload is
    damaged: ".
    """


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Location of one graph's ONNX bytes, counted from the first; graphs of equal
    structure share one.
    """

    offset: int
    length: int
    activation_bytes: int


@dataclass(frozen=True, kw_only=True)
class Weight:
    """Location of one weight's bytes, counted from the container's first byte."""

    offset: int
    length: int
    elem_type: int
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True, kw_only=True)
class SourceWeight:
    """A weight that stays in the source model, by its name there; the container holds
    none of its bytes.
    """

    source: str
    length: int
    elem_type: int
    shape: tuple[int, ...]
    digest: str


class GraphEntry(NamedTuple):
    """One graph.

    Attributes:
        name: by which nodes find it.
        structure: place in `Tables.structures`.
        weights: the structure's name of each weight, and its place in `Tables.weights`.
        inputs, outputs: the boundary, in order.
    """

    name: str
    structure: int
    weights: tuple[tuple[str, int], ...]
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]


@dataclass(frozen=True, kw_only=True)
class Tables:
    """All of a container but its bytes."""

    made_by: Mapping[str, str]
    structures: tuple[Structure, ...]
    weights: tuple[Weight | SourceWeight, ...]
    graphs: Mapping[str, GraphEntry]


class _Graphs(Mapping[str, GraphEntry]):
    """Graphs out of a file by name, each decoded and checked when it is first asked
    for.

    A payload may hold many thousands, of which a session, or who reads it back, needs a
    few. To ask for one may raise BadTablesError.

    Args:
        entries: what the file has under each name.
        structures, weights: how many there are to refer to.
    """

    def __init__(self, entries: dict[str, Any], structures: int, weights: int) -> None:
        self._entries = entries
        self._counts = structures, weights
        self._types: dict[str, TensorType] = {}

    def __getitem__(self, name: str) -> GraphEntry:
        entry = self._entries[name]
        if not isinstance(entry, GraphEntry):
            entry = self._entries[name] = _read_graph(entry, *self._counts, self._types)
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


Extents: TypeAlias = tuple[int, int]
"""The length of all structures, and how many bytes lie before them: head and
weights.
"""


def decode(content: bytes, extents: Extents) -> Tables:
    """Return the tables, every offset, length and reference checked; those of a graph
    when it is asked for.

    Args:
        content: at most `MAX_TABLES` bytes.
        extents: see `Extents`.

    Raises:
        BadTablesError: anything is not as `writing` writes it, or points outside.
    """
    try:
        tables = read_json(content)
    except (ValueError, RecursionError) as error:
        raise BadTablesError(f"its tables are not JSON ({error})") from error
    structures = tuple(
        _read_structure(item, extents[0]) for item in _read_list(tables, "structures")
    )
    weights = tuple(
        _read_weight_row(item, extents[1]) for item in _read_list(tables, "weights")
    )
    graphs: dict[str, Any] = {}
    for item in _read_list(tables, "graphs"):
        name = _read_text(_get(item, "name"), "a graph's name")
        if name in graphs:
            raise BadTablesError(f"two graphs are called {name!r}")
        graphs[name] = item
    made_by = _get(tables, "made_by")
    if not isinstance(made_by, dict) or not all(
        isinstance(value, str) for value in made_by.values()
    ):
        raise BadTablesError("what made the payload is not a table of texts")
    return Tables(
        made_by=made_by,
        structures=structures,
        weights=weights,
        graphs=_Graphs(graphs, len(structures), len(weights)),
    )


def read_json(content: bytes) -> object:
    """Return what JSON says.

    Raises:
        ValueError: no JSON, or more than `MAX_PARTS`.
        RecursionError: nested too deeply.
    """
    if (
        len(content) > MAX_PARTS
        and sum(map(content.count, (b",", b":", b"[", b"{"))) > MAX_PARTS
    ):
        raise ValueError(f"more than {MAX_PARTS:,} entries")
    value: object = json.loads(content)
    return value


def _get(table: object, key: str) -> object:
    if not isinstance(table, dict) or key not in table:
        raise BadTablesError(f"there is no {key!r} where one must be")
    return table[key]


def _read_list(table: object, key: str) -> list[Any]:
    return _as_list(_get(table, key), key)


def _as_list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadTablesError(f"{what!r} is not a list")
    return value


def _read_number(value: object, what: str, limit: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        shown = value if isinstance(value, int) else type(value).__name__
        raise BadTablesError(
            f"{what} is {shown}, which is not a number from 0 to {limit}"
        )
    return value


def _read_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise BadTablesError(f"{what} is not a text")
    return value


def _read_extent(item: object, total: int) -> tuple[int, int]:
    offset = _read_number(_get(item, "offset"), "an offset", MAX_LENGTH)
    length = _read_number(_get(item, "length"), "a length", MAX_LENGTH)
    if offset + length > total:
        raise BadTablesError(
            f"bytes {offset} to {offset + length} are named, but there are only {total}"
        )
    return offset, length


def _read_structure(item: object, total: int) -> Structure:
    offset, length = _read_extent(item, total)
    activation = _read_number(
        _get(item, "activation_bytes"), "an activation size", MAX_LENGTH
    )
    return Structure(offset=offset, length=length, activation_bytes=activation)


def _read_weight_row(item: object, total: int) -> Weight | SourceWeight:
    shape = _read_list(item, "shape")
    if len(shape) > MAX_RANK:
        raise BadTablesError(f"a weight has {len(shape)} dimensions")
    digest = _read_text(_get(item, "digest"), "a weight's digest")
    if not _DIGEST.fullmatch(digest):
        raise BadTablesError("a weight's digest is not one")
    elem_type = _read_number(_get(item, "elem_type"), "an element type", _MAX_ELEM_TYPE)
    dims = tuple(_read_number(dim, "a dimension", MAX_LENGTH) for dim in shape)
    if isinstance(item, dict) and "source" in item:
        name = _read_text(item["source"], "the name of a weight of the source")
        length = _read_number(_get(item, "length"), "a length", MAX_LENGTH)
        return SourceWeight(
            source=name, length=length, elem_type=elem_type, shape=dims, digest=digest
        )
    offset, length = _read_extent(item, total)
    return Weight(
        offset=offset, length=length, elem_type=elem_type, shape=dims, digest=digest
    )


def _read_graph(
    item: dict[str, Any], structures: int, weights: int, types: dict[str, TensorType]
) -> GraphEntry:
    if not item.keys() >= _GRAPH_KEYS:
        raise BadTablesError(f"a graph has not all of {', '.join(sorted(_GRAPH_KEYS))}")
    structure, pairs = _read_form(item, structures, weights)
    inputs = _as_list(item["inputs"], "inputs")
    outputs = _as_list(item["outputs"], "outputs")
    return GraphEntry(
        name=item["name"],
        structure=structure,
        weights=pairs,
        inputs=tuple([_decode_value(value, types) for value in inputs]),
        outputs=tuple([_decode_value(value, types) for value in outputs]),
    )


def _read_form(
    item: object, structures: int, weights: int
) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Return the number of a structure, and the weights by their names in it."""
    structure = _get(item, "structure")
    pairs = [_read_pair(pair, weights) for pair in _read_list(item, "weights")]
    if pairs and len({name for name, _ in pairs}) != len(pairs):
        raise BadTablesError("a graph names a weight twice")
    number = _read_number(structure, "a structure's number", structures - 1)
    return number, tuple(pairs)


def _read_pair(pair: object, weights: int) -> tuple[str, int]:
    name, number = _read_fields(pair, 2, "a weight's entry")
    return (
        _read_text(name, "a weight's name"),
        _read_number(number, "a weight's number", weights - 1),
    )


def _read_fields(value: object, count: int, what: str) -> list[Any]:
    fields = _as_list(value, what)
    if len(fields) != count:
        raise BadTablesError(f"{what} has {len(fields)} fields, not {count}")
    return fields


def _decode_value(item: object, types: dict[str, TensorType]) -> ValueInfo:
    """Return a value; equal types are made, and checked, once."""
    name, *kind = _read_fields(item, 3, "a value's type")
    # As text, because lists have no hash, and True and 1 are equal.
    try:
        key = repr(kind)
    except RecursionError as error:
        raise BadTablesError("a value's type is nested too deeply") from error
    tensor_type = types.get(key)
    if tensor_type is None:
        tensor_type = types[key] = _read_type(*kind)
    return ValueInfo(_read_text(name, "a value's name"), tensor_type)


def _read_type(elem_type: object, shape: object) -> TensorType:
    element_type = (
        None
        if elem_type is None
        else _read_number(elem_type, "an element type", _MAX_ELEM_TYPE)
    )
    if element_type is not None and element_type not in _list_element_types():
        raise BadTablesError(
            f"a value has the element type {element_type}, which ONNX does not have"
        )
    return TensorType(
        element_type,
        None
        if shape is None
        else tuple(map(_read_dimension, _as_list(shape, "a shape"))),
    )


@cache
def _list_element_types() -> frozenset[int]:
    from epctx_core.plugin.protos import TensorProto

    return frozenset(TensorProto.DataType.values())


def _read_dimension(value: object) -> int | str | None:
    if value is None or isinstance(value, str):
        return value
    return _read_number(value, "a dimension", MAX_LENGTH)


MAGIC = b"EPCTXSIM"
END = b"MISXTCPE"
FORMAT_VERSION = 2
PAGE = 4096
LINE = 64
_HEAD = struct.Struct("<8sII")
_FIELDS = struct.Struct("<QQQQ")
_DIGEST_SIZE = hashlib.sha256().digest_size
HEAD_SIZE = _HEAD.size
FOOT_SIZE = _FIELDS.size + _DIGEST_SIZE + len(END)


class _UnreadableError(Exception):
    """The text completes "the payload a.bin "."""


def head() -> bytes:
    """Return the first bytes of every container."""
    return _HEAD.pack(MAGIC, FORMAT_VERSION, HEAD_SIZE)


@dataclass(frozen=True, kw_only=True)
class Foot:
    """The last bytes of a container: where all else lies.

    Attributes:
        structures_start: where the graphs' structures begin, behind the weights; the
            tables follow them.
        structures, tables: lengths in bytes.
        total: the size of the container.
    """

    structures_start: int
    structures: int
    tables: int
    total: int

    def pack(self, body: bytes) -> bytes:
        """Return the foot's bytes for structures and tables."""
        fields = _FIELDS.pack(
            self.structures_start, self.structures, self.tables, self.total
        )
        return fields + _digest(body, fields) + END

    @classmethod
    def unpack(cls, foot: memoryview) -> Self:
        """Return what a foot says; nothing is checked."""
        start, structures, tables, total = _FIELDS.unpack_from(foot)
        return cls(
            structures_start=start, structures=structures, tables=tables, total=total
        )


def _digest(body: bytes | memoryview, fields: bytes | memoryview) -> bytes:
    sha = hashlib.sha256(head())
    sha.update(body)
    sha.update(fields)
    return sha.digest()


class Container:
    """An opened container.

    Its arrays are views over the payload and keep the mapping alive.

    Attributes:
        subject: what it is in messages, such as `the payload net_qnn.bin`.
        tables: the checked tables; see `graph` for the graphs in them.
    """

    def __init__(
        self,
        view: memoryview,
        tables: Tables,
        foot: Foot,
        subject: str,
        source: FromSource,
    ) -> None:
        self.subject = subject
        self.tables = tables
        self._source = source
        self._structures = view[foot.structures_start :][: foot.structures]
        self._weights = view[: foot.structures_start]

    def graph(self, name: str) -> GraphEntry:
        """Return what the tables say of a graph that it holds, checked when it is first
        asked for.

        Raises:
            InvalidGraph: the tables are not as they are written, or point outside.
        """
        try:
            return self.tables.graphs[name]
        except BadTablesError as error:
            raise InvalidGraph(
                f"{self.subject} is damaged: graph {name!r}: {error}.", hint=RESTORE
            ) from error

    def structure(self, entry: GraphEntry) -> bytes:
        """Return the serialised ONNX model of a graph."""
        place = self.tables.structures[entry.structure]
        return bytes(self._structures[place.offset : place.offset + place.length])

    def arrays(self, entry: GraphEntry) -> dict[str, np.ndarray]:
        """Return a graph's weights as read-only arrays over the payload or the source
        model, nothing copied.

        Raises:
            InvalidGraph: a weight's type and shape do not fit its length, or one of the
                source is missing or not the one that was compiled.
        """
        return {
            name: self._make_array(self.tables.weights[place], name)
            for name, place in entry.weights
        }

    def _make_array(self, weight: Weight | SourceWeight, name: str) -> np.ndarray:
        return (
            self._read_weight(weight, name)
            if isinstance(weight, Weight)
            else _check_weight(self._source, weight).array()
        )

    def _read_weight(self, weight: Weight, name: str) -> np.ndarray:
        dtype = _find_dtype(weight.elem_type)
        count = math.prod(weight.shape)
        fits = dtype is not None and count * dtype.itemsize == weight.length
        # Without elements no dimension is bounded by the length, and numpy multiplies
        # the others.
        if (
            dtype is None
            or not fits
            or (not count and math.prod(d or 1 for d in weight.shape) > MAX_TABLES)
        ):
            raise InvalidGraph(
                f"{self.subject} is damaged: weight {name!r} has {weight.length} "
                f"bytes, which do not fit element type {weight.elem_type} and shape "
                f"{list(weight.shape)}."
            )
        if not count:
            return np.zeros(weight.shape, dtype)
        array = np.frombuffer(self._weights, dtype, count, weight.offset).reshape(
            weight.shape
        )
        array.flags.writeable = False
        return array

    def damaged_weights(self) -> list[int]:
        """Read all weights that it holds and return the places (in `tables.weights`) of
        those with a wrong digest.
        """
        return [
            place
            for place, weight in enumerate(self.tables.weights)
            if isinstance(weight, Weight)
            and hashlib.sha256(
                self._weights[weight.offset : weight.offset + weight.length]
            ).hexdigest()
            != weight.digest
        ]


def _check_weight(source: FromSource, weight: SourceWeight) -> TensorView:
    view = source(weight.source)
    facts = (view.elem_type, tuple(view.shape), view.nbytes, view.digest)
    if facts != (weight.elem_type, weight.shape, weight.length, weight.digest):
        raise InvalidGraph(
            f"the weight {weight.source!r} of the source model is not the one that "
            "was compiled.",
            hint=(
                "Restore the source model that the context model was compiled from, "
                "or compile again."
            ),
        )
    return view


def _refuse_source(name: str) -> TensorView:
    raise InvalidGraph(
        f"the payload refers to the weight {name!r} of a source model, and there is "
        "none."
    )


def _find_dtype(elem_type: int) -> np.dtype[np.generic] | None:
    from epctx_core.plugin.protos import TensorProto, tensor_dtype_to_np_dtype

    if elem_type == TensorProto.STRING:
        return None
    try:
        return tensor_dtype_to_np_dtype(elem_type)
    except KeyError:
        return None


def open_container(  # noqa: PLR0913 - three are for messages alone
    view: memoryview,
    *,
    ep: str,
    node: str,
    name: str,
    source: FromSource = _refuse_source,
    kind: object = None,
    verified: bool = False,
) -> Container:
    """Open a payload. Reads tables and structures; no weight is read.

    Args:
        view: the whole payload.
        ep: the EP name, for messages.
        node: the EPContext node, for messages.
        name: the payload's name, for messages.
        source: gives weights of the source model, for a payload that holds not all of
            its own.
        kind: what the node says of the payload, if it does; see `foreign.KIND`.
        verified: whether the core has digested the payload, so that the digest in the
            foot need not be.

    Raises:
        InvalidGraph: empty, truncated, altered, of another format, or another vendor's.
    """
    subject = f"the payload {name}"
    view = (
        view.cast("B").toreadonly() if view.format != "B" or not view.readonly else view
    )
    try:
        _check_head(view, ep, kind)
        foot = _read_foot(view, verified=verified)
        tables = _read_tables(view, foot)
    except _UnreadableError as error:
        from epctx_sim_sdk.foreign import suggest_fix

        raise InvalidGraph(
            f"{ep} cannot load node {node!r}: {subject} {error}.",
            node=node,
            ep=ep,
            hint=suggest_fix(view, kind),
        ) from error
    return Container(view, tables, foot, subject, source)


def _read_tables(view: memoryview, foot: Foot) -> Tables:
    start = foot.structures_start + foot.structures
    content = bytes(view[start:][: foot.tables])
    try:
        return decode(content, (foot.structures, foot.structures_start))
    except BadTablesError as error:
        raise _UnreadableError(f"is damaged: {error}") from error


def _check_head(view: memoryview, ep: str, kind: object) -> None:
    """Check mark and format.

    The text of the error completes "the payload a.bin ...".
    """
    if not len(view):
        raise _UnreadableError("is empty")
    if bytes(view[: len(MAGIC)]) != MAGIC:
        _refuse_foreign(view, ep, kind)
    if len(view) < HEAD_SIZE + FOOT_SIZE:
        raise _UnreadableError(
            f"is truncated: it has {len(view)} bytes, and one without graphs has "
            f"{HEAD_SIZE + FOOT_SIZE}"
        )
    _, version, size = _HEAD.unpack_from(view)
    if (version, size) != (FORMAT_VERSION, HEAD_SIZE):
        raise _UnreadableError(
            f"has format {version} ({size} bytes of head); this simulated SDK reads "
            f"{FORMAT_VERSION}"
        )


def _read_foot(view: memoryview, *, verified: bool) -> Foot:
    """Check sizes and, unless it was done, the digest.

    The text of the error completes "the payload a.bin ...".
    """
    raw = view[-FOOT_SIZE:]
    if raw[-len(END) :] != END:
        raise _UnreadableError(
            "is truncated, longer than it should be or damaged: it does not end with "
            "the mark of an end"
        )
    foot = Foot.unpack(raw)
    if foot.total != len(view):
        kind = "truncated" if foot.total > len(view) else "longer than it should be"
        raise _UnreadableError(
            f"is {kind}: it has {len(view)} bytes, and its foot says {foot.total}"
        )
    body = foot.total - FOOT_SIZE - foot.structures_start
    if (
        foot.tables > MAX_TABLES
        or foot.structures_start < HEAD_SIZE
        or foot.structures + foot.tables != body
    ):
        raise _UnreadableError(
            "is damaged: the sizes in its foot contradict each other"
        )
    fields = raw[: _FIELDS.size]
    digest = raw[_FIELDS.size : -len(END)]
    if (
        not verified
        and _digest(view[foot.structures_start : -FOOT_SIZE], fields) != digest
    ):
        raise _UnreadableError(
            "is damaged: its graphs and tables do not have the digest that is written "
            "in it"
        )
    return foot


def _refuse_foreign(view: memoryview, ep: str, kind: object) -> None:
    from epctx_sim_sdk.foreign import recognise

    what = recognise(view, kind)
    if what is not None:
        raise _UnreadableError(
            f"is {what}; this {ep} is simulated and reads only what the simulated SDK "
            "wrote"
        )
    if MAGIC.startswith(bytes(view[: len(MAGIC)])):
        raise _UnreadableError("is truncated: not even the first 8 bytes are complete")
    raise _UnreadableError(
        f"is damaged or foreign: it begins with {bytes(view[:8]).hex(' ')}, which is "
        "neither the mark of this simulated SDK nor that of a vendor's format known "
        "here"
    )
