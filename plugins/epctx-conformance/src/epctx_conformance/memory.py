"""Writer and reader of payloads in memory: the contract's two protocols and no more.

With these an EP works by the contract, not by what the core's own happen to allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from epctx_core.plugin import ContextNode, ContextWriter, EPContextNode, TensorView


class MemoryPayload:
    """Payload being written into memory; implements `Payload`."""

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
    """Writer of the payloads of one call of `get_ep_context_nodes`; implements
    `ContextWriter`.

    Args:
        writer: the core's writer, which knows what is to be written.
        final: whether bytes are to be written, if it is not what the core's says.

    Attributes:
        payloads: by the name that the EP gave; None for the one without.
        graphs_by_model: as the core's writer says.
    """

    def __init__(self, writer: ContextWriter, *, final: bool | None = None) -> None:
        self.final = writer.final if final is None else final
        self.graphs_by_model = writer.graphs_by_model
        self.payloads: dict[str | None, MemoryPayload] = {}

    def payload(self, name: str | None = None) -> MemoryPayload:
        """Start a payload, or return the one of that name."""
        return self.payloads.setdefault(name, MemoryPayload())

    def reference(self, view: TensorView) -> str | None:
        """Leave no weight out."""
        del view
        return None

    def describe(self, nodes: Sequence[EPContextNode]) -> list[Any]:
        """Return the nodes that the EP described with this writer in a form that can be
        compared.
        """
        names = {id(payload): str(name) for name, payload in self.payloads.items()}
        return [
            (
                node.partition.name,
                node.main_context,
                names.get(id(node.payload)),
                sorted((key, repr(value)) for key, value in node.attributes.items()),
                node.doc_string,
                node.graph_name,
                node.compatibility_info,
                sorted((name, list(shape)) for name, shape in node.shapes.items()),
            )
            for node in nodes
        ]

    def contents(self) -> dict[str, bytes]:
        """Return each payload's bytes."""
        return {
            str(name): bytes(payload.content) for name, payload in self.payloads.items()
        }


class MemoryPayloadView:
    """Payload to read; implements `PayloadView`."""

    digest: str | None = None
    verified = False
    is_file = False

    def __init__(self, name: str, content: bytes, folder: Path) -> None:
        self.name = name
        self.view = memoryview(content)
        self._file = folder / "payload.bin"

    def as_file(self) -> str:
        """Return a path with the same content."""
        self._file.write_bytes(self.view)
        return str(self._file)


class MemoryReader:
    """Reader of the payloads of nodes; implements `ContextReader`.

    Args:
        payloads: the name of a node that carries a payload to that payload.
    """

    def __init__(self, payloads: Mapping[str, MemoryPayloadView]) -> None:
        self._payloads = payloads

    def payload(self, node: ContextNode) -> MemoryPayloadView:
        """Return the payload of a node, or of its primary."""
        for owner in (node, node.primary):
            if owner is not None and owner.name in self._payloads:
                return self._payloads[owner.name]
        raise InvalidGraph(
            f"no payload for EPContext node {node.name!r}.", node=node.name
        )

    def source_tensor(self, name: str) -> TensorView:
        """Raise: there is no source model."""
        raise InvalidGraph(
            f"the weight {name!r} was asked for, and there is no source model."
        )
