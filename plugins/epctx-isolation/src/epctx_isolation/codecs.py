"""Codecs for the types of the contract, between a host and the process of an EP.

`ARGUMENTS` and `RESULTS` have a codec for each type that the specifications of hooks
name, so a hook whose types are all here needs nothing but its row in the table of
hooks. The host's core validates what an EP gives, as without isolation; nothing that
comes from its process is trusted. Weights of the model are never sent back: the EP
names them, and the host copies them from their file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
from google.protobuf.message import DecodeError

from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    EPContextNode,
    Refusal,
)
from epctx_isolation import model_copy
from epctx_isolation.channel import Channel, Message, ProtocolError
from epctx_isolation.values import (
    decode_attribute,
    decode_attributes,
    decode_nodes,
    encode_attribute,
    encode_foreign,
    encode_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.ext import GraphIndex, GraphPartition, GraphSlice
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
    from epctx_isolation.remote import Handlers, Reply
    from epctx_isolation.service import Service

_UNKNOWN = -1
"""The number of a partition that was not compiled, or a payload that was not
started.
"""


def decode_claims(
    message: Message, view: GraphSlice
) -> list[ComputeCapability | Refusal]:
    """Return the claims and refusals of an EP for a graph.

    Raises:
        ProtocolError: the message does not say.
    """
    view_nodes: Mapping[int, Any] = {node.index: node for node in view.nodes}

    def node(reference: object) -> Any:
        """Return a node; the core rejects what is not one of the view's."""
        if type(reference) is int:
            return view_nodes.get(reference, reference)
        return (
            object()
            if reference is None
            else model_copy.find_node(view.root, *_check_row(reference, 2))
        )

    claims: list[ComputeCapability | Refusal] = []
    for item in message.items("claims"):
        if type(item) is not dict:
            raise ProtocolError(f"the claim {item!r:.80}")
        claim = Message(item)
        nodes = [node(reference) for reference in claim.items("nodes")]
        if "reason" in item:
            claims.append(Refusal(decode_attribute(item["reason"]), nodes))
        else:
            claims.append(
                ComputeCapability(
                    nodes,
                    keep_nodes=claim.flag("stay"),
                    keep_initializers=claim.flag("keep"),
                    exact=claim.flag("exact"),
                    token=None if item.get("token") is None else claim.number("token"),
                    metadata=decode_attributes(item["metadata"]),
                )
            )
    return claims


def _check_row(value: object, length: int) -> list[Any]:
    if type(value) is not list or len(value) != length:
        raise ProtocolError(f"{value!r:.80} is not a row of {length} values")
    return value


def decode_descriptions(
    message: Message,
    partitions: Sequence[Partition | None],
    payloads: Sequence[Payload],
) -> list[EPContextNode]:
    """Return an EP's descriptions of its EPContext nodes.

    Args:
        message: the descriptions.
        partitions: all that the EP compiled; None for one whose description is not
            needed any more.
        payloads: all that it started.

    Raises:
        ProtocolError: these are not descriptions.
    """
    attributes = [decode_attributes(item) for item in message.items("attributes")]
    nodes = []
    for item in message.items("nodes"):
        partition_number, payload, main, attribute_set, *texts, shapes = _check_row(
            item, 8
        )
        doc, graph_name, compatibility_info = map(decode_attribute, texts)
        partition = _look_up(partitions, partition_number)
        if partition is not None:
            node = EPContextNode(
                partition,
                None if payload is None else _look_up(payloads, payload),
                main_context=_look_up((0, 1), main),
                attributes=_look_up(attributes, attribute_set),
                doc_string=doc,
                graph_name=graph_name,
                compatibility_info=compatibility_info,
                shapes=decode_attributes(shapes),
            )
            nodes.append(node)
    return nodes


def _look_up(values: Sequence[Any], number: object) -> Any:
    """Return the value of a number; a new object for `_UNKNOWN`, which the core
    rejects.
    """
    if type(number) is not int or not _UNKNOWN <= number < len(values):
        raise ProtocolError(f"{number!r:.80} of {len(values)}")
    return object() if number == _UNKNOWN else values[number]


def writer_handlers(
    writer: ContextWriter, root: GraphIndex, channel: Channel, payloads: list[Payload]
) -> Handlers:
    """Return the handlers for an EP that writes payloads; `payloads` gets those that it
    starts.
    """

    def start(message: Message) -> Reply:
        payloads.append(
            writer.payload(
                None if message.head.get("name") is None else message.text("name")
            )
        )
        return {}, ()

    def payload_of(message: Message) -> Payload:
        return _look_up(payloads, message.number("payload"))  # type: ignore[no-any-return]

    def weight_of(message: Message) -> TensorView:
        return model_copy.find_weight(root, *_check_row(message.head.get("weight"), 2))

    def write(message: Message) -> Reply:
        return {"offset": payload_of(message).write(message.only_blob())}, ()

    def write_tensor(message: Message) -> Reply:
        payload = payload_of(message)
        view: Any = (
            weight_of(message)
            if "weight" in message.head
            else _ForeignTensor(message, channel)
        )
        return {"offset": payload.write_tensor(view), "size": payload.size}, ()

    def reference(message: Message) -> Reply:
        weight = weight_of(message)
        return {"name": writer.reference(weight)}, ()

    return {
        "payload": start,
        "write": write,
        "write_tensor": write_tensor,
        "reference": reference,
    }


class _ForeignTensor:
    """A weight that an EP made, for a payload: its bytes are sent when they are
    read.
    """

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
                raise ProtocolError("not a chunk of a weight")
            chunk = message.only_blob()
            if not chunk.nbytes:
                return
            left -= chunk.nbytes
            yield chunk


def _make_reader_handlers(
    nodes: Sequence[ContextNode], reader: ContextReader, sent: list[PayloadView]
) -> Handlers:
    """Return the handlers for an EP that loads nodes; `sent` has the payloads that it
    got, and is kept over calls.
    """

    def load(message: Message) -> Reply:
        payload = reader.payload(_look_up(nodes, message.number("node")))
        for number, sent_payload in enumerate(sent):
            if sent_payload is payload:
                return {"payload": number}, ()
        sent.append(payload)
        head, _, sizes = model_copy.pack_payload(payload)
        facts = {
            "payload": len(sent) - 1,
            "digest": payload.digest,
            "verified": payload.verified,
            "is_file": payload.is_file,
        }
        return {**head, **facts}, [payload.view] * len(sizes)

    def as_file(message: Message) -> Reply:
        return {"path": _look_up(sent, message.number("payload")).as_file()}, ()

    def source_tensor(message: Message) -> Reply:
        head, portions, sizes = model_copy.pack_weights(
            [reader.source_tensor(message.text("name"))]
        )
        return head, [b"".join(portions)] * len(sizes)

    return {"load": load, "as_file": as_file, "source_tensor": source_tensor}


@dataclass
class Request:
    """Call of a hook, put together by the codecs of its arguments.

    Attributes:
        proxy: the EP's in this process.
        handlers: serve the EP during the call, by the name of its request.
        blobs: the bytes behind the arguments, made when they are sent.
        sizes: the length of each blob.
        model: sent before the call; None for a model that the other process has.
        graph, nodes, payloads: arguments, and payloads that were started, for other
            codecs.
    """

    proxy: Proxy
    handlers: Handlers = field(default_factory=dict)
    blobs: list[Iterable[Buffer]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    model: GraphIndex | None = None
    payloads: list[Payload] = field(default_factory=list)
    graph: GraphSlice = field(init=False)
    nodes: Sequence[ContextNode] = field(init=False)

    def append(self, blobs: Iterable[Buffer], sizes: Sequence[int]) -> int:
        """Send bytes with the call; return the number of the first blob."""
        first = len(self.sizes)
        self.blobs.append(blobs)
        self.sizes += sizes
        return first


class Codec(NamedTuple):
    """Encoder and decoder of one type.

    Of an argument: `send(request, value)` returns plain values,
    `receive(service, message, plain)` the argument. Of a result:
    `send(service, result)` returns head and bytes of a message,
    `receive(request, message)` the result.
    """

    send: Callable[..., Any]
    receive: Callable[..., Any]


def _send_plain(_request: Request, value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _receive_plain(_service: Service, _message: Message, plain: Any) -> Any:
    return MappingProxyType(plain) if isinstance(plain, dict) else plain


def _send_graph(request: Request, graph: GraphSlice) -> dict[str, Any]:
    request.graph = graph
    if request.proxy.set_model(graph.root):
        request.model = graph.root
    path = graph.index.path

    def convex_groups(message: Message) -> Reply:
        nodes = [
            model_copy.find_node(graph.root, path, index)
            for index in message.numbers("nodes")
        ]
        return {
            "groups": [[n.index for n in group] for group in graph.convex_groups(nodes)]
        }, ()

    request.handlers["convex_groups"] = convex_groups
    return model_copy.describe_view(graph)


def _receive_graph(
    service: Service, _message: Message, plain: Mapping[str, Any]
) -> GraphView:
    service.graph = service.model.view(
        plain,
        lambda nodes: service.host.ask("convex_groups", {"nodes": nodes}).items(
            "groups"
        ),
    )
    return service.graph


def _send_model(request: Request, model: onnx.ModelProto) -> int:
    data = model.SerializeToString()
    return request.append([data], [len(data)])


def _send_weights(
    request: Request, weights: Mapping[str, TensorView]
) -> dict[str, Any]:
    head, portions, sizes = model_copy.pack_weights(weights.values())
    return {**head, "first": request.append(portions, sizes)}


def _receive_weights(
    _service: Service, message: Message, plain: Mapping[str, Any]
) -> dict[str, TensorView]:
    return {
        w.name: w
        for w in model_copy.unpack_weights(plain, message.blobs[plain["first"] :])
    }


def _send_partitions(
    request: Request, partitions: Sequence[GraphPartition]
) -> list[dict[str, Any]]:
    request.proxy.compiled += partitions
    return model_copy.describe_partitions(partitions)


def _receive_partitions(
    service: Service, _message: Message, plain: Sequence[Any]
) -> list[Partition]:
    partitions = service.model.partitions(plain, service.record.name, service.tokens)
    service.partitions += partitions
    return partitions


def _send_writer(request: Request, writer: ContextWriter) -> dict[str, Any]:
    proxy = request.proxy
    request.handlers |= writer_handlers(
        writer, proxy.model, proxy.remote.channel, request.payloads
    )
    return {"final": writer.final, "graphs_by_model": writer.graphs_by_model}


def _receive_writer(
    service: Service, _message: Message, plain: Mapping[str, Any]
) -> model_copy.RemoteWriter:
    service.writer = model_copy.RemoteWriter(service.host, service.model, plain)
    return service.writer


def _send_nodes(request: Request, nodes: Sequence[ContextNode]) -> list[dict[str, Any]]:
    request.nodes = nodes
    return encode_nodes(nodes)


def _receive_nodes(
    service: Service, _message: Message, plain: Sequence[Any]
) -> list[ContextNode]:
    service.nodes = decode_nodes(plain)
    return service.nodes


def _send_reader(request: Request, reader: ContextReader) -> None:
    request.handlers |= _make_reader_handlers(
        request.nodes, reader, request.proxy.sent_payloads
    )


_PLAIN = Codec(_send_plain, _receive_plain)
ARGUMENTS: Mapping[str, Codec] = {
    "str": _PLAIN,
    "int": _PLAIN,
    "Mapping[str, str]": _PLAIN,
    "GraphView": Codec(_send_graph, _receive_graph),
    "onnx.ModelProto": Codec(
        _send_model,
        lambda _service, message, plain: onnx.ModelProto.FromString(
            bytes(message.blobs[plain])
        ),
    ),
    "Mapping[str, TensorView]": Codec(_send_weights, _receive_weights),
    "Sequence[Partition]": Codec(_send_partitions, _receive_partitions),
    "ContextWriter": Codec(_send_writer, _receive_writer),
    "Sequence[ContextNode]": Codec(_send_nodes, _receive_nodes),
    "ContextReader": Codec(
        _send_reader,
        lambda service, _message, _plain: model_copy.RemoteReader(
            service.host, service.nodes, service.payloads
        ),
    ),
}
"""By the type of an argument, as the specification of a hook writes it."""


def _encode_claims(
    service: Service, result: Sequence[ComputeCapability | Refusal]
) -> Reply:
    """Keep the tokens of exact claims; the host gets their numbers."""
    claims: list[dict[str, Any]] = []
    for item in result:
        try:
            nodes = service.model.node_references(service.graph, item.nodes)
        except TypeError:
            nodes = [None]  # the core says that these are not nodes
        if isinstance(item, Refusal):
            claims.append({"reason": encode_attribute(item.reason), "nodes": nodes})
        else:
            flags = {
                "stay": bool(item.keep_nodes),
                "keep": bool(item.keep_initializers),
                "exact": bool(item.exact),
            }
            token = None if item.token is None else len(service.tokens)
            service.tokens += () if item.token is None else (item.token,)
            metadata = [
                [encode_attribute(key), encode_attribute(text)]
                for key, text in item.metadata.items()
            ]
            claims.append(
                {"nodes": nodes, **flags, "token": token, "metadata": metadata}
            )
    return {"claims": claims}, ()


def _encode_model(_service: Service, result: onnx.ModelProto | None) -> Reply:
    return {}, [] if result is None else [result.SerializeToString()]


def _decode_model(_request: Request, message: Message) -> onnx.ModelProto | None:
    if not message.blobs:
        return None
    try:
        return onnx.ModelProto.FromString(bytes(message.only_blob()))  # type: ignore[no-any-return]
    except DecodeError:
        raise ProtocolError("not a model") from None


def _encode_runnables(service: Service, result: Sequence[CompiledPartition]) -> Reply:
    """Keep the runnables; the host gets the number of the first."""
    first = len(service.runnables)
    service.runnables += result
    service.session.keep(result)
    runs = [
        item.run is not None
        if isinstance(item, CompiledPartition)
        else encode_foreign(item)
        for item in result
    ]
    return {"first": first, "runnables": runs}, ()


def _encode_descriptions(service: Service, result: Sequence[EPContextNode]) -> Reply:
    """Describe nodes by numbers; attributes that several nodes share are sent once."""
    payloads = service.writer.payloads
    for payload in payloads:
        payload.flush()
    partitions = {
        id(partition): number for number, partition in enumerate(service.partitions)
    }
    numbers = {id(None): None, **{id(payload): payload.number for payload in payloads}}
    sets: dict[int, int] = {}
    attributes: list[Any] = []
    nodes = []
    for node in result:
        if id(node.attributes) not in sets:
            sets[id(node.attributes)] = len(attributes)
            attributes.append(_encode_mapping(node.attributes))
        nodes.append(
            [
                partitions.get(id(node.partition), _UNKNOWN),
                numbers.get(id(node.payload), _UNKNOWN),
                int(bool(node.main_context)),
                sets[id(node.attributes)],
                encode_attribute(node.doc_string),
                encode_attribute(node.graph_name),
                encode_attribute(node.compatibility_info),
                _encode_mapping(node.shapes),
            ]
        )
    return {"nodes": nodes, "attributes": attributes}, ()


def _encode_mapping(values: Mapping[str, Any]) -> list[Any]:
    return [
        [encode_attribute(key), encode_attribute(value)]
        for key, value in values.items()
    ]


RESULTS: Mapping[str, Codec] = {
    "None": Codec(lambda _service, _result: ({}, ()), lambda _request, _message: None),
    "Sequence[ComputeCapability | Refusal]": Codec(
        _encode_claims, lambda request, message: decode_claims(message, request.graph)
    ),
    "onnx.ModelProto | None": Codec(_encode_model, _decode_model),
    "Sequence[CompiledPartition]": Codec(
        _encode_runnables, lambda request, message: request.proxy.runnables(message)
    ),
    "Sequence[EPContextNode]": Codec(
        _encode_descriptions,
        lambda request, message: decode_descriptions(
            message, request.proxy.compiled, request.payloads
        ),
    ),
}
"""By the type of a result, as the specification of a hook writes it."""
