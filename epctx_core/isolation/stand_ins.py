"""What an EP gets in its own process in the place of the host's objects: views, writers, readers, payloads.

They look the same, and ask the host for what is the host's to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.graph.mapping import CHUNK
from epctx_core.graph.partition import Partitioner
from epctx_core.graph.subgraph import GraphSlice
from epctx_core.graph.view import Node
from epctx_core.isolation.models import decode_weights, open_file

if TYPE_CHECKING:
    import os

    from epctx_core.graph.weights import Weight
    from epctx_core.isolation.channel import Message
    from epctx_core.isolation.models import ReceivedModel
    from epctx_core.isolation.service import Host
    from epctx_core.plugin import ContextNode, NodeView, TensorView

_BUFFERED = 1 << 20
"""Bytes of small writes that go to the host together."""


class RemoteSlice(GraphSlice):
    """A graph of which the host knows what was taken; implements `GraphView`."""

    def __init__(self, host: Host, model: ReceivedModel, said: Mapping[str, Any]) -> None:
        graph = model.graph(said["path"])
        taken = [False] * len(graph.nodes)
        for index in said["taken"]:
            taken[index] = True
        super().__init__(graph, Partitioner(()), taken, _parent(model, graph.path), model.root)
        self._host = host

    def convex_groups(self, nodes: Iterable[NodeView]) -> list[list[NodeView]]:
        """Group nodes into the fewest convex partitions: the host knows what earlier EPs took."""
        by_index = {node.index: node for node in nodes}
        answer = self._host.ask("convex_groups", {"nodes": list(by_index)})
        return [[by_index[index] for index in group] for group in answer.items("groups")]


def _parent(model: ReceivedModel, path: Sequence[tuple[int, str]]) -> Node | None:
    return Node(model.graph(path[:-1]), path[-1][0]) if path else None


class RemotePayload:
    """A payload that the host writes; implements `Payload`. Small writes are collected."""

    def __init__(self, host: Host, number: int, model: ReceivedModel) -> None:
        self._host = host
        self._model = model
        self._buffer = bytearray()
        self.number = number
        self.size = 0

    def write(self, buffer: bytes | bytearray | memoryview) -> int:
        """Append bytes; return the offset of the first."""
        offset, whole = self.size, memoryview(buffer)
        view = whole.cast("B") if whole.nbytes else memoryview(b"")
        if len(self._buffer) + len(view) > _BUFFERED:
            self.flush()
        if len(view) > _BUFFERED:
            for start in range(0, len(view), CHUNK):
                self._host.tell("write", {"payload": self.number}, [view[start : start + CHUNK]])
        else:
            self._buffer += view
        self.size += len(view)
        return offset

    def flush(self) -> None:
        """Send what was collected."""
        if self._buffer:
            self._host.tell("write", {"payload": self.number}, [self._buffer])
            self._buffer = bytearray()

    def align(self, alignment: int) -> int:
        """Append zero bytes up to a multiple of `alignment`; return the new offset."""
        self.write(bytes(-self.size % alignment))
        return self.size

    def write_tensor(self, view: TensorView) -> int:
        """Append a weight; return its offset. One of the model's own does not pass through this process."""
        self.flush()
        place, head = self._model.place_of(view), {"payload": self.number}
        if place is not None:
            answer = self._host.ask("write_tensor", {**head, "place": place})
        else:
            claims = {"name": view.name, "nbytes": view.nbytes, "digest": view.digest}
            answer = self._host.ask("write_foreign", head | claims, pieces=view.chunks())
        self.size = answer.number("size")
        return answer.number("offset")

    def add_file(self, path: str | os.PathLike[str]) -> int:
        """Append the content of a file; return its offset."""
        offset = self.size
        with Path(path).open("rb", buffering=0) as file:
            while piece := file.read(CHUNK):
                self.write(piece)
        return offset


class RemoteWriter:
    """Starts payloads at the host; implements `ContextWriter`."""

    def __init__(self, host: Host, model: ReceivedModel, said: Mapping[str, Any]) -> None:
        self.final: bool = said["final"]
        self.graphs_by_model = tuple(tuple(names) for names in said["graphs_by_model"])
        self.payloads: list[RemotePayload] = []
        self._host = host
        self._model = model

    def payload(self, name: str | None = None) -> RemotePayload:
        """Start a payload."""
        self._host.ask("payload", {"name": name})
        self.payloads.append(RemotePayload(self._host, len(self.payloads), self._model))
        return self.payloads[-1]

    def reference(self, view: TensorView) -> str | None:
        """Ask whether payloads leave a weight in the source model."""
        place = self._model.place_of(view)
        if place is None:
            return None
        name: str | None = self._host.ask("reference", {"place": place}).head["name"]
        return name


class RemotePayloadView:
    """A payload to read; implements `PayloadView`. Mapped here where it lies in a file."""

    def __init__(self, host: Host, answer: Message) -> None:
        self._host = host
        self._number = answer.number("payload")
        self.name = answer.text("name")
        self.digest: str | None = answer.head["digest"]
        self.verified = answer.flag("verified")
        if "file" in answer.head:
            self.view = open_file(answer.items("file")).view
        else:
            self.view = answer.only_blob().toreadonly()

    def as_file(self) -> str:
        """Return a path with the same content."""
        return self._host.ask("as_file", {"payload": self._number}).text("path")


class RemoteReader:
    """Finds payloads at the host; implements `ContextReader`."""

    def __init__(self, host: Host, nodes: Sequence[ContextNode], known: dict[int, RemotePayloadView]) -> None:
        self._host = host
        self._places = {id(node): place for place, node in enumerate(nodes)}
        self._known = known

    def payload(self, node: ContextNode) -> RemotePayloadView:
        """Return the payload that holds a node's graph."""
        answer = self._host.ask("load", {"node": self._places[id(node)]})
        number = answer.number("payload")
        if number not in self._known:
            self._known[number] = RemotePayloadView(self._host, answer)
        return self._known[number]

    def source_tensor(self, name: str) -> Weight:
        """Return a weight that a payload left in the source model."""
        answer = self._host.ask("source_tensor", {"name": name})
        (weight,) = decode_weights(answer, answer.blobs)
        return weight
