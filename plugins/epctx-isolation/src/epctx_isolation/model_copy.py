"""Copy of a model in another process with the names of its parts, and proxies of the
host's objects there.

Proxies of writers, readers and payloads ask the host.

Bytes in a file are not sent: the other process maps the file that is open in this one.
A packet has a head of plain values (JSON can hold it), bytes in portions, and the
length of each blob that the other process gets of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import onnx

from epctx_core.errors import InvalidGraph
from epctx_core.ext import (
    GraphIndex,
    GraphPartition,
    GraphSlice,
    MappedFile,
    Weight,
    types_of,
)
from epctx_isolation.channel import Message, ProtocolError

if TYPE_CHECKING:
    from epctx_core.plugin import (
        ContextNode,
        GraphView,
        NodeView,
        Partition,
        PayloadView,
        TensorView,
    )
    from epctx_isolation.service import Host

Packet: TypeAlias = "tuple[dict[str, Any], Iterable[bytes | memoryview], list[int]]"
WeightKey: TypeAlias = "tuple[tuple[tuple[int, str], ...], str]"
"""Path of the graph and name of a weight."""

_BUFFERED = 1 << 20
"""Bytes of small writes that are sent together."""
_CHUNK = 8 << 20
"""Bytes of a large write in one message."""


def pack_weights(weights: Iterable[TensorView]) -> Packet:
    """Return a packet of weights: by file and offset, or as bytes."""
    files: dict[int, tuple[int, MappedFile]] = {}
    rows = []
    inline = []
    for weight in cast("Iterable[Weight]", weights):
        location = None
        if weight.mapping is None:
            inline.append(weight)
        else:
            file, offset = weight.mapping
            location = [
                files.setdefault(id(file), (len(files), file))[0],
                offset,
                weight.nbytes,
            ]
        digest = weight.lazy_digest.known
        rows.append(
            [
                weight.name,
                weight.elem_type,
                list(weight.shape),
                weight.source_name,
                digest,
                location,
            ]
        )
    head = {
        "weights": rows,
        "files": [
            # The path where the file was opened, the one under which Linux shows what
            # is open, and its identity.
            [[file.path, f"/proc/{os.getpid()}/fd/{file.descriptor}"], *file.identity]
            for _, file in files.values()
        ],
    }
    return (
        head,
        chain.from_iterable(w.chunks() for w in inline),
        [w.nbytes for w in inline],
    )


def pack_payload(payload: PayloadView) -> Packet:
    """Return a packet of a payload: a weight of its name, with its bytes as
    elements.
    """
    mapped = getattr(payload, "mapped", None)
    view = payload.view
    return pack_weights(
        [
            Weight(
                payload.name, onnx.TensorProto.UINT8, (len(view),), view, mapped=mapped
            )
        ]
    )


def unpack_weights(
    head: Mapping[str, Any], blobs: Sequence[memoryview]
) -> list[Weight]:
    """Return the weights of a packet.

    Raises:
        InvalidGraph: a file is not the one that the host mapped.
    """
    files = [_map_file(*file) for file in head["files"]]
    inline = iter(blobs)
    weights = []
    for name, elem_type, shape, source, digest, location in head["weights"]:
        if location is None:
            weight = Weight(name, elem_type, tuple(shape), next(inline).toreadonly())
        else:
            number, offset, size = location
            file = files[number]
            data = file.view[offset : offset + size]
            weight = Weight(
                name, elem_type, tuple(shape), data, mapped=file, offset=offset
            )
        weight.source_name = source
        weight.lazy_digest.known = digest
        weights.append(weight)
    return weights


def _map_file(paths: Sequence[str], *identity: int) -> MappedFile:
    for path in paths:
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as opened:  # noqa: PTH123 - by descriptor
            file = MappedFile(opened.fileno(), paths[0])
            if file.identity == identity:
                return file
    raise InvalidGraph(
        f"the file {paths[0]!r} was replaced or removed while it was in use.",
        path=paths[0],
        hint="Let the process that writes it finish, then start again.",
    )


def pack_model(root: GraphIndex) -> Packet:
    """Return a packet of a model: structure and types as protobuf, and its weights."""
    model = onnx.ModelProto(ir_version=root.ir_version, functions=root.functions)
    for domain, version in root.opset_imports.items():
        model.opset_import.add(domain=domain, version=version)
    model.graph.CopyFrom(root.graph)
    types = root.types.list_declaring_graphs()
    protos = [
        model.SerializeToString(),
        *[graph.SerializeToString() for graph in types],
    ]
    head, portions, sizes = pack_weights(root.weights.values())
    return (
        {**head, "types": len(types)},
        chain(protos, portions),
        [*map(len, protos), *sizes],
    )


def describe_view(view: GraphSlice) -> dict[str, Any]:
    """Return the description that `ReceivedModel.view` takes."""
    return {
        "path": view.index.path,
        "taken": [i for i, is_taken in enumerate(view.is_assigned) if is_taken],
        "metadata": dict(view.metadata),
    }


def describe_partitions(partitions: Sequence[GraphPartition]) -> list[dict[str, Any]]:
    """Return the descriptions that `ReceivedModel.partitions` takes, with the digests
    that were made for their names.
    """
    return [
        {
            "path": partition.graph.path,
            "nodes": list(partition.node_indices),
            "keep": partition.keeps_initializers,
            "prefix": partition.prefix,
            "number": partition.number,
            "token": partition.token,
            "digests": {
                name: w.lazy_digest.known
                for name, w in partition.weights.items()
                if w.lazy_digest.known
            },
        }
        for partition in partitions
    ]


def find_node(root: GraphIndex, path: object, index: object) -> NodeView:
    """Return a node by the path of its graph and its index.

    Raises:
        ProtocolError: the model has no such node.
    """
    graph = _find_graph(root, path)
    if type(index) is not int or not 0 <= index < len(graph.nodes):
        raise ProtocolError(
            f"the model has no node {index!r:.80} in the graph {path!r:.80}"
        )
    return graph.get_node(index)


def find_weight(root: GraphIndex, path: object, name: object) -> TensorView:
    """Return a weight by the path of its graph and its name.

    Raises:
        ProtocolError: the model has no such weight.
    """
    graph = _find_graph(root, path)
    weight = graph.weights.get(name) if type(name) is str else None
    if weight is None:
        raise ProtocolError(
            f"the model has no weight {name!r:.80} in the graph {path!r:.80}"
        )
    return weight


def _find_graph(root: GraphIndex, path: object) -> GraphIndex:
    with contextlib.suppress(TypeError, ValueError):
        graph = root.find_subgraph(tuple((node, attribute) for node, attribute in path))  # type: ignore[attr-defined]
        if graph is not None:
            return graph
    raise ProtocolError(f"the model has no graph {path!r:.80}")


class ReceivedModel:
    """Copy of a model that another process sent.

    Args:
        head, blobs: the packet.
    """

    def __init__(self, head: Mapping[str, Any], blobs: Sequence[memoryview]) -> None:
        model = onnx.ModelProto.FromString(bytes(blobs[0]))
        first_weight = 1 + head["types"]
        graphs = [
            onnx.GraphProto.FromString(bytes(blob)) for blob in blobs[1:first_weight]
        ]
        more_types = types_of(graphs[1]) if len(graphs) > 1 else None
        types = types_of(graphs[0], more_types)
        unpacked = unpack_weights(head, blobs[first_weight:])
        weights = {weight.name: weight for weight in unpacked}
        self._proto = model
        self._root = GraphIndex(model.graph, types=types, weights=weights, owner=model)
        self._weight_keys: dict[int, WeightKey] = {}

    def view(
        self,
        description: Mapping[str, Any],
        group: Callable[[list[int]], list[list[int]]],
    ) -> GraphView:
        """Return the view that `describe_view` described; `group` asks the host to
        group nodes of it.
        """
        graph = _find_graph(self._root, description["path"])
        is_taken = [False] * len(graph.nodes)
        for index in description["taken"]:
            is_taken[index] = True
        parent = (
            _find_graph(self._root, graph.path[:-1]).get_node(graph.path[-1][0])
            if graph.path
            else None
        )
        view = _GraphView(group, graph, None, is_taken, parent, self._root)
        view.metadata = description["metadata"]
        return view

    def partitions(
        self, items: Sequence[Mapping[str, Any]], ep: str, tokens: Sequence[object]
    ) -> list[Partition]:
        """Return the partitions that `describe_partitions` described, with the tokens
        of exact claims.
        """
        partitions: list[Partition] = []
        for item in items:
            graph = _find_graph(self._root, item["path"])
            partition = GraphPartition(
                graph, item["nodes"], ep=ep, keep_initializers=item["keep"]
            )
            partition.prefix = item["prefix"]
            partition.number = item["number"]
            partition.token = None if item["token"] is None else tokens[item["token"]]
            for name, digest in item["digests"].items():
                graph.weights[name].lazy_digest.known = digest
            partitions.append(partition)
        return partitions

    def node_references(self, view: GraphView, nodes: Iterable[object]) -> list[Any]:
        """Return the host's references to the nodes of a claim; at most one more than
        the graph has nodes.

        A number is a node of the view's graph, or one that the EP gave; a path with a
        number is a node of another graph of the model; None is anything else.
        """
        graph: GraphIndex = view.index  # type: ignore[attr-defined] # a GraphSlice
        references: list[Any] = []
        # An EP may give any object, with any attributes.
        views = type(graph.get_node(0))
        for node in islice(nodes, len(graph.nodes) + 1):
            index = node if isinstance(node, int) else getattr(node, "index", None)
            if isinstance(node, views) and not node.is_in(graph):
                references.append(
                    next(
                        ([g.path, index] for g in self._root.walk() if node.is_in(g)),
                        None,
                    )
                )
            else:
                references.append(int(index) if isinstance(index, int) else None)
        return references

    def weight_key(self, weight: TensorView) -> WeightKey | None:
        """Return the graph and the name of a weight of this model; None for another
        object.
        """
        if not self._weight_keys:
            for graph in self._root.walk():
                for name, graph_weight in graph.weights.items():
                    self._weight_keys[id(graph_weight)] = graph.path, name
        return self._weight_keys.get(id(weight))


class _GraphView(GraphSlice):
    """View of a graph; the host knows which nodes are taken, and groups them."""

    def __init__(
        self, group: Callable[[list[int]], list[list[int]]], *arguments: Any
    ) -> None:
        super().__init__(*arguments)
        self._group = group

    def convex_groups(self, nodes: Iterable[NodeView]) -> list[list[NodeView]]:
        """Group nodes into the fewest convex partitions."""
        by_index = {node.index: node for node in nodes}
        return [
            [by_index[index] for index in group]
            for group in self._group(list(by_index))
        ]


class RemotePayload:
    """A payload that the host writes; implements `Payload`.

    Small writes are collected.
    """

    def __init__(self, host: Host, number: int, model: ReceivedModel) -> None:
        self._host = host
        self._model = model
        self._buffer = bytearray()
        self.number = number
        self.size = 0

    def write(self, buffer: bytes | bytearray | memoryview) -> int:
        """Append bytes; return the offset of the first."""
        offset = self.size
        whole = memoryview(buffer)
        view = whole.cast("B") if whole.nbytes else memoryview(b"")
        if len(self._buffer) + len(view) > _BUFFERED:
            self.flush()
        if len(view) > _BUFFERED:
            for start in range(0, len(view), _CHUNK):
                self._host.notify(
                    "write", {"payload": self.number}, [view[start : start + _CHUNK]]
                )
        else:
            self._buffer += view
        self.size += len(view)
        return offset

    def flush(self) -> None:
        """Send what was collected."""
        if self._buffer:
            self._host.notify("write", {"payload": self.number}, [self._buffer])
            self._buffer = bytearray()

    def align(self, alignment: int) -> int:
        """Append zero bytes up to a multiple of `alignment`; return the new offset."""
        self.write(bytes(-self.size % alignment))
        return self.size

    def write_tensor(self, view: TensorView) -> int:
        """Append a weight; return its offset.

        One of the model's own does not pass through this process.
        """
        self.flush()
        key = self._model.weight_key(view)
        head = {"payload": self.number}
        if key is not None:
            reply = self._host.ask("write_tensor", {**head, "weight": key})
        else:
            facts = {"name": view.name, "nbytes": view.nbytes, "digest": view.digest}
            reply = self._host.ask("write_tensor", head | facts, chunks=view.chunks())
        self.size = reply.number("size")
        return reply.number("offset")

    def add_file(self, path: str | os.PathLike[str]) -> int:
        """Append the content of a file; return its offset."""
        offset = self.size
        with Path(path).open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                self.write(chunk)
        return offset


class RemoteWriter:
    """Starts payloads at the host; implements `ContextWriter`."""

    def __init__(
        self, host: Host, model: ReceivedModel, facts: Mapping[str, Any]
    ) -> None:
        self.final: bool = facts["final"]
        self.graphs_by_model = tuple(tuple(names) for names in facts["graphs_by_model"])
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
        key = self._model.weight_key(view)
        if key is None:
            return None
        reply = self._host.ask("reference", {"weight": key})
        name: str | None = reply.head["name"]
        return name


class RemotePayloadView:
    """A payload to read; implements `PayloadView`.

    One in a file is mapped in this process.
    """

    def __init__(self, host: Host, reply: Message) -> None:
        self._host = host
        self._number = reply.number("payload")
        (content,) = unpack_weights(reply.head, reply.blobs)
        self.name = content.name
        self.view = content.array().data
        self.digest: str | None = reply.head["digest"]
        self.verified = reply.flag("verified")
        self.is_file = reply.flag("is_file")

    def as_file(self) -> str:
        """Return a path with the same content."""
        return self._host.ask("as_file", {"payload": self._number}).text("path")


class RemoteReader:
    """Finds payloads at the host; implements `ContextReader`."""

    def __init__(
        self,
        host: Host,
        nodes: Sequence[ContextNode],
        views: dict[int, RemotePayloadView],
    ) -> None:
        self._host = host
        self._indices = {id(node): index for index, node in enumerate(nodes)}
        self._payload_views = views

    def payload(self, node: ContextNode) -> RemotePayloadView:
        """Return the payload that holds a node's graph."""
        reply = self._host.ask("load", {"node": self._indices[id(node)]})
        number = reply.number("payload")
        if number not in self._payload_views:
            self._payload_views[number] = RemotePayloadView(self._host, reply)
        return self._payload_views[number]

    def source_tensor(self, name: str) -> TensorView:
        """Return a weight that a payload left in the source model."""
        reply = self._host.ask("source_tensor", {"name": name})
        (weight,) = unpack_weights(reply.head, reply.blobs)
        return weight
