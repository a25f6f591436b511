"""Copy of a model in another process: its bytes on the way there, and what both sides call its parts.

What lies in a file does not travel: the other process maps the file that is open here. What travels is a packet: a head
of plain values (JSON can hold it), bytes in portions, and the lengths of the pieces that the other process gets of them.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import onnx

from epctx_core.errors import InvalidGraph
from epctx_core.graph.index import GraphIndex, Node
from epctx_core.graph.mapping import FileIdentity, MappedFile
from epctx_core.graph.partition import Partitioner
from epctx_core.graph.subgraph import GraphPartition, GraphSlice
from epctx_core.graph.type_table import types_of
from epctx_core.graph.weights import Digest, Weight, raw_size

if TYPE_CHECKING:
    from epctx_core.graph.index import BodyPath
    from epctx_core.plugin import GraphView, NodeView, Partition, PayloadView, TensorView

Packet: TypeAlias = "tuple[dict[str, Any], Iterable[bytes | memoryview], list[int]]"
Place: TypeAlias = "tuple[BodyPath, str]"
"""The graph and the name of a weight."""


def pack_weights(weights: Iterable[TensorView]) -> Packet:
    """Return weights of a model as they travel: by file and offset, or as bytes."""
    files: list[MappedFile] = []
    numbers: dict[int, int] = {}
    rows, inline = [], []
    for weight in cast("Iterable[Weight]", weights):
        place = None
        if weight.mapping is None:
            inline.append(weight)
        else:
            file, offset = weight.mapping
            place = [numbers.setdefault(id(file), len(files)), offset]
            if place[0] == len(files):
                files.append(file)
        source, digest = weight.source_name, weight.lazy_digest.known
        rows.append([weight.name, weight.elem_type, list(weight.shape), source, digest, place])
    head = {
        "weights": rows,
        "files": [
            # Where a file lay, where Linux shows what is open here, and which file it is.
            [[file.path, f"/proc/{os.getpid()}/fd/{file.descriptor}"], *file.identity]
            for file in files
        ],
    }
    return head, chain.from_iterable(w.chunks() for w in inline), [w.nbytes for w in inline]


def pack_payload(payload: PayloadView) -> Packet:
    """Return a payload as it travels: like a weight of its name, whose elements are its bytes."""
    mapped = getattr(payload, "mapped", None)
    view = payload.view
    return pack_weights([Weight(payload.name, onnx.TensorProto.UINT8, (len(view),), view, mapped=mapped)])


def unpack_weights(head: Mapping[str, Any], blobs: Sequence[memoryview]) -> list[Weight]:
    """Return the weights of a packet.

    Raises:
        InvalidGraph: a file is not the one that the host mapped.
    """
    files = [_unpack_file(*file) for file in head["files"]]
    inline = iter(blobs)
    weights = []
    for name, elem_type, shape, source, digest, place in head["weights"]:
        if place is None:
            weight = Weight(name, elem_type, tuple(shape), next(inline).toreadonly())
        else:
            file, offset = files[place[0]], place[1]
            data = file.view[offset : offset + raw_size(elem_type, tuple(shape))]
            weight = Weight(name, elem_type, tuple(shape), data, mapped=file, offset=offset)
        weight.source_name = source
        weight.lazy_digest = Digest(digest)
        weights.append(weight)
    return weights


def _unpack_file(places: Sequence[str], *identity: int) -> MappedFile:
    """Map the file of a packet.

    Raises:
        InvalidGraph: another one, or none, lies there now.
    """
    for place in places:
        with contextlib.suppress(OSError), open(place, "rb", buffering=0) as opened:  # noqa: PTH123 - by descriptor
            file = MappedFile(opened.fileno(), places[0])
            if file.identity == FileIdentity(*identity):
                return file
    raise InvalidGraph(
        f"the file {places[0]!r} was replaced or removed while it was in use.",
        path=places[0],
        hint="Let whatever writes it finish, then start again.",
    )


class SentModel:
    """A model of which another process has a copy, and what that calls its parts. The model is not kept alive.

    Args:
        view: any graph of the model.
    """

    def __init__(self, view: GraphView) -> None:
        self._root = weakref.ref(cast("GraphSlice", view).root)

    @property
    def root(self) -> GraphIndex:
        """The main graph."""
        root = self._root()
        if root is None:
            raise AssertionError("views and partitions hold their model's graphs")
        return root

    def has(self, view: GraphView) -> bool:
        """Whether a graph is one of this model."""
        return self._root() is cast("GraphSlice", view).root

    def packet(self) -> Packet:
        """Return the model as it travels: structure and types as protobuf, and its weights."""
        root = self.root
        model = onnx.ModelProto(ir_version=root.ir_version, functions=root.functions)
        for domain, version in root.opset_imports.items():
            model.opset_import.add(domain=domain, version=version)
        model.graph.CopyFrom(root.graph)
        types = root.types.declaring_graphs()
        protos = [model.SerializeToString(), *[graph.SerializeToString() for graph in types]]
        head, portions, sizes = pack_weights(root.weights.values())
        return {**head, "types": len(types)}, chain(protos, portions), [*map(len, protos), *sizes]

    def view(self, view: GraphView) -> dict[str, Any]:
        """Return what `ReceivedModel.view` makes the same view of."""
        graph = cast("GraphSlice", view)
        return {"path": graph.index.path, "taken": [i for i, owned in enumerate(graph.taken) if owned]}

    def partitions(self, partitions: Sequence[Partition]) -> list[dict[str, Any]]:
        """Return what `ReceivedModel.partitions` makes the same of, with the digests that were made for their names."""
        return [
            {
                "path": partition.graph.path,
                "nodes": list(partition.node_indices),
                "keep": partition.keeps_initializers,
                "prefix": partition.prefix,
                "number": partition.number,
                "token": partition.token,
                "digests": {
                    name: w.lazy_digest.known for name, w in partition.weights.items() if w.lazy_digest.known
                },
            }
            for partition in cast("Sequence[GraphPartition]", partitions)
        ]

    def node(self, path: object, index: object) -> NodeView | None:
        """Return a node by the path of its graph and its number; None if the model has no such node."""
        graph = _graph_at(self.root, path)
        if graph is None or type(index) is not int or not 0 <= index < len(graph.nodes):
            return None
        return Node(graph, index)

    def weight(self, path: object, name: object) -> TensorView | None:
        """Return a weight by the path of its graph and its name; None if the model has no such weight."""
        graph = _graph_at(self.root, path)
        return graph.weights.get(name) if graph is not None and type(name) is str else None


class ReceivedModel:
    """A copy of a model that another process sent.

    Args:
        head, blobs: the packet.
    """

    def __init__(self, head: Mapping[str, Any], blobs: Sequence[memoryview]) -> None:
        model = onnx.ModelProto.FromString(bytes(blobs[0]))
        first_weight = 1 + head["types"]
        graphs = [onnx.GraphProto.FromString(bytes(blob)) for blob in blobs[1:first_weight]]
        types = types_of(graphs[0], types_of(graphs[1]) if len(graphs) > 1 else None)
        weights = {weight.name: weight for weight in unpack_weights(head, blobs[first_weight:])}
        self._proto = model
        self._root = GraphIndex(model.graph, types=types, weights=weights, owner=model)
        self._places: dict[int, Place] = {}

    def _graph(self, path: object) -> GraphIndex:
        graph = _graph_at(self._root, path)
        if graph is None:
            raise AssertionError(f"the host has sent another model than the one with a graph at {path}")
        return graph

    def view(self, said: Mapping[str, Any], group: Callable[[list[int]], list[list[int]]]) -> GraphView:
        """Return the view that `SentModel.view` described; `group` is how the host groups nodes of it."""
        graph = self._graph(said["path"])
        taken = [False] * len(graph.nodes)
        for index in said["taken"]:
            taken[index] = True
        parent = Node(self._graph(graph.path[:-1]), graph.path[-1][0]) if graph.path else None
        return _SliceElsewhere(group, graph, Partitioner(()), taken, parent, self._root)

    def partitions(
        self, items: Sequence[Mapping[str, Any]], ep: str, tokens: Sequence[object]
    ) -> list[Partition]:
        """Return the partitions that `SentModel.partitions` described, those that have tokens with them."""
        made: list[Partition] = []
        for item in items:
            graph = self._graph(item["path"])
            partition = GraphPartition(graph, item["nodes"], ep=ep, keep_initializers=item["keep"])
            partition.prefix, partition.number = item["prefix"], item["number"]
            partition.token = None if item["token"] is None else tokens[item["token"]]
            for name, digest in item["digests"].items():
                graph.weights[name].lazy_digest = Digest(digest)
            made.append(partition)
        return made

    def calls(self, view: GraphView, nodes: Iterable[object]) -> list[Any]:
        """Return what the host knows nodes of an EP's answer by; at most one more than the graph has.

        A number is a node of the view's graph, or one that the EP gave; a path with a number is a node of another
        graph of the model; None is anything else.
        """
        graph = cast("GraphSlice", view).index
        called: list[Any] = []
        for node in islice(nodes, len(graph.nodes) + 1):
            index = node if isinstance(node, int) else getattr(node, "index", None)
            if isinstance(node, Node) and not node.is_in(graph):
                called.append(next(([g.path, index] for g in self._root.tree() if node.is_in(g)), None))
            else:
                called.append(int(index) if isinstance(index, int) else None)
        return called

    def place_of(self, weight: TensorView) -> Place | None:
        """Return the graph and the name of a weight of this model; None for another object."""
        if not self._places:
            for graph in self._root.tree():
                for name, own in graph.weights.items():
                    self._places[id(own)] = graph.path, name
        return self._places.get(id(weight))


class _SliceElsewhere(GraphSlice):
    """A graph of which the host knows what was taken, so that the host groups its nodes."""

    def __init__(self, group: Callable[[list[int]], list[list[int]]], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._group = group

    def convex_groups(self, nodes: Iterable[NodeView]) -> list[list[NodeView]]:
        """Group nodes into the fewest convex partitions."""
        by_index = {node.index: node for node in nodes}
        return [[by_index[index] for index in group] for group in self._group(list(by_index))]


def _graph_at(root: GraphIndex, path: object) -> GraphIndex | None:
    try:
        return root.at(tuple((node, attribute) for node, attribute in path))  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return None
