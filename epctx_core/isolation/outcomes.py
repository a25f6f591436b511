"""What an EP says of nodes, as messages: its claims, and its descriptions of EPContext nodes.

The EP's side finds mistakes of the EP and names them; the host's side trusts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epctx_core.graph.view import Node
from epctx_core.isolation.channel import Message, ProtocolError, whole_numbers
from epctx_core.isolation.models import node_indices
from epctx_core.isolation.values import decode_attributes, encode_attribute
from epctx_core.plugin import ComputeCapability, EPContextNode, Refusal
from epctx_core.registry.guard import contract_broken

if TYPE_CHECKING:
    from epctx_core.errors import PluginError
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.slice import GraphSlice
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.isolation.stand_ins import RemotePayload
    from epctx_core.plugin import Payload
    from epctx_core.registry.records import PluginRecord

_CLAIM, _DESCRIBE = "get_capability", "get_ep_context_nodes"


def encode_claims(
    answer: Sequence[object], graph: GraphIndex, record: PluginRecord, tokens: list[object]
) -> list[dict[str, Any]]:
    """Return an EP's claims and refusals as JSON can hold them.

    Args:
        answer: them.
        graph: whose nodes they name.
        record: whose EP it is.
        tokens: those of exact claims are added; the host gets their places in it.

    Raises:
        PluginError: there is something else among them.
    """
    claims: list[dict[str, Any]] = []
    for item in answer:
        if isinstance(item, Refusal):
            claims.append({"reason": str(item.reason), "nodes": _indices(item.nodes, graph, record)})
        elif isinstance(item, ComputeCapability):
            nodes = _indices(item.nodes, graph, record)
            said = {"fuse": bool(item.fuse), "keep": bool(item.keep_initializers), "exact": bool(item.exact)}
            place = None
            if item.token is not None:
                place = len(tokens)
                tokens.append(item.token)
            claims.append({"nodes": nodes, **said, "token": place})
        else:
            what = f"gave a {type(item).__name__} instead of a ComputeCapability or a Refusal"
            raise contract_broken(record, _CLAIM, what)
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
    described: Sequence[object],
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
        if not isinstance(node, EPContextNode):
            raise broken(f"gave a {type(node).__name__} instead of an EPContextNode")
        if id(node.attributes) not in sets:
            sets[id(node.attributes)] = len(attributes)
            attributes.append(_attributes(node.attributes, broken))
        if node.payload is not None and id(node.payload) not in numbers:
            raise broken("gave a payload that did not come from this call's writer")
        if id(node.partition) not in places:
            raise broken("described a partition that it did not compile")
        carried = None if node.payload is None else numbers[id(node.payload)]
        main, said = int(node.main_context), sets[id(node.attributes)]
        graph_name = None if node.graph_name is None else str(node.graph_name)
        nodes.append([places[id(node.partition)], carried, main, said, str(node.doc_string), graph_name])
    return {"nodes": nodes, "attributes": attributes}


def _attributes(attributes: Mapping[str, Any], broken: Callable[[str], PluginError]) -> dict[str, Any]:
    encoded = {}
    for key, value in attributes.items():
        try:
            encoded[str(key)] = encode_attribute(value)
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
