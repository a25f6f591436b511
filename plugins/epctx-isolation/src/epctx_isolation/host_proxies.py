"""Proxies of the host's objects in the process of an EP: writers, readers, payloads. They ask the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_isolation.model_copy import unpack_weights

if TYPE_CHECKING:
    import os

    from epctx_core.plugin import ContextNode, KernelDef, NodeView, TensorView
    from epctx_isolation.channel import Message
    from epctx_isolation.model_copy import ReceivedModel
    from epctx_isolation.service import Host

_BUFFERED = 1 << 20
"""Bytes of small writes that are sent together."""
_CHUNK = 8 << 20
"""Bytes of a large write in one message."""


class NoKernels:
    """Kernels of an EP that has none; implements `KernelLookup`."""

    def lookup(self, node: NodeView) -> KernelDef | None:  # noqa: ARG002 - for whatever node
        """Return None."""
        return None

    def refusal(self, node: NodeView) -> str | None:  # noqa: ARG002 - the same
        """Return None."""
        return None


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
            for start in range(0, len(view), _CHUNK):
                self._host.notify("write", {"payload": self.number}, [view[start : start + _CHUNK]])
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
        """Append a weight; return its offset. One of the model's own does not pass through this process."""
        self.flush()
        key, head = self._model.weight_key(view), {"payload": self.number}
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

    def __init__(self, host: Host, model: ReceivedModel, facts: Mapping[str, Any]) -> None:
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
        name: str | None = self._host.ask("reference", {"weight": key}).head["name"]
        return name


class RemotePayloadView:
    """A payload to read; implements `PayloadView`. One in a file is mapped in this process."""

    def __init__(self, host: Host, reply: Message) -> None:
        self._host = host
        self._number = reply.number("payload")
        (content,) = unpack_weights(reply.head, reply.blobs)
        self.name, self.view = content.name, content.array().data
        self.digest: str | None = reply.head["digest"]
        self.verified = reply.flag("verified")

    def as_file(self) -> str:
        """Return a path with the same content."""
        return self._host.ask("as_file", {"payload": self._number}).text("path")


class RemoteReader:
    """Finds payloads at the host; implements `ContextReader`."""

    def __init__(self, host: Host, nodes: Sequence[ContextNode], known: dict[int, RemotePayloadView]) -> None:
        self._host = host
        self._indices = {id(node): index for index, node in enumerate(nodes)}
        self._known = known

    def payload(self, node: ContextNode) -> RemotePayloadView:
        """Return the payload that holds a node's graph."""
        reply = self._host.ask("load", {"node": self._indices[id(node)]})
        number = reply.number("payload")
        if number not in self._known:
            self._known[number] = RemotePayloadView(self._host, reply)
        return self._known[number]

    def source_tensor(self, name: str) -> TensorView:
        """Return a weight that a payload left in the source model."""
        reply = self._host.ask("source_tensor", {"name": name})
        (weight,) = unpack_weights(reply.head, reply.blobs)
        return weight
