"""Runnables in the host's process from what an EP compiled in its own: written to a private folder and loaded.

The payloads take the same way as those of a context model, checks included; no model is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from onnx import GraphProto

from epctx_core.context.node import ContextNodeRecord, make_context_node, read_context_nodes
from epctx_core.context.paths import ModelFolder
from epctx_core.context.payloads.reader import PayloadReader, plugin_nodes
from epctx_core.context.payloads.writer import PayloadSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epctx_core.context.scratch import Scratch
    from epctx_core.graph.inference import TypeTable
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.plugin import ContextNode, EPContextNode


class Compiled(NamedTuple):
    """What was compiled, for a load: nodes as an EP gets them, and where their payloads are."""

    nodes: Sequence[ContextNode]
    reader: PayloadReader


class PrivatePayloads:
    """The payloads of one EP in a folder that nobody else knows.

    Args:
        ep: the EP type.
        folder: exists and is empty.
        partitions: what was compiled.
    """

    def __init__(self, ep: str, folder: Path, partitions: Sequence[GraphPartition]) -> None:
        self._ep = ep
        self._folder = folder
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
        self._files.append((self._folder / name).open("xb"))
        return self._files[-1]

    def close(self) -> None:
        """Finish the files."""
        for file in self._files:
            file.close()

    def compiled(
        self,
        described: Sequence[EPContextNode],
        types: TypeTable,
        scratch: Scratch,
    ) -> Compiled:
        """Return nodes and payloads as a load of a context model gives them.

        Args:
            described: what the EP said of its nodes.
            types: those of the main graph.
            scratch: lives as long as the session; makes files of payloads for EPs that want them.

        Raises:
            InvalidGraph: references without any primary, or an attribute of the wrong type.
        """
        records: dict[str, ContextNodeRecord] = {}
        for description in described:
            partition: Any = description.partition
            records[partition.name] = self._record(description, partition)
        reader = PayloadReader(
            records,
            folder=ModelFolder(self._folder),
            manifest=None,
            scratch=scratch,
        )
        return Compiled(plugin_nodes(list(records.values()), types, self._ep), reader)

    def _record(self, description: EPContextNode, partition: GraphPartition) -> ContextNodeRecord:
        written = self._set.writers.get(id(description.payload))
        graph = GraphProto()
        graph.node.append(
            make_context_node(
                name=partition.name,
                source=self._ep,
                inputs=partition.input_names,
                outputs=partition.output_names,
                main_context=bool(description.main_context),
                embed_mode=False,
                cache=None if written is None else written.contents(),
                attributes=description.attributes,
                graph_name=description.graph_name or "",
            )
        )
        (record,) = read_context_nodes(graph)
        return replace(record, path=partition.graph.path)


def by_partition(
    nodes: Sequence[ContextNode], loaded: Sequence[Any], partitions: Sequence[GraphPartition]
) -> list[Any]:
    """Return what was loaded in the order of partitions; those of earlier calls are left out."""
    found: Mapping[str, Any] = dict(zip([node.name for node in nodes], loaded, strict=True))
    return [found[partition.name] for partition in partitions]
