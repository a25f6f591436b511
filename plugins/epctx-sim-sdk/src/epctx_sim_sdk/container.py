"""The binary format: one container with many graphs, read from a mapping.

Head, weights, graphs and tables, foot: so that it can be written front to back before any digest is known.
The foot's digest covers everything but the weights, and the tables carry each weight's digest. Opening
checks the former and reads no weight. `writing` writes it; the package's README describes it.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epctx_core.errors import InvalidGraph
from epctx_sim_sdk.foreign import RESTORE, recognise, what_helps
from epctx_sim_sdk.tables import (
    MAX_TABLES,
    BadTablesError,
    GraphEntry,
    SourceWeight,
    Tables,
    Weight,
    decode,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, TypeAlias

    from epctx_core.plugin import TensorView

    FromSource: TypeAlias = Callable[[str], TensorView]

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
        structures_start: where the graphs' structures begin, behind the weights; the tables follow them.
        structures, tables: lengths in bytes.
        total: the size of the container.
    """

    structures_start: int
    structures: int
    tables: int
    total: int

    def pack(self, body: bytes) -> bytes:
        """Return the foot's bytes for structures and tables."""
        fields = _FIELDS.pack(self.structures_start, self.structures, self.tables, self.total)
        return fields + _digest(body, fields) + END

    @classmethod
    def unpack(cls, foot: memoryview) -> Self:
        """Return what a foot says; nothing is checked."""
        start, structures, tables, total = _FIELDS.unpack_from(foot)
        return cls(structures_start=start, structures=structures, tables=tables, total=total)


def _digest(body: bytes | memoryview, fields: bytes | memoryview) -> bytes:
    sha = hashlib.sha256(head())
    sha.update(body)
    sha.update(fields)
    return sha.digest()


class Container:
    """An opened container. Its arrays are views over the payload and keep the mapping alive.

    Attributes:
        subject: what it is in messages, such as `the payload net_qnn.bin`.
        tables: the checked tables; see `graph` for the graphs in them.
    """

    def __init__(
        self, view: memoryview, tables: Tables, foot: Foot, subject: str, source: FromSource
    ) -> None:
        self.subject = subject
        self.tables = tables
        self._source = source
        self._structures = view[foot.structures_start :][: foot.structures]
        self._weights = view[: foot.structures_start]

    def graph(self, name: str) -> GraphEntry:
        """Return what the tables say of a graph that it holds, checked when it is first asked for.

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
        """Return a graph's weights as read-only arrays over the payload or the source model, nothing copied.

        Raises:
            InvalidGraph: a weight's type and shape do not fit its length, or one of the source is missing or
                not the one that was compiled.
        """
        return {name: self._array(self.tables.weights[place], name) for name, place in entry.weights}

    def _array(self, weight: Weight | SourceWeight, name: str) -> np.ndarray:
        return (
            self._own(weight, name) if isinstance(weight, Weight) else _checked(self._source, weight).array()
        )

    def _own(self, weight: Weight, name: str) -> np.ndarray:
        dtype = _dtype(weight.elem_type)
        count = math.prod(weight.shape)
        fits = dtype is not None and count * dtype.itemsize == weight.length
        # Without elements no dimension is bounded by the length, and numpy multiplies the others.
        if dtype is None or not fits or (not count and math.prod(d or 1 for d in weight.shape) > MAX_TABLES):
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
        """Read all weights that it holds and return the places (in `tables.weights`) of those with a wrong digest."""
        return [
            place
            for place, weight in enumerate(self.tables.weights)
            if isinstance(weight, Weight)
            and hashlib.sha256(self._weights[weight.offset : weight.offset + weight.length]).hexdigest()
            != weight.digest
        ]


def _checked(source: FromSource, weight: SourceWeight) -> TensorView:
    view = source(weight.source)
    found = (view.elem_type, tuple(view.shape), view.nbytes, view.digest)
    if found != (weight.elem_type, weight.shape, weight.length, weight.digest):
        raise InvalidGraph(
            f"the weight {weight.source!r} of the source model is not the one that was compiled.",
            hint="Restore the source model that the context model was compiled from, or compile again.",
        )
    return view


def _no_source(name: str) -> TensorView:
    raise InvalidGraph(f"the payload refers to the weight {name!r} of a source model, and there is none.")


def _dtype(elem_type: int) -> np.dtype[np.generic] | None:
    import onnx

    if elem_type == onnx.TensorProto.STRING:
        return None
    try:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))
    except KeyError:
        return None


def open_container(  # noqa: PLR0913 - three are for messages alone
    view: memoryview,
    *,
    ep: str,
    node: str,
    name: str,
    source: FromSource = _no_source,
    kind: object = None,
    verified: bool = False,
) -> Container:
    """Open a payload. Reads tables and structures; no weight is read.

    Args:
        view: the whole payload.
        ep: the EP type, for messages.
        node: the EPContext node, for messages.
        name: the payload's name, for messages.
        source: gives weights of the source model, for a payload that holds not all of its own.
        kind: what the node says of the payload, if it does; see `foreign.KIND`.
        verified: whether the core has digested the payload, so that the digest in the foot need not be.

    Raises:
        InvalidGraph: empty, truncated, altered, of another format, or another vendor's.
    """
    subject = f"the payload {name}"
    view = view.cast("B").toreadonly() if view.format != "B" or not view.readonly else view
    try:
        _check_head(view, ep, kind)
        foot = _read_foot(view, verified=verified)
        tables = _read_tables(view, foot)
    except _UnreadableError as error:
        raise InvalidGraph(
            f"{ep} cannot load node {node!r}: {subject} {error}.",
            node=node,
            ep=ep,
            hint=what_helps(view, kind),
        ) from error
    return Container(view, tables, foot, subject, source)


def _read_tables(view: memoryview, foot: Foot) -> Tables:
    content = bytes(view[foot.structures_start + foot.structures :][: foot.tables])
    try:
        return decode(content, (foot.structures, foot.structures_start))
    except BadTablesError as error:
        raise _UnreadableError(f"is damaged: {error}") from error


def _check_head(view: memoryview, ep: str, kind: object) -> None:
    """Check mark and format. The text of the error completes "the payload a.bin ..."."""
    if not len(view):
        raise _UnreadableError("is empty")
    if bytes(view[: len(MAGIC)]) != MAGIC:
        _refuse_foreign(view, ep, kind)
    if len(view) < HEAD_SIZE + FOOT_SIZE:
        raise _UnreadableError(
            f"is truncated: it has {len(view)} bytes, and one without graphs has {HEAD_SIZE + FOOT_SIZE}"
        )
    _, version, size = _HEAD.unpack_from(view)
    if (version, size) != (FORMAT_VERSION, HEAD_SIZE):
        raise _UnreadableError(
            f"has format {version} ({size} bytes of head); this simulated SDK reads {FORMAT_VERSION}"
        )


def _read_foot(view: memoryview, *, verified: bool) -> Foot:
    """Check sizes and, unless it was done, the digest. The text of the error completes "the payload a.bin ..."."""
    raw = view[-FOOT_SIZE:]
    if raw[-len(END) :] != END:
        raise _UnreadableError(
            "is truncated, longer than it should be or damaged: it does not end with the mark of an end"
        )
    foot = Foot.unpack(raw)
    if foot.total != len(view):
        kind = "truncated" if foot.total > len(view) else "longer than it should be"
        raise _UnreadableError(f"is {kind}: it has {len(view)} bytes, and its foot says {foot.total}")
    body = foot.total - FOOT_SIZE - foot.structures_start
    if foot.tables > MAX_TABLES or foot.structures_start < HEAD_SIZE or foot.structures + foot.tables != body:
        raise _UnreadableError("is damaged: the sizes in its foot contradict each other")
    fields, digest = raw[: _FIELDS.size], raw[_FIELDS.size : -len(END)]
    if not verified and _digest(view[foot.structures_start : -FOOT_SIZE], fields) != digest:
        raise _UnreadableError(
            "is damaged: its graphs and tables do not have the digest that is written in it"
        )
    return foot


def _refuse_foreign(view: memoryview, ep: str, kind: object) -> None:
    what = recognise(view, kind)
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
