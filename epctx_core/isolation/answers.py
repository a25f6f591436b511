"""What a host does for an EP during a call: groups nodes, takes payloads, gives payloads.

Weights of the model are never sent back: the EP names them, and they are written from where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from epctx_core.context.payloads.loaded import LoadedPayload
from epctx_core.isolation.channel import Channel, Message, ProtocolError
from epctx_core.isolation.models import WeightsTable, encode_file, node_indices, weight_at

if TYPE_CHECKING:
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.slice import GraphSlice
    from epctx_core.isolation.remote import Answer, Answers
    from epctx_core.plugin import ContextNode, ContextReader, ContextWriter, Payload
    from epctx_core.plugin.storage import PayloadView


def group_answers(view: GraphSlice) -> Answers:
    """Return what an EP asks for that claims nodes."""

    def convex_groups(message: Message) -> Answer:
        count = len(view.index.nodes)
        nodes = [view.node(i) for i in node_indices(message.head.get("nodes"), count)]
        return {"groups": [[n.index for n in group] for group in view.convex_groups(nodes)]}, ()

    return {"convex_groups": convex_groups}


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
