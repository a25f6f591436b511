"""Writes a container front to back, in one pass: weights first, what describes them
last.

So a weight's digest may still be in the making while earlier weights are written. See
`container` for the format.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from epctx_core.errors import EPFail
from epctx_sim_sdk.container import (
    FOOT_SIZE,
    LINE,
    MAX_TABLES,
    PAGE,
    Foot,
    GraphEntry,
    SourceWeight,
    Structure,
    Tables,
    Weight,
    head,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from epctx_core.plugin import Payload, TensorView, ValueInfo
    from epctx_sim_sdk.compiler import SimGraph

PAGE_ALIGNED_FROM = 1 << 18
"""Bytes from which a weight begins on a page of its own."""


def write_container(
    payload: Payload,
    graphs: Sequence[SimGraph],
    made_by: Mapping[str, str],
    *,
    before_weight: Callable[[int, int], None] = lambda _done, _total: None,
    reference: Callable[[TensorView], str | None] = lambda _view: None,
) -> Tables:
    """Write graphs into a fresh payload.

    Weights of equal content are stored once, whatever their names and graphs. Same
    graphs and facts give the same bytes.

    Args:
        payload: nothing may have been written to it.
        graphs: at least one; their names differ.
        made_by: facts for version rules, such as `sdk` and `driver`.
        before_weight: called with (weights handled, weights in all) before each weight
            of each graph.
        reference: gives the name of a weight that stays in the source model, None for
            one to be written.

    Returns:
        What was written as tables.

    Raises:
        EPFail: two graphs have one name, the tables are too large, or something was
            written before.
    """
    if payload.size:
        raise EPFail(
            f"a container begins its payload, and this one holds {payload.size} bytes "
            "already."
        )
    payload.write(head())
    weights = _Weights(payload, reference)
    structures = _Structures()
    total = sum(len(graph.weights) for graph in graphs)
    done = 0
    places: list[tuple[tuple[str, int], ...]] = []
    for graph in graphs:
        placed = []
        for name, view in graph.weights.items():
            before_weight(done, total)
            placed.append((name, weights.place(view)))
            done += 1
        places.append(tuple(placed))
    tables = Tables(
        made_by=made_by,
        graphs=_make_entries(graphs, structures, places),
        structures=tuple(structures.places),
        weights=tuple(weights.entries),
    )
    _write_end(payload, b"".join(structures.contents), _encode(tables))
    return tables


def _make_entries(
    graphs: Sequence[SimGraph],
    structures: _Structures,
    places: Sequence[tuple[tuple[str, int], ...]],
) -> dict[str, GraphEntry]:
    """Return the graphs' entries.

    A graph's name is made from the digests of its weights.

    Args:
        graphs: their names differ.
        structures: gets their structures.
        places: the weights of each.
    """
    entries: dict[str, GraphEntry] = {}
    for graph, weights in zip(graphs, places, strict=True):
        name = graph.name
        if name in entries:
            raise EPFail(f"two graphs of one container are called {name!r}.", node=name)
        entries[name] = GraphEntry(
            name=name,
            structure=structures.place(graph),
            weights=weights,
            inputs=graph.inputs,
            outputs=graph.outputs,
        )
    return entries


def _write_end(payload: Payload, structures: bytes, tables: bytes) -> None:
    if len(tables) > MAX_TABLES:
        raise EPFail(
            f"the container's tables have {len(tables)} bytes; it holds at most "
            f"{MAX_TABLES}."
        )
    body = structures + tables
    foot = Foot(
        structures_start=payload.size,
        structures=len(structures),
        tables=len(tables),
        total=payload.size + len(body) + FOOT_SIZE,
    )
    payload.write(body + foot.pack(body))


class _Weights:
    """Writes weights that are not left in the source; equal ones get the same place."""

    def __init__(
        self, payload: Payload, reference: Callable[[TensorView], str | None]
    ) -> None:
        self.entries: list[Weight | SourceWeight] = []
        self._payload = payload
        self._reference = reference
        self._number_of: dict[Weight | SourceWeight, int] = {}
        self._offset_of: dict[tuple[str, int], int] = {}

    def place(self, view: TensorView) -> int:
        """Return a weight's number in the tables; its bytes are written if they are
        new.
        """
        weight = self._make_entry(view)
        if weight not in self._number_of:
            self._number_of[weight] = len(self.entries)
            self.entries.append(weight)
        return self._number_of[weight]

    def _make_entry(self, view: TensorView) -> Weight | SourceWeight:
        source = self._reference(view)
        shape = tuple(view.shape)
        if source is not None:
            return SourceWeight(
                source=source,
                length=view.nbytes,
                elem_type=view.elem_type,
                shape=shape,
                digest=view.digest,
            )
        offset = self._write_weight(view)
        return Weight(
            offset=offset,
            length=view.nbytes,
            elem_type=view.elem_type,
            shape=shape,
            digest=view.digest,
        )

    def _write_weight(self, view: TensorView) -> int:
        content = (view.digest, view.nbytes)
        if content not in self._offset_of:
            self._payload.align(PAGE if view.nbytes >= PAGE_ALIGNED_FROM else LINE)
            self._offset_of[content] = self._payload.write_tensor(view)
        return self._offset_of[content]


class _Structures:
    """Gives structures their places; equal ones get the same."""

    def __init__(self) -> None:
        self.places: list[Structure] = []
        self.contents: list[bytes] = []
        self._number_of: dict[bytes, int] = {}
        self._end = 0

    def place(self, graph: SimGraph) -> int:
        """Return the number of a graph's structure in the tables."""
        content = graph.structure
        if content not in self._number_of:
            self._number_of[content] = len(self.places)
            self.places.append(
                Structure(
                    offset=self._end,
                    length=len(content),
                    activation_bytes=graph.activation_bytes,
                )
            )
            self.contents.append(content)
            self._end += len(content)
        return self._number_of[content]


def _encode(tables: Tables) -> bytes:
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
    text = json.dumps(
        content,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        check_circular=False,
    )
    return text.encode()


def _encode_value(value: ValueInfo) -> list[Any]:
    kind = value.type
    return [value.name, kind.elem_type, kind.shape]
