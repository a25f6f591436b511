"""A writer and a reader of payloads that are nothing but memory: the contract's two protocols, and no more.

What an EP does with these it does by the contract, not by what the core's own happen to allow.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from epctx_core.plugin import ContextNode, ContextWriter, EPContextNode, TensorView


class MemoryPayload:
    """A payload being written into memory; implements `Payload`."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._stored: dict[str, int] = {}

    @property
    def size(self) -> int:
        """Bytes so far."""
        return len(self.content)

    def write(self, buffer: Any) -> int:
        """Append bytes."""
        offset = self.size
        whole = memoryview(buffer)
        self.content += whole.cast("B") if whole.nbytes else b""
        return offset

    def align(self, alignment: int) -> int:
        """Append zero bytes."""
        self.content += bytes(-self.size % alignment)
        return self.size

    def write_tensor(self, view: TensorView) -> int:
        """Append a weight, once for each content."""
        if view.digest not in self._stored:
            self._stored[view.digest] = self.size
            for chunk in view.chunks():
                self.content += chunk
        return self._stored[view.digest]

    def add_file(self, path: str | os.PathLike[str]) -> int:
        """Append a file's content."""
        return self.write(Path(path).read_bytes())


class MemoryWriter:
    """Takes the payloads of one call of `get_ep_context_nodes`; implements `ContextWriter`.

    Args:
        given: the core's writer, which knows what is to be written.
        final: whether bytes are to be written, if it is not what `given` says.

    Attributes:
        payloads: by the name that the EP gave; None for the one without.
        graphs_by_model: as the core's writer says.
    """

    def __init__(self, given: ContextWriter, *, final: bool | None = None) -> None:
        self.final = given.final if final is None else final
        self.graphs_by_model = given.graphs_by_model
        self.payloads: dict[str | None, MemoryPayload] = {}

    def payload(self, name: str | None = None) -> MemoryPayload:
        """Start a payload, or return the one of that name."""
        return self.payloads.setdefault(name, MemoryPayload())

    def reference(self, view: TensorView) -> str | None:
        """Leave no weight out."""
        del view
        return None

    def answer(self, nodes: Sequence[EPContextNode]) -> dict[str, Any]:
        """Return what the EP said with this writer in a form that can be compared: nodes, and payloads' bytes."""
        names = {id(payload): str(name) for name, payload in self.payloads.items()}
        return {
            "nodes": [
                (
                    node.partition.name,
                    node.main_context,
                    names.get(id(node.payload)),
                    sorted((key, repr(value)) for key, value in node.attributes.items()),
                    node.doc_string,
                    node.graph_name,
                )
                for node in nodes
            ],
            "payloads": {str(name): bytes(payload.content) for name, payload in self.payloads.items()},
        }


class MemoryPayloadView:
    """A payload to read; implements `PayloadView`."""

    digest: str | None = None
    verified = False

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self.view = memoryview(content)
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def as_file(self) -> str:
        """Return a path with the same content."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="epctx-")
            (Path(self._folder.name) / "payload.bin").write_bytes(self.view)
        return str(Path(self._folder.name) / "payload.bin")

    def close(self) -> None:
        """Remove the file."""
        if self._folder is not None:
            self._folder.cleanup()


class MemoryReader:
    """Gives nodes their payloads; implements `ContextReader`.

    Args:
        payloads: the name of a node that carries a payload to that payload.

    Attributes:
        asked: the nodes whose payloads were asked for, in order.
    """

    def __init__(self, payloads: Mapping[str, MemoryPayloadView]) -> None:
        self._payloads = payloads
        self.asked: list[ContextNode] = []

    def payload(self, node: ContextNode) -> MemoryPayloadView:
        """Return the payload of a node, or of its primary."""
        self.asked.append(node)
        for owner in (node, node.primary):
            if owner is not None and owner.name in self._payloads:
                return self._payloads[owner.name]
        raise InvalidGraph(f"no payload for EPContext node {node.name!r}.", node=node.name)

    def source_tensor(self, name: str) -> TensorView:
        """Raise: there is no source model."""
        raise InvalidGraph(f"the weight {name!r} was asked for, and there is no source model.")
