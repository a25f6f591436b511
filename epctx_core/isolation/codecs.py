"""How each type of the contract travels between a host and the process of an EP.

`ARGUMENTS` and `ANSWERS` have a codec for each type that the specifications of hooks name, so that a hook whose
types are all here travels by its row of the table of hooks alone. The EP's side finds mistakes of the EP and names
them; the host's side trusts nothing. Weights of the model are never sent back: the EP names them, and they are written
from where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
from google.protobuf.message import DecodeError

from epctx_core.context.payload_reader import LoadedPayload
from epctx_core.engines.matching import KernelMatcher, RegistryLookup
from epctx_core.graph.view import Node
from epctx_core.isolation.channel import Channel, Message, ProtocolError, whole_numbers
from epctx_core.isolation.models import (
    WeightsTable,
    decode_weights,
    encode_file,
    encode_partitions,
    node_indices,
    weight_at,
)
from epctx_core.isolation.stand_ins import RemotePayload, RemoteReader, RemoteSlice, RemoteWriter
from epctx_core.isolation.values import decode_attributes, decode_nodes, encode_attribute, encode_nodes
from epctx_core.plugin import CompiledPartition, ComputeCapability, EPContextNode, Refusal
from epctx_core.registry.guard import check_answer, contract_broken, plain

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.errors import PluginError
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.subgraph import GraphPartition, GraphSlice
    from epctx_core.graph.weights import Weight
    from epctx_core.isolation.proxy import Proxy
    from epctx_core.isolation.remote import Answer, Answers
    from epctx_core.isolation.service import Service
    from epctx_core.plugin import ContextNode, ContextReader, ContextWriter, Payload
    from epctx_core.plugin.hookspecs import Hook
    from epctx_core.plugin.storage import PayloadView
    from epctx_core.registry.records import PluginRecord

_CLAIM, _DESCRIBE = "get_capability", "get_ep_context_nodes"


def encode_claims(
    answer: Sequence[ComputeCapability | Refusal],
    graph: GraphIndex,
    record: PluginRecord,
    tokens: list[object],
) -> list[dict[str, Any]]:
    """Return an EP's claims and refusals as JSON can hold them.

    Args:
        answer: them.
        graph: whose nodes they name.
        record: whose EP it is.
        tokens: those of exact claims are added; the host gets their indices in it.

    Raises:
        PluginError: they name something else than nodes of the graph, or a reason is no text.
    """
    claims: list[dict[str, Any]] = []
    for item in answer:
        if isinstance(item, Refusal):
            reason: object = plain(item.reason)
            if type(reason) is not str:
                what = f"gave a {type(reason).__name__} instead of a text as the reason of a Refusal"
                raise contract_broken(record, _CLAIM, what)
            claims.append({"reason": reason, "nodes": _indices(item.nodes, graph, record)})
        else:
            nodes = _indices(item.nodes, graph, record)
            said = {"fuse": bool(item.fuse), "keep": bool(item.keep_initializers), "exact": bool(item.exact)}
            place = None
            if item.token is not None:
                place = len(tokens)
                tokens.append(item.token)
            claims.append({"nodes": nodes, **said, "token": place})
    return claims


def _indices(nodes: Any, graph: GraphIndex, record: PluginRecord) -> list[int]:
    try:
        nodes = list(nodes)
        indices = [int(node if isinstance(node, int) else node.index) for node in nodes]
    except (TypeError, ValueError, AttributeError):
        raise contract_broken(record, _CLAIM, "names something else than nodes of the graph") from None
    for node in nodes:
        if isinstance(node, Node) and not node.is_in(graph):
            what = f"names node {node.name!r} ({node.op_type}), which is in another graph"
            raise contract_broken(record, _CLAIM, what)
    return indices


def decode_claims(message: Message, graph: GraphSlice) -> list[ComputeCapability | Refusal]:
    """Return what `encode_claims` was given.

    Raises:
        ProtocolError: these are no claims.
    """
    return [_claim(item, graph) for item in message.items("claims")]


def _claim(item: object, graph: GraphSlice) -> ComputeCapability | Refusal:
    if type(item) is not dict:
        raise ProtocolError(f"the claim {item!r:.80}")
    said = Message(item)
    nodes = [graph.node(i) for i in node_indices(item.get("nodes"), len(graph.index.nodes))]
    if "reason" in item:
        return Refusal(said.text("reason"), nodes)
    token = None if item.get("token") is None else said.number("token")
    return ComputeCapability(
        nodes,
        fuse=said.flag("fuse"),
        keep_initializers=said.flag("keep"),
        exact=said.flag("exact"),
        token=token,
    )


def encode_descriptions(
    described: Sequence[EPContextNode],
    partitions: Sequence[GraphPartition],
    payloads: Sequence[RemotePayload],
    record: PluginRecord,
) -> dict[str, Any]:
    """Return what an EP says of its EPContext nodes as JSON can hold it; equal attributes stand there once.

    Raises:
        PluginError: it says something that the contract does not allow, and that only this side can see.
    """
    places = {id(partition): place for place, partition in enumerate(partitions)}
    numbers = {id(payload): payload.number for payload in payloads}
    sets: dict[int, int] = {}
    attributes: list[dict[str, Any]] = []
    nodes = []

    def broken(what: str) -> PluginError:
        return contract_broken(record, _DESCRIBE, what)

    for node in described:
        if id(node.attributes) not in sets:
            sets[id(node.attributes)] = len(attributes)
            attributes.append(_attributes(node.attributes, broken))
        if node.payload is not None and id(node.payload) not in numbers:
            raise broken("gave a payload that did not come from this call's writer")
        if id(node.partition) not in places:
            raise broken("described a partition that it did not compile")
        carried = None if node.payload is None else numbers[id(node.payload)]
        main, said = int(bool(node.main_context)), sets[id(node.attributes)]
        graph_name: object = plain(node.graph_name)
        if graph_name is not None and type(graph_name) is not str:
            raise broken(f"gave a {type(graph_name).__name__} instead of a text as graph_name")
        doc: object = "" if node.doc_string is None else plain(node.doc_string)
        if type(doc) is not str:
            raise broken(f"gave a {type(doc).__name__} instead of a text as doc_string")
        nodes.append([places[id(node.partition)], carried, main, said, doc, graph_name])
    return {"nodes": nodes, "attributes": attributes}


def _attributes(attributes: Mapping[str, Any], broken: Callable[[str], PluginError]) -> dict[str, Any]:
    encoded = {}
    for key, value in attributes.items():
        try:
            if not isinstance(key, str):
                raise TypeError("its name is no text")  # noqa: TRY301 - as of a value
            encoded[plain(key)] = encode_attribute(value)
        except TypeError as error:
            raise broken(f"set {key!r} to a value that the attribute cannot hold ({error})") from error
    return encoded


def decode_descriptions(
    message: Message, partitions: Sequence[GraphPartition | None], payload: Callable[[object], Payload]
) -> list[EPContextNode]:
    """Return what `encode_descriptions` was given.

    Args:
        message: it.
        partitions: all that the EP compiled; None for one that nobody asks about any more.
        payload: gives one by its number.

    Raises:
        ProtocolError: these are no descriptions.
    """
    attributes = [decode_attributes(item) for item in message.items("attributes")]
    nodes = []
    for item in message.items("nodes"):
        if type(item) is not list or len(item) != 6:  # noqa: PLR2004 - as it is sent
            raise ProtocolError(f"the node {item!r:.80}")
        place, carried, main, said, doc, graph_name = item
        whole_numbers([place, main, said])
        texts = type(doc) is str and (graph_name is None or type(graph_name) is str)
        if not texts or place >= len(partitions) or said >= len(attributes):
            raise ProtocolError(f"the node {item!r:.80}")
        partition = partitions[place]
        if partition is None:
            continue
        made = EPContextNode(
            partition,
            None if carried is None else payload(carried),
            main_context=main,
            attributes=attributes[said],
            doc_string=doc,
            graph_name=graph_name,
        )
        nodes.append(made)
    return nodes


class WriterAnswers:
    """What an EP asks for that writes payloads.

    Args:
        writer: takes them.
        root: the main graph of the model that it compiled.
        channel: by which it sends weights that it made.
    """

    def __init__(self, writer: ContextWriter, root: GraphIndex, channel: Channel) -> None:
        self._writer = writer
        self._root = root
        self._channel = channel
        self.payloads: list[Payload] = []

    def by_name(self) -> Answers:
        """Return them by name."""
        return {
            "payload": self._start,
            "write": self._write,
            "write_tensor": self._write_tensor,
            "write_foreign": self._write_foreign,
            "reference": self._reference,
        }

    def payload(self, number: object) -> Payload:
        """Return a payload that was started.

        Raises:
            ProtocolError: none has this number.
        """
        if type(number) is not int or not 0 <= number < len(self.payloads):
            raise ProtocolError(f"the payload {number!r:.80}")
        return self.payloads[number]

    def _start(self, message: Message) -> Answer:
        name = message.head.get("name")
        self.payloads.append(self._writer.payload(None if name is None else message.text("name")))
        return {}, ()

    def _write(self, message: Message) -> Answer:
        return {"offset": self._of(message).write(message.only_blob())}, ()

    def _write_tensor(self, message: Message) -> Answer:
        payload = self._of(message)
        offset = payload.write_tensor(weight_at(self._root, message.head.get("place")))
        return {"offset": offset, "size": payload.size}, ()

    def _write_foreign(self, message: Message) -> Answer:
        payload = self._of(message)
        view: Any = _ForeignTensor(message, self._channel)
        return {"offset": payload.write_tensor(view), "size": payload.size}, ()

    def _reference(self, message: Message) -> Answer:
        return {"name": self._writer.reference(weight_at(self._root, message.head.get("place")))}, ()

    def _of(self, message: Message) -> Payload:
        return self.payload(message.head.get("payload"))


class _ForeignTensor:
    """A weight that an EP made, as far as a payload asks: its bytes are sent when they are read."""

    def __init__(self, message: Message, channel: Channel) -> None:
        self.name = message.text("name")
        self.nbytes = message.number("nbytes")
        self.digest = message.text("digest")
        self._channel = channel

    def chunks(self) -> Iterator[memoryview]:
        """Yield the bytes as they come."""
        left = self.nbytes
        while left > 0:
            self._channel.send({"do": "more"})
            message = self._channel.receive()
            if message.text("say") != "chunk":
                raise ProtocolError("no piece of a weight")
            piece = message.only_blob()
            if not piece.nbytes:
                return
            left -= piece.nbytes
            yield piece


class ReaderAnswers:
    """What an EP asks for that loads nodes.

    Args:
        nodes: what it loads.
        reader: finds the payloads.
        sent: the payloads that this EP has already; kept over calls.
    """

    def __init__(self, nodes: Sequence[ContextNode], reader: ContextReader, sent: list[PayloadView]) -> None:
        self._nodes = nodes
        self._reader = reader
        self._sent = sent

    def by_name(self) -> Answers:
        """Return them by name."""
        return {"load": self._load, "as_file": self._as_file, "source_tensor": self._source_tensor}

    def _load(self, message: Message) -> Answer:
        number = message.number("node")
        if number >= len(self._nodes):
            raise ProtocolError(f"the node {number}")
        payload = self._reader.payload(self._nodes[number])
        for place, known in enumerate(self._sent):
            if known is payload:
                return {"payload": place}, ()
        self._sent.append(payload)
        head = {"payload": len(self._sent) - 1, "name": payload.name, "digest": payload.digest}
        head["verified"] = payload.verified
        mapped = payload.mapped if isinstance(payload, LoadedPayload) else None
        if mapped is not None:
            return {**head, "file": encode_file(mapped)}, ()
        return head, [payload.view]

    def _as_file(self, message: Message) -> Answer:
        number = message.number("payload")
        if number >= len(self._sent):
            raise ProtocolError(f"the payload {number}")
        return {"path": self._sent[number].as_file()}, ()

    def _source_tensor(self, message: Message) -> Answer:
        weight: Any = self._reader.source_tensor(message.text("name"))
        table = WeightsTable([weight])
        return table.head, list(table.blobs())


@dataclass
class Request:
    """A call of a hook as the codecs of its arguments put it together.

    Attributes:
        proxy: who asks.
        hook: what is asked.
        answers: what the host does for the EP meanwhile, by name.
        blobs: the bytes behind the arguments, made when they are sent.
        sizes: the length of each piece of them.
        model: what has to be sent before; None for a model that is there.
        graph, nodes, writer: those among the arguments, which other codecs need.
    """

    proxy: Proxy
    hook: Hook
    answers: dict[str, Callable[[Message], Answer]] = field(default_factory=dict)
    blobs: list[Iterable[Buffer]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    model: GraphIndex | None = None
    graph: GraphSlice = field(init=False)
    nodes: Sequence[ContextNode] = field(init=False)
    writer: WriterAnswers = field(init=False)

    def append(self, blobs: Iterable[Buffer], sizes: Sequence[int]) -> int:
        """Send bytes with the call; return the number of the first piece."""
        first = len(self.sizes)
        self.blobs.append(blobs)
        self.sizes += sizes
        return first


class Codec(NamedTuple):
    """How values of one type travel.

    Arguments: `send(request, value)` gives what JSON can hold, `receive(service, message, said)` the value.
    Answers: `send(service, hook, answer)` gives head and bytes of a message, `receive(request, message)` the answer.
    """

    send: Callable[..., Any]
    receive: Callable[..., Any]


def _send_plain(_request: Request, value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _receive_plain(_service: Service, _message: Message, said: Any) -> Any:
    return MappingProxyType(said) if isinstance(said, dict) else said


def _send_graph(request: Request, graph: GraphSlice) -> dict[str, Any]:
    def convex_groups(message: Message) -> Answer:
        count = len(graph.index.nodes)
        nodes = [graph.node(i) for i in node_indices(message.head.get("nodes"), count)]
        return {"groups": [[n.index for n in group] for group in graph.convex_groups(nodes)]}, ()

    request.graph = graph
    request.answers["convex_groups"] = convex_groups
    request.model = request.proxy.not_yet_shown(graph.root)
    return {"path": graph.index.path, "taken": [index for index, owned in enumerate(graph.taken) if owned]}


def _receive_graph(service: Service, _message: Message, said: Mapping[str, Any]) -> RemoteSlice:
    service.graph = RemoteSlice(service.host, service.model, said)
    return service.graph


def _receive_kernels(service: Service, _message: Message, _said: None) -> RegistryLookup:
    return RegistryLookup(KernelMatcher(None), service.graph.index.types)


def _send_model(request: Request, model: onnx.ModelProto) -> int:
    data = model.SerializeToString()
    return request.append([data], [len(data)])


def _receive_model(_service: Service, message: Message, said: int) -> onnx.ModelProto:
    model: onnx.ModelProto = onnx.ModelProto.FromString(bytes(message.blobs[said]))
    return model


def _send_weights(request: Request, weights: Mapping[str, Weight]) -> dict[str, Any]:
    table = WeightsTable(weights.values())
    return {**table.head, "first": request.append(table.blobs(), table.sizes)}


def _receive_weights(_service: Service, message: Message, said: Mapping[str, Any]) -> dict[str, Weight]:
    weights = decode_weights(Message(said), message.blobs[said["first"] :])
    return {weight.name: weight for weight in weights}


def _send_partitions(request: Request, partitions: Sequence[GraphPartition]) -> dict[str, Any]:
    request.proxy.compiled += partitions
    return {"items": encode_partitions(partitions), "policy": request.proxy.remote.policy()}


def _receive_partitions(service: Service, _message: Message, said: Mapping[str, Any]) -> list[GraphPartition]:
    service.set_policy(said["policy"])
    partitions = service.model.partitions(said["items"], service.record.name, service.tokens)
    service.partitions += partitions
    return partitions


def _send_writer(request: Request, writer: ContextWriter) -> dict[str, Any]:
    request.writer = WriterAnswers(writer, request.proxy.root, request.proxy.remote.channel)
    request.answers |= request.writer.by_name()
    return {"final": writer.final, "graphs_by_model": writer.graphs_by_model}


def _receive_writer(service: Service, _message: Message, said: Mapping[str, Any]) -> RemoteWriter:
    service.writer = RemoteWriter(service.host, service.model, said)
    return service.writer


def _send_nodes(request: Request, nodes: Sequence[ContextNode]) -> dict[str, Any]:
    request.nodes = nodes
    return {"items": encode_nodes(nodes), "policy": request.proxy.remote.policy()}


def _receive_nodes(service: Service, _message: Message, said: Mapping[str, Any]) -> list[ContextNode]:
    service.set_policy(said["policy"])
    service.nodes = decode_nodes(said["items"])
    return service.nodes


def _send_reader(request: Request, reader: ContextReader) -> None:
    request.answers |= ReaderAnswers(request.nodes, reader, request.proxy.sent_payloads).by_name()


def _receive_reader(service: Service, _message: Message, _said: None) -> RemoteReader:
    return RemoteReader(service.host, service.nodes, service.payloads)


_PLAIN = Codec(_send_plain, _receive_plain)
ARGUMENTS: Mapping[str, Codec] = {
    "str": _PLAIN,
    "int": _PLAIN,
    "Mapping[str, str]": _PLAIN,
    "GraphView": Codec(_send_graph, _receive_graph),
    # Kernels are functions: an EP that has any is not asked for claims elsewhere.
    "KernelLookup": Codec(lambda _request, _value: None, _receive_kernels),
    "onnx.ModelProto": Codec(_send_model, _receive_model),
    "Mapping[str, TensorView]": Codec(_send_weights, _receive_weights),
    "Sequence[Partition]": Codec(_send_partitions, _receive_partitions),
    "ContextWriter": Codec(_send_writer, _receive_writer),
    "Sequence[ContextNode]": Codec(_send_nodes, _receive_nodes),
    "ContextReader": Codec(_send_reader, _receive_reader),
}
"""By the type of an argument, as the specification of a hook writes it."""


def _answer_claims(service: Service, _hook: Hook, answer: Sequence[ComputeCapability | Refusal]) -> Answer:
    return {"claims": encode_claims(answer, service.graph.index, service.record, service.tokens)}, ()


def _answer_model(_service: Service, _hook: Hook, answer: onnx.ModelProto | None) -> Answer:
    return {}, [] if answer is None else [answer.SerializeToString()]


def _decode_model(_request: Request, message: Message) -> onnx.ModelProto | None:
    if not message.blobs:
        return None
    try:
        found: onnx.ModelProto = onnx.ModelProto.FromString(bytes(message.only_blob()))
    except DecodeError:
        raise ProtocolError("no model") from None
    return found


def _answer_runnables(service: Service, hook: Hook, answer: Sequence[CompiledPartition]) -> Answer:
    """Keep what can run; the host gets a number for each."""
    first = len(service.runnables)
    service.runnables += [item for item in answer if isinstance(item, CompiledPartition)]
    check_answer(service.record, hook, answer)
    runs = [runnable.run is not None for runnable in answer]
    return {"runnables": list(range(first, len(service.runnables))), "runs": runs}, ()


def _answer_descriptions(service: Service, _hook: Hook, answer: Sequence[EPContextNode]) -> Answer:
    payloads = service.writer.payloads
    for payload in payloads:
        payload.flush()
    return encode_descriptions(answer, service.partitions, payloads, service.record), ()


ANSWERS: Mapping[str, Codec] = {
    "None": Codec(lambda _service, _hook, _answer: ({}, ()), lambda _request, _message: None),
    "Sequence[ComputeCapability | Refusal]": Codec(
        _answer_claims, lambda request, message: decode_claims(message, request.graph)
    ),
    "onnx.ModelProto | None": Codec(_answer_model, _decode_model),
    "Sequence[CompiledPartition]": Codec(
        _answer_runnables, lambda request, message: request.proxy.runnables(message)
    ),
    "Sequence[EPContextNode]": Codec(
        _answer_descriptions,
        lambda request, message: decode_descriptions(message, request.proxy.compiled, request.writer.payload),
    ),
}
"""By the type of an answer, as the specification of a hook writes it."""
