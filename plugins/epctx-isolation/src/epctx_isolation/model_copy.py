"""Copy of a model in another process, and the names that both processes use for its parts.

Bytes in a file are not sent: the other process maps the file that is open in this one. A packet has a head of
plain values (JSON can hold it), bytes in portions, and the length of each blob that the other process gets of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import onnx

from epctx_core.errors import InvalidGraph
from epctx_core.ext import GraphIndex, GraphPartition, GraphSlice, MappedFile, Node, Weight, types_of

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView, NodeView, Partition, PayloadView, TensorView

Packet: TypeAlias = "tuple[dict[str, Any], Iterable[bytes | memoryview], list[int]]"
WeightKey: TypeAlias = "tuple[tuple[tuple[int, str], ...], str]"
"""Path of the graph and name of a weight."""


def pack_weights(weights: Iterable[TensorView]) -> Packet:
    """Return a packet of weights: by file and offset, or as bytes."""
    files: dict[int, tuple[int, MappedFile]] = {}
    rows, inline = [], []
    for weight in cast("Iterable[Weight]", weights):
        location = None
        if weight.mapping is None:
            inline.append(weight)
        else:
            file, offset = weight.mapping
            location = [files.setdefault(id(file), (len(files), file))[0], offset, weight.nbytes]
        digest = weight.lazy_digest.known
        rows.append([weight.name, weight.elem_type, list(weight.shape), weight.source_name, digest, location])
    head = {
        "weights": rows,
        "files": [
            # The path where the file was opened, the one under which Linux shows what is open, and its identity.
            [[file.path, f"/proc/{os.getpid()}/fd/{file.descriptor}"], *file.identity]
            for _, file in files.values()
        ],
    }
    return head, chain.from_iterable(w.chunks() for w in inline), [w.nbytes for w in inline]


def pack_payload(payload: PayloadView) -> Packet:
    """Return a packet of a payload: a weight of its name, with its bytes as elements."""
    mapped, view = getattr(payload, "mapped", None), payload.view
    return pack_weights([Weight(payload.name, onnx.TensorProto.UINT8, (len(view),), view, mapped=mapped)])


def unpack_weights(head: Mapping[str, Any], blobs: Sequence[memoryview]) -> list[Weight]:
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
            weight = Weight(name, elem_type, tuple(shape), data, mapped=file, offset=offset)
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
    protos = [model.SerializeToString(), *[graph.SerializeToString() for graph in types]]
    head, portions, sizes = pack_weights(root.weights.values())
    return {**head, "types": len(types)}, chain(protos, portions), [*map(len, protos), *sizes]


def describe_view(view: GraphSlice) -> dict[str, Any]:
    """Return the description that `ReceivedModel.view` takes."""
    return {"path": view.index.path, "taken": [i for i, taken in enumerate(view.taken) if taken]}


def describe_partitions(partitions: Sequence[GraphPartition]) -> list[dict[str, Any]]:
    """Return the descriptions that `ReceivedModel.partitions` takes, with the digests that were made for their names."""
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
        for partition in partitions
    ]


def find_node(root: GraphIndex, path: object, index: object) -> NodeView | None:
    """Return a node by the path of its graph and its index; None if the model has no such node."""
    graph = _find_graph(root, path)
    if graph is None or type(index) is not int or not 0 <= index < len(graph.nodes):
        return None
    return Node(graph, index)


def find_weight(root: GraphIndex, path: object, name: object) -> TensorView | None:
    """Return a weight by the path of its graph and its name; None if the model has no such weight."""
    graph = _find_graph(root, path)
    return graph.weights.get(name) if graph is not None and type(name) is str else None


def _find_graph(root: GraphIndex, path: object) -> GraphIndex | None:
    try:
        return root.find_subgraph(tuple((node, attribute) for node, attribute in path))  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return None


class ReceivedModel:
    """Copy of a model that another process sent.

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
        self._weight_keys: dict[int, WeightKey] = {}

    def _graph(self, path: object) -> GraphIndex:
        graph = _find_graph(self._root, path)
        if graph is None:
            raise AssertionError(f"the host sent a model without a graph at {path}")
        return graph

    def view(
        self, description: Mapping[str, Any], group: Callable[[list[int]], list[list[int]]]
    ) -> GraphView:
        """Return the view that `describe_view` described; `group` asks the host to group nodes of it."""
        graph = self._graph(description["path"])
        taken = [False] * len(graph.nodes)
        for index in description["taken"]:
            taken[index] = True
        parent = Node(self._graph(graph.path[:-1]), graph.path[-1][0]) if graph.path else None
        return _GraphView(group, graph, None, taken, parent, self._root)

    def partitions(
        self, items: Sequence[Mapping[str, Any]], ep: str, tokens: Sequence[object]
    ) -> list[Partition]:
        """Return the partitions that `describe_partitions` described, with the tokens of exact claims."""
        partitions: list[Partition] = []
        for item in items:
            graph = self._graph(item["path"])
            partition = GraphPartition(graph, item["nodes"], ep=ep, keep_initializers=item["keep"])
            partition.prefix, partition.number = item["prefix"], item["number"]
            partition.token = None if item["token"] is None else tokens[item["token"]]
            for name, digest in item["digests"].items():
                graph.weights[name].lazy_digest.known = digest
            partitions.append(partition)
        return partitions

    def node_references(self, view: GraphView, nodes: Iterable[object]) -> list[Any]:
        """Return the host's references to the nodes of a claim; at most one more than the graph has nodes.

        A number is a node of the view's graph, or one that the EP gave; a path with a number is a node of another
        graph of the model; None is anything else.
        """
        graph: GraphIndex = view.index  # type: ignore[attr-defined] # a GraphSlice
        references: list[Any] = []
        for node in islice(nodes, len(graph.nodes) + 1):
            index = node if isinstance(node, int) else getattr(node, "index", None)
            if isinstance(node, Node) and not node.is_in(graph):
                references.append(next(([g.path, index] for g in self._root.walk() if node.is_in(g)), None))
            else:
                references.append(int(index) if isinstance(index, int) else None)
        return references

    def weight_key(self, weight: TensorView) -> WeightKey | None:
        """Return the graph and the name of a weight of this model; None for another object."""
        if not self._weight_keys:
            for graph in self._root.walk():
                for name, own in graph.weights.items():
                    self._weight_keys[id(own)] = graph.path, name
        return self._weight_keys.get(id(weight))


class _GraphView(GraphSlice):
    """View of a graph; the host knows which nodes are taken, and groups them."""

    def __init__(self, group: Callable[[list[int]], list[list[int]]], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._group = group

    def convex_groups(self, nodes: Iterable[NodeView]) -> list[list[NodeView]]:
        """Group nodes into the fewest convex partitions."""
        by_index = {node.index: node for node in nodes}
        return [[by_index[index] for index in group] for group in self._group(list(by_index))]
