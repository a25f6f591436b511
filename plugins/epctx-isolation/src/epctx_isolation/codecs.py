"""How each type of the contract travels between a host and the process of an EP.

`ARGUMENTS` and `ANSWERS` have a codec for each type that the specifications of hooks name, so that a hook whose
types are all here travels by its row of the table of hooks alone. What an EP gives is judged by the host's core, as without
isolation; nothing that comes from its process is trusted. Weights of the model are never sent back: the EP names them, and
they are written from where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
from google.protobuf.message import DecodeError

from epctx_core.ext import pack_payload, pack_weights, unpack_weights
from epctx_core.plugin import CompiledPartition, ComputeCapability, EPContextNode, Refusal
from epctx_isolation.channel import Channel, Message, ProtocolError
from epctx_isolation.stand_ins import NoKernels, RemoteReader, RemoteWriter
from epctx_isolation.values import (
    decode_attribute,
    decode_attributes,
    decode_nodes,
    encode_attribute,
    encode_nodes,
    foreign,
)

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.ext import SentModel
    from epctx_core.plugin import (
        ContextNode,
        ContextReader,
        ContextWriter,
        GraphView,
        Partition,
        Payload,
        PayloadView,
        TensorView,
    )
    from epctx_isolation.proxy import Proxy
    from epctx_isolation.remote import Answer, Answers
    from epctx_isolation.service import Service

_UNKNOWN = -1
"""In the place of a partition that was not compiled, or a payload that was not started."""


def decode_claims(message: Message, view: GraphView, model: SentModel) -> list[ComputeCapability | Refusal]:
    """Return what an EP claims and refuses of a graph.

    Raises:
        ProtocolError: the message does not say.
    """
    own: Mapping[int, Any] = {node.index: node for node in view.nodes}

    def node(called: object) -> Any:
        """Return a node; what is none of the view's the core has to judge."""
        if type(called) is int:
            return own.get(called, called)
        return object() if called is None else _there(model.node, *_row(called, 2))

    claims: list[ComputeCapability | Refusal] = []
    for item in message.items("claims"):
        if type(item) is not dict:
            raise ProtocolError(f"the claim {item!r:.80}")
        said = Message(item)
        nodes = [node(called) for called in said.items("nodes")]
        if "reason" in item:
            claims.append(Refusal(decode_attribute(item["reason"]), nodes))
        else:
            claims.append(
                ComputeCapability(
                    nodes,
                    fuse=said.flag("fuse"),
                    keep_initializers=said.flag("keep"),
                    exact=said.flag("exact"),
                    token=None if item.get("token") is None else said.number("token"),
                )
            )
    return claims


def _there(find: Callable[..., Any], *names: object) -> Any:
    """Return a part of the model; what its process calls by another's name is none."""
    found = find(*names)
    if found is None:
        raise ProtocolError(f"{names!r:.80} lead to nothing in the model")
    return found


def _row(value: object, length: int) -> list[Any]:
    if type(value) is not list or len(value) != length:
        raise ProtocolError(f"{value!r:.80} are not {length} values")
    return value


def decode_descriptions(
    message: Message, partitions: Sequence[Partition | None], payloads: Sequence[Payload]
) -> list[EPContextNode]:
    """Return what an EP says of its EPContext nodes.

    Args:
        message: it.
        partitions: all that the EP compiled; None for one that nobody asks about any more.
        payloads: all that it started.

    Raises:
        ProtocolError: these are no descriptions.
    """
    attributes = [decode_attributes(item) for item in message.items("attributes")]
    nodes = []
    for item in message.items("nodes"):
        place, carried, main, said, doc, graph_name = _row(item, 6)
        partition = _numbered(partitions, place)
        if partition is not None:
            made = EPContextNode(
                partition,
                None if carried is None else _numbered(payloads, carried),
                main_context=_numbered((0, 1), main),
                attributes=_numbered(attributes, said),
                doc_string=decode_attribute(doc),
                graph_name=decode_attribute(graph_name),
            )
            nodes.append(made)
    return nodes


def _numbered(values: Sequence[Any], number: object) -> Any:
    """Return one of the values; an object that is none of them for what the EP got from nobody."""
    if type(number) is not int or not _UNKNOWN <= number < len(values):
        raise ProtocolError(f"{number!r:.80} of {len(values)}")
    return object() if number == _UNKNOWN else values[number]


class WriterAnswers:
    """What an EP asks for that writes payloads.

    Args:
        writer: takes them.
        model: what it compiled.
        channel: by which it sends weights that it made.
    """

    def __init__(self, writer: ContextWriter, model: SentModel, channel: Channel) -> None:
        self._writer = writer
        self._model = model
        self._channel = channel
        self.payloads: list[Payload] = []

    def by_name(self) -> Answers:
        """Return them by name."""
        return {
            "payload": self._start,
            "write": self._write,
            "write_tensor": self._write_tensor,
            "reference": self._reference,
        }

    def _start(self, message: Message) -> Answer:
        name = message.head.get("name")
        self.payloads.append(self._writer.payload(None if name is None else message.text("name")))
        return {}, ()

    def _write(self, message: Message) -> Answer:
        return {"offset": self._of(message).write(message.only_blob())}, ()

    def _write_tensor(self, message: Message) -> Answer:
        payload = self._of(message)
        view: Any = (
            self._weight(message) if "place" in message.head else _ForeignTensor(message, self._channel)
        )
        return {"offset": payload.write_tensor(view), "size": payload.size}, ()

    def _reference(self, message: Message) -> Answer:
        weight = self._weight(message)
        return {"name": self._writer.reference(weight)}, ()

    def _of(self, message: Message) -> Payload:
        payload: Payload = _numbered(self.payloads, message.number("payload"))
        return payload

    def _weight(self, message: Message) -> TensorView:
        weight: TensorView = _there(self._model.weight, *_row(message.head.get("place"), 2))
        return weight


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


def _reader_answers(nodes: Sequence[ContextNode], reader: ContextReader, sent: list[PayloadView]) -> Answers:
    """Return what an EP asks for that loads nodes; `sent` has the payloads that it got, and is kept over calls."""

    def load(message: Message) -> Answer:
        payload = reader.payload(_numbered(nodes, message.number("node")))
        for place, known in enumerate(sent):
            if known is payload:
                return {"payload": place}, ()
        sent.append(payload)
        head, _, sizes = pack_payload(payload)
        facts = {"payload": len(sent) - 1, "digest": payload.digest, "verified": payload.verified}
        return {**head, **facts}, [payload.view] * len(sizes)

    def as_file(message: Message) -> Answer:
        return {"path": _numbered(sent, message.number("payload")).as_file()}, ()

    def source_tensor(message: Message) -> Answer:
        head, portions, sizes = pack_weights([reader.source_tensor(message.text("name"))])
        return head, [b"".join(portions)] * len(sizes)

    return {"load": load, "as_file": as_file, "source_tensor": source_tensor}


@dataclass
class Request:
    """A call of a hook as the codecs of its arguments put it together.

    Attributes:
        proxy: who asks.
        answers: what the host does for the EP meanwhile, by name.
        blobs: the bytes behind the arguments, made when they are sent.
        sizes: the length of each piece of them.
        model: what has to be sent before; None for a model that is there.
        graph, nodes, writer: those among the arguments, which other codecs need.
    """

    proxy: Proxy
    answers: dict[str, Callable[[Message], Answer]] = field(default_factory=dict)
    blobs: list[Iterable[Buffer]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    model: SentModel | None = None
    graph: GraphView = field(init=False)
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
    Answers: `send(service, answer)` gives head and bytes of a message, `receive(request, message)` the answer.
    """

    send: Callable[..., Any]
    receive: Callable[..., Any]


def _send_plain(_request: Request, value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _receive_plain(_service: Service, _message: Message, said: Any) -> Any:
    return MappingProxyType(said) if isinstance(said, dict) else said


def _send_graph(request: Request, graph: GraphView) -> dict[str, Any]:
    request.graph = graph
    request.model = request.proxy.shows(graph)
    model = request.proxy.model
    said = model.view(graph)

    def convex_groups(message: Message) -> Answer:
        nodes = [_there(model.node, said["path"], index) for index in message.numbers("nodes")]
        return {"groups": [[n.index for n in group] for group in graph.convex_groups(nodes)]}, ()

    request.answers["convex_groups"] = convex_groups
    return said


def _receive_graph(service: Service, _message: Message, said: Mapping[str, Any]) -> GraphView:
    service.graph = service.model.view(
        said, lambda nodes: service.host.ask("convex_groups", {"nodes": nodes}).items("groups")
    )
    return service.graph


def _send_model(request: Request, model: onnx.ModelProto) -> int:
    data = model.SerializeToString()
    return request.append([data], [len(data)])


def _receive_model(_service: Service, message: Message, said: int) -> onnx.ModelProto:
    model: onnx.ModelProto = onnx.ModelProto.FromString(bytes(message.blobs[said]))
    return model


def _send_weights(request: Request, weights: Mapping[str, TensorView]) -> dict[str, Any]:
    head, portions, sizes = pack_weights(weights.values())
    return {**head, "first": request.append(portions, sizes)}


def _receive_weights(_service: Service, message: Message, said: Mapping[str, Any]) -> dict[str, TensorView]:
    return {weight.name: weight for weight in unpack_weights(said, message.blobs[said["first"] :])}


def _send_partitions(request: Request, partitions: Sequence[Partition]) -> list[dict[str, Any]]:
    request.proxy.compiled += partitions
    return request.proxy.model.partitions(partitions)


def _receive_partitions(service: Service, _message: Message, said: Sequence[Any]) -> list[Partition]:
    partitions = service.model.partitions(said, service.instance.record.name, service.tokens)
    service.partitions += partitions
    return partitions


def _send_writer(request: Request, writer: ContextWriter) -> dict[str, Any]:
    proxy = request.proxy
    request.writer = WriterAnswers(writer, proxy.model, proxy.remote.channel)
    request.answers |= request.writer.by_name()
    return {"final": writer.final, "graphs_by_model": writer.graphs_by_model}


def _receive_writer(service: Service, _message: Message, said: Mapping[str, Any]) -> RemoteWriter:
    service.writer = RemoteWriter(service.host, service.model, said)
    return service.writer


def _send_nodes(request: Request, nodes: Sequence[ContextNode]) -> list[dict[str, Any]]:
    request.nodes = nodes
    return encode_nodes(nodes)


def _receive_nodes(service: Service, _message: Message, said: Sequence[Any]) -> list[ContextNode]:
    service.nodes = decode_nodes(said)
    return service.nodes


def _send_reader(request: Request, reader: ContextReader) -> None:
    request.answers |= _reader_answers(request.nodes, reader, request.proxy.sent_payloads)


def _receive_reader(service: Service, _message: Message, _said: None) -> RemoteReader:
    return RemoteReader(service.host, service.nodes, service.payloads)


_PLAIN = Codec(_send_plain, _receive_plain)
ARGUMENTS: Mapping[str, Codec] = {
    "str": _PLAIN,
    "int": _PLAIN,
    "Mapping[str, str]": _PLAIN,
    "GraphView": Codec(_send_graph, _receive_graph),
    # Kernels are functions: an EP that has any is not asked for claims elsewhere.
    "KernelLookup": Codec(lambda _request, _value: None, lambda _service, _message, _said: NoKernels()),
    "onnx.ModelProto": Codec(_send_model, _receive_model),
    "Mapping[str, TensorView]": Codec(_send_weights, _receive_weights),
    "Sequence[Partition]": Codec(_send_partitions, _receive_partitions),
    "ContextWriter": Codec(_send_writer, _receive_writer),
    "Sequence[ContextNode]": Codec(_send_nodes, _receive_nodes),
    "ContextReader": Codec(_send_reader, _receive_reader),
}
"""By the type of an argument, as the specification of a hook writes it."""


def _answer_claims(service: Service, answer: Sequence[ComputeCapability | Refusal]) -> Answer:
    """Keep the tokens of exact claims; the host gets their numbers."""
    claims: list[dict[str, Any]] = []
    for item in answer:
        try:
            nodes = service.model.calls(service.graph, item.nodes)
        except TypeError:
            nodes = [None]  # the core says that these are no nodes
        if isinstance(item, Refusal):
            claims.append({"reason": encode_attribute(item.reason), "nodes": nodes})
        else:
            said = {"fuse": bool(item.fuse), "keep": bool(item.keep_initializers), "exact": bool(item.exact)}
            token = None if item.token is None else len(service.tokens)
            service.tokens += () if item.token is None else (item.token,)
            claims.append({"nodes": nodes, **said, "token": token})
    return {"claims": claims}, ()


def _answer_model(_service: Service, answer: onnx.ModelProto | None) -> Answer:
    return {}, [] if answer is None else [answer.SerializeToString()]


def _decode_model(_request: Request, message: Message) -> onnx.ModelProto | None:
    if not message.blobs:
        return None
    try:
        found: onnx.ModelProto = onnx.ModelProto.FromString(bytes(message.only_blob()))
    except DecodeError:
        raise ProtocolError("no model") from None
    return found


def _answer_runnables(service: Service, answer: Sequence[CompiledPartition]) -> Answer:
    """Keep what can run; the host gets the number of the first."""
    first = len(service.runnables)
    service.runnables += answer
    service.instance.keep(answer)
    runs = [item.run is not None if isinstance(item, CompiledPartition) else foreign(item) for item in answer]
    return {"first": first, "runnables": runs}, ()


def _answer_descriptions(service: Service, answer: Sequence[EPContextNode]) -> Answer:
    """Describe nodes by numbers; attributes that several have stand there once."""
    payloads = service.writer.payloads
    for payload in payloads:
        payload.flush()
    places = {id(partition): place for place, partition in enumerate(service.partitions)}
    numbers = {id(None): None, **{id(payload): payload.number for payload in payloads}}
    sets: dict[int, int] = {}
    attributes: list[Any] = []
    nodes = []
    for node in answer:
        if id(node.attributes) not in sets:
            sets[id(node.attributes)] = len(attributes)
            pairs = node.attributes.items()
            attributes.append([[encode_attribute(key), encode_attribute(value)] for key, value in pairs])
        nodes.append(
            [
                places.get(id(node.partition), _UNKNOWN),
                numbers.get(id(node.payload), _UNKNOWN),
                int(bool(node.main_context)),
                sets[id(node.attributes)],
                encode_attribute(node.doc_string),
                encode_attribute(node.graph_name),
            ]
        )
    return {"nodes": nodes, "attributes": attributes}, ()


ANSWERS: Mapping[str, Codec] = {
    "None": Codec(lambda _service, _answer: ({}, ()), lambda _request, _message: None),
    "Sequence[ComputeCapability | Refusal]": Codec(
        _answer_claims, lambda request, message: decode_claims(message, request.graph, request.proxy.model)
    ),
    "onnx.ModelProto | None": Codec(_answer_model, _decode_model),
    "Sequence[CompiledPartition]": Codec(
        _answer_runnables, lambda request, message: request.proxy.runnables(message)
    ),
    "Sequence[EPContextNode]": Codec(
        _answer_descriptions,
        lambda request, message: decode_descriptions(
            message, request.proxy.compiled, request.writer.payloads
        ),
    ),
}
"""By the type of an answer, as the specification of a hook writes it."""
