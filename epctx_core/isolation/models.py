"""A model on its way to an EP's process: structure and types as protobuf, weights by the places of their bytes.

Both sides make the same index of it, so that from then on a graph is its path and a node its number.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx

from epctx_core.errors import InvalidGraph
from epctx_core.graph.index import GraphIndex
from epctx_core.graph.mapping import FileIdentity, MappedFile
from epctx_core.graph.subgraph import GraphPartition
from epctx_core.graph.type_table import types_of
from epctx_core.graph.weights import Digest, Weight, raw_size
from epctx_core.isolation.channel import Channel, Message, ProtocolError, whole_numbers

if TYPE_CHECKING:
    from epctx_core.graph.bodies import BodyPath


class WeightsTable:
    """Weights as a message holds them: what is mapped by file and offset, all else as bytes behind it."""

    def __init__(self, weights: Iterable[Weight]) -> None:
        self._files: dict[int, int] = {}
        self._mapped: list[MappedFile] = []
        self._inline: list[Weight] = []
        self._rows = [self._row(weight) for weight in weights]

    def _row(self, weight: Weight) -> list[Any]:
        mapping = weight.mapping
        if mapping is None:
            self._inline.append(weight)
            place: list[int] | None = None
        else:
            file, offset = mapping
            if id(file) not in self._files:
                self._files[id(file)] = len(self._mapped)
                self._mapped.append(file)
            place = [self._files[id(file)], offset]
        source = weight.source_name
        return [weight.name, weight.elem_type, list(weight.shape), source, weight.lazy_digest.known, place]

    @property
    def head(self) -> dict[str, Any]:
        """What describes the weights."""
        return {"weights": self._rows, "files": [encode_file(file) for file in self._mapped]}

    @property
    def sizes(self) -> list[int]:
        """The length of each piece of bytes."""
        return [weight.nbytes for weight in self._inline]

    def blobs(self) -> Iterator[bytes]:
        """Yield the bytes, one weight in memory at a time."""
        return (b"".join(weight.chunks()) for weight in self._inline)


def decode_weights(message: Message, blobs: Sequence[memoryview]) -> list[Weight]:
    """Return the weights that a `WeightsTable` describes.

    Raises:
        InvalidGraph: a file is not the one that the host mapped.
    """
    files = [open_file(file) for file in message.items("files")]
    inline = iter(blobs)
    weights = []
    for name, elem_type, shape, source, digest, place in message.items("weights"):
        if place is None:
            weight = Weight(name, elem_type, tuple(shape), next(inline).toreadonly())
        else:
            file, offset = files[place[0]], place[1]
            size = raw_size(elem_type, tuple(shape))
            data = file.view[offset : offset + size]
            weight = Weight(name, elem_type, tuple(shape), data, mapped=file, offset=offset)
        weight.source_name = source
        weight.lazy_digest = Digest(digest)
        weights.append(weight)
    return weights


def encode_file(file: MappedFile) -> list[Any]:
    """Return what tells another process which file to map: where it lay, and where Linux shows what is open here."""
    return [[file.path, f"/proc/{os.getpid()}/fd/{file.descriptor}"], *file.identity]


def open_file(description: Sequence[Any]) -> MappedFile:
    """Map the file that `encode_file` describes.

    Raises:
        InvalidGraph: another one, or none, lies there now.
    """
    paths, *identity = description
    for place in paths:
        with contextlib.suppress(OSError):
            file = _mapped(place, paths[0])
            if file.identity == FileIdentity(*identity):
                return file
    raise _replaced(paths[0])


def _mapped(place: str, path: str) -> MappedFile:
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return MappedFile(descriptor, path)
    finally:
        os.close(descriptor)


def _replaced(path: str) -> InvalidGraph:
    return InvalidGraph(
        f"the file {path!r} was replaced or removed while it was in use.",
        path=path,
        hint="Let whatever writes it finish, then start again.",
    )


def send_model(channel: Channel, root: GraphIndex) -> None:
    """Send a model, of which the main graph's index is given.

    Raises:
        OSError: nobody reads it.
    """
    model = onnx.ModelProto(ir_version=root.ir_version, functions=root.functions)
    for domain, version in root.opset_imports.items():
        model.opset_import.add(domain=domain, version=version)
    model.graph.CopyFrom(root.graph)
    types = root.types.declaring_graphs()
    protos = [model.SerializeToString(), *[graph.SerializeToString() for graph in types]]
    table = WeightsTable(root.weights.values())
    head = {"do": "model", "types": len(types), **table.head}
    sizes = [*map(len, protos), *table.sizes]

    def blobs() -> Iterator[bytes]:
        yield from protos
        yield from table.blobs()

    channel.send(head, blobs(), sizes)


class ReceivedModel:
    """A model that a host sent.

    Attributes:
        root: the main graph.
    """

    def __init__(self, message: Message) -> None:
        model = onnx.ModelProto.FromString(bytes(message.blobs[0]))
        first_weight = 1 + message.head["types"]
        graphs = [onnx.GraphProto.FromString(bytes(blob)) for blob in message.blobs[1:first_weight]]
        types = types_of(graphs[0], types_of(graphs[1]) if len(graphs) > 1 else None)
        weights = {weight.name: weight for weight in decode_weights(message, message.blobs[first_weight:])}
        self._proto = model
        self.root = GraphIndex(
            model.graph,
            types=types,
            weights=weights,
            owner=model,
        )
        self._places: dict[int, tuple[BodyPath, str]] = {}

    def graph(self, path: Sequence[Sequence[Any]]) -> GraphIndex:
        """Return a graph by its path."""
        return graph_at(self.root, path)

    def place_of(self, weight: object) -> tuple[BodyPath, str] | None:
        """Return the graph and the name of a weight of this model; None for another object."""
        if not self._places:
            for graph in self.root.tree():
                for name, own in graph.weights.items():
                    self._places[id(own)] = graph.path, name
        return self._places.get(id(weight))

    def partitions(
        self, items: Sequence[Mapping[str, Any]], ep: str, tokens: Sequence[object]
    ) -> list[GraphPartition]:
        """Return the partitions that `encode_partitions` was given, those that have tokens with them."""
        made = []
        for item in items:
            graph = self.graph(item["path"])
            partition = GraphPartition(graph, item["nodes"], ep=ep, keep_initializers=item["keep"])
            partition.prefix, partition.number = item["prefix"], item["number"]
            partition.token = None if item["token"] is None else tokens[item["token"]]
            for name, digest in item["digests"].items():
                graph.weights[name].lazy_digest = Digest(digest)
            made.append(partition)
        return made


def graph_at(root: GraphIndex, path: object) -> GraphIndex:
    """Return a graph of a model by its path.

    Raises:
        ProtocolError: the model has no such graph.
    """
    try:
        graph = root.at(tuple((node, attribute) for node, attribute in path))  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        graph = None
    if graph is None:
        raise ProtocolError(f"{path!r:.80} leads to no graph")
    return graph


def weight_at(root: GraphIndex, place: object) -> Weight:
    """Return a weight of a model by the path of a graph and a name; see `ReceivedModel.place_of`.

    Raises:
        ProtocolError: the model has no such weight.
    """
    if type(place) is not list or len(place) != 2 or type(place[1]) is not str:  # noqa: PLR2004 - path and name
        raise ProtocolError(f"{place!r:.80} is no place of a weight")
    weight = graph_at(root, place[0]).weights.get(place[1])
    if weight is None:
        raise ProtocolError(f"there is no weight {place[1]!r:.80}")
    return weight


def encode_partitions(partitions: Sequence[GraphPartition]) -> list[dict[str, Any]]:
    """Return partitions as JSON can hold them, with the digests that were made for their names."""
    return [
        {
            "path": partition.graph.path,
            "nodes": list(partition.node_indices),
            "keep": partition.keeps_initializers,
            "prefix": partition.prefix,
            "number": partition.number,
            "token": partition.token,
            "digests": {
                name: weight.lazy_digest.known
                for name, weight in partition.weights.items()
                if weight.lazy_digest.known
            },
        }
        for partition in partitions
    ]


def node_indices(values: object, count: int) -> list[int]:
    """Return node numbers of a graph with so many nodes.

    Raises:
        ProtocolError: they are not.
    """
    found = whole_numbers(values)
    if any(index >= count for index in found):
        raise ProtocolError(f"a node that is not among {count}")
    return found
