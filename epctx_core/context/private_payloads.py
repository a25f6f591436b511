"""Payloads that an EP writes and reads within one session, in a folder that nobody else knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onnx import GraphProto, NodeProto

from epctx_core.context.node import read_context_nodes
from epctx_core.context.node_writer import make_context_node
from epctx_core.context.paths import ModelFolder
from epctx_core.context.payload_reader import PayloadReader, plugin_nodes
from epctx_core.context.payload_writer import PayloadSet
from epctx_core.context.scratch import Scratch

if TYPE_CHECKING:
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.graph.transfer import SentModel
    from epctx_core.plugin import ContextNode, ContextReader, EPContextNode, Partition


class PrivatePayloads:
    """Payloads for some partitions; they take the same way as a context model's, checks included.

    Attributes:
        writer: what the EP writes with.

    Args:
        ep: the EP type.
        partitions: what was compiled.
    """

    def __init__(self, ep: str, partitions: Sequence[Partition]) -> None:
        self._ep = ep
        self._scratch = Scratch()
        self._folder = self._scratch.folder()
        self._files: list[Any] = []
        self._set = PayloadSet(
            ep,
            file_name=lambda name: f"{name or 'payload'}.bin",
            open_sink=self._open,
            embedded=False,
            graphs_by_model=(tuple(p.name for p in partitions),),
        )
        self.writer = self._set.handle

    def _open(self, name: str) -> Any:
        file = (self._folder / name).open("xb")
        self._scratch.callback(file.close)
        self._files.append(file)
        return file

    def read(
        self, described: Sequence[EPContextNode], model: SentModel
    ) -> tuple[Sequence[ContextNode], ContextReader]:
        """Return nodes and payloads as a load of a context model gives them; nothing is written from then on.

        Args:
            described: what the EP said of its nodes.
            model: what the partitions are of.

        Raises:
            InvalidGraph: references without any primary, or an attribute of the wrong type.
        """
        for file in self._files:
            file.close()
        records = {str(node.partition.name): self._record(node, node.partition) for node in described}
        reader = PayloadReader(
            records, folder=ModelFolder(self._folder), manifest=None, scratch=self._scratch
        )
        return plugin_nodes(list(records.values()), model.root.types, self._ep), reader

    def _record(self, description: EPContextNode, partition: Any) -> ContextNodeRecord:
        written = self._set.writers.get(id(description.payload))
        graph = GraphProto()
        graph.node.append(
            make_context_node(
                NodeProto(name=partition.name, input=partition.input_names, output=partition.output_names),
                {**description.attributes, "partition_name": description.graph_name or partition.name},
                source=self._ep,
                main_context=bool(description.main_context),
                embed_mode=False,
                cache=None if written is None else written.contents(),
            )
        )
        (record,) = read_context_nodes(graph)
        return replace(record, path=partition.graph.path)

    def close(self) -> None:
        """Remove all of it."""
        self._scratch.close()
