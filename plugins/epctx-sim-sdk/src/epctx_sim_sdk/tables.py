"""The tables of a container: which graphs it holds, where their bytes lie, and what made them.

Encodes and decodes; every number out of a file is checked here before anything uses it. Knows no files
and no ONNX beyond the numbers of element types.
"""

from __future__ import annotations

import json
import marshal
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from epctx_core.plugin import TensorType, ValueInfo

MAX_TABLES = 1 << 28
MAX_RANK = 32
MAX_LENGTH = 1 << 62
MAX_PARTS = 1 << 23
"""Entries of all lists and objects in the tables; each takes 20 to 100 bytes of memory, up to 30 times its text."""
_MAX_ELEM_TYPE = 255
_GRAPH_KEYS = {"name", "structure", "weights", "inputs", "outputs"}
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BadTablesError(ValueError):
    """The tables are not as this module writes them; the text completes "the payload is damaged: "."""


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Where one graph's ONNX bytes lie, counted from the first; graphs of equal structure share one."""

    offset: int
    length: int
    activation_bytes: int


@dataclass(frozen=True, kw_only=True)
class Weight:
    """Where one weight's bytes lie, counted from the container's first byte."""

    offset: int
    length: int
    elem_type: int
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True, kw_only=True)
class SourceWeight:
    """A weight that stays in the source model, by its name there; the container holds none of its bytes."""

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
    """Graphs out of a file by name, each decoded and checked when it is first asked for.

    A payload may hold many thousands, of which a session, or who reads it back, needs a few. To ask for one may raise
    BadTablesError.

    Args:
        found: what the file has under each name.
        structures, weights: how many there are to refer to.
    """

    def __init__(self, found: dict[str, Any], structures: int, weights: int) -> None:
        self._found = found
        self._counts = structures, weights
        self._types: dict[bytes, TensorType] = {}

    def __getitem__(self, name: str) -> GraphEntry:
        found = self._found[name]
        if not isinstance(found, GraphEntry):
            found = self._found[name] = _graph(found, *self._counts, self._types)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


Extents: TypeAlias = tuple[int, int]
"""The length of all structures, and how many bytes lie before them: head and weights."""


def encode(tables: Tables) -> bytes:
    """Return the tables as JSON: sorted keys, no spaces, same tables same bytes."""
    graphs = [
        {
            "name": graph.name,
            "structure": graph.structure,
            "weights": graph.weights,
            "inputs": [_encode_value(value) for value in graph.inputs],
            "outputs": [_encode_value(value) for value in graph.outputs],
        }
        for graph in tables.graphs.values()
    ]
    content = {
        "made_by": dict(tables.made_by),
        "structures": [asdict(structure) for structure in tables.structures],
        "weights": [asdict(weight) for weight in tables.weights],
        "graphs": graphs,
    }
    # Nothing here holds itself; to look for that takes a third of the time.
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, check_circular=False)
    return text.encode()


def decode(content: bytes, extents: Extents) -> Tables:
    """Return the tables, every offset, length and reference checked; those of a graph when it is asked for.

    Args:
        content: at most `MAX_TABLES` bytes.
        extents: see `Extents`.

    Raises:
        BadTablesError: anything is not as `encode` writes it, or points outside.
    """
    try:
        found = read_json(content)
    except (ValueError, RecursionError) as error:
        raise BadTablesError(f"its tables are not JSON ({error})") from error
    structures = tuple(_structure(item, extents[0]) for item in _list(found, "structures"))
    weights = tuple(_weight(item, extents[1]) for item in _list(found, "weights"))
    graphs: dict[str, Any] = {}
    for item in _list(found, "graphs"):
        name = _text(_get(item, "name"), "a graph's name")
        if name in graphs:
            raise BadTablesError(f"two graphs are called {name!r}")
        graphs[name] = item
    made_by = _get(found, "made_by")
    if not isinstance(made_by, dict) or not all(isinstance(value, str) for value in made_by.values()):
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
    if len(content) > MAX_PARTS and sum(map(content.count, (b",", b":", b"[", b"{"))) > MAX_PARTS:
        raise ValueError(f"more than {MAX_PARTS:,} entries")
    found: object = json.loads(content)
    return found


def _get(table: object, key: str) -> object:
    if not isinstance(table, dict) or key not in table:
        raise BadTablesError(f"there is no {key!r} where one must be")
    return table[key]


def _list(table: object, key: str) -> list[Any]:
    return _as_list(_get(table, key), key)


def _as_list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadTablesError(f"{what!r} is not a list")
    return value


def _number(value: object, what: str, limit: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        shown = value if isinstance(value, int) else type(value).__name__
        raise BadTablesError(f"{what} is {shown}, which is not a number from 0 to {limit}")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise BadTablesError(f"{what} is not a text")
    return value


def _extent(item: object, total: int) -> tuple[int, int]:
    offset = _number(_get(item, "offset"), "an offset", MAX_LENGTH)
    length = _number(_get(item, "length"), "a length", MAX_LENGTH)
    if offset + length > total:
        raise BadTablesError(f"bytes {offset} to {offset + length} are named, but there are only {total}")
    return offset, length


def _structure(item: object, total: int) -> Structure:
    offset, length = _extent(item, total)
    activation = _number(_get(item, "activation_bytes"), "an activation size", MAX_LENGTH)
    return Structure(offset=offset, length=length, activation_bytes=activation)


def _weight(item: object, total: int) -> Weight | SourceWeight:
    shape = _list(item, "shape")
    if len(shape) > MAX_RANK:
        raise BadTablesError(f"a weight has {len(shape)} dimensions")
    digest = _text(_get(item, "digest"), "a weight's digest")
    if not _DIGEST.fullmatch(digest):
        raise BadTablesError("a weight's digest is not one")
    elem_type = _number(_get(item, "elem_type"), "an element type", _MAX_ELEM_TYPE)
    dims = tuple(_number(dim, "a dimension", MAX_LENGTH) for dim in shape)
    if isinstance(item, dict) and "source" in item:
        name = _text(item["source"], "the name of a weight of the source")
        length = _number(_get(item, "length"), "a length", MAX_LENGTH)
        return SourceWeight(source=name, length=length, elem_type=elem_type, shape=dims, digest=digest)
    offset, length = _extent(item, total)
    return Weight(offset=offset, length=length, elem_type=elem_type, shape=dims, digest=digest)


def _graph(item: dict[str, Any], structures: int, weights: int, types: dict[bytes, TensorType]) -> GraphEntry:
    if not item.keys() >= _GRAPH_KEYS:
        raise BadTablesError(f"a graph has not all of {', '.join(sorted(_GRAPH_KEYS))}")
    pairs = [_pair(pair, weights) for pair in _as_list(item["weights"], "weights")]
    if pairs and len({name for name, _ in pairs}) != len(pairs):
        raise BadTablesError("a graph names a weight twice")
    return GraphEntry(
        name=item["name"],
        structure=_number(item["structure"], "a structure's number", structures - 1),
        weights=tuple(pairs),
        inputs=tuple([_decode_value(value, types) for value in _as_list(item["inputs"], "inputs")]),
        outputs=tuple([_decode_value(value, types) for value in _as_list(item["outputs"], "outputs")]),
    )


def _pair(pair: object, weights: int) -> tuple[str, int]:
    name, place = _fields(pair, 2, "a weight's entry")
    return _text(name, "a weight's name"), _number(place, "a weight's number", weights - 1)


def _fields(value: object, count: int, what: str) -> list[Any]:
    fields = _as_list(value, what)
    if len(fields) != count:
        raise BadTablesError(f"{what} has {len(fields)} fields, not {count}")
    return fields


def _encode_value(value: ValueInfo) -> list[Any]:
    kind = value.type
    return [value.name, kind.elem_type, kind.shape]


def _decode_value(item: object, types: dict[bytes, TensorType]) -> ValueInfo:
    """Return a value; equal types are made, and checked, once."""
    name, *kind = _fields(item, 3, "a value's type")
    # As bytes, because True and 1 are equal; of this version, because later ones tell shared objects from equal ones.
    key = marshal.dumps(kind, 2)
    known = types.get(key)
    if known is None:
        known = types[key] = _type(*kind)
    return ValueInfo(_text(name, "a value's name"), known)


def _type(elem_type: object, shape: object) -> TensorType:
    known = None if elem_type is None else _number(elem_type, "an element type", _MAX_ELEM_TYPE)
    if known is not None and known not in _element_types():
        raise BadTablesError(f"a value has the element type {known}, which ONNX does not have")
    return TensorType(known, None if shape is None else tuple(map(_dimension, _as_list(shape, "a shape"))))


@cache
def _element_types() -> frozenset[int]:
    import onnx

    return frozenset(onnx.TensorProto.DataType.values())


def _dimension(value: object) -> int | str | None:
    if value is None or isinstance(value, str):
        return value
    return _number(value, "a dimension", MAX_LENGTH)
