"""Report of a compile: the files that it wrote, and the partitions that it compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.frozen import dataclass
from epctx_core.registry.records import get_facts
from epctx_core.rendering import render

if TYPE_CHECKING:
    from epctx_core.context.digests import PayloadEntry
    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.registry.records import PluginRecord
    from epctx_core.sessions.assignment import RefusalRecord
    from epctx_core.sessions.routing import SkippedProvider


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """File that was written, or payload that the host's write callback got.

    Attributes:
        path: path relative to the context model's folder; for a payload, the name that
            the callback got.
        bytes: its length.
        digest: SHA-256 of a model; root digest of a binary, as in the manifest, or of a
            file for initializers.
    """

    path: str
    bytes: int
    digest: str

    @classmethod
    def from_entry(cls, entry: PayloadEntry) -> OutputFile:
        """Return the file of a payload."""
        return cls(path=entry.name, bytes=entry.size, digest=entry.root)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class PartitionReport:
    """Compiled partition.

    Attributes:
        name: name of the partition, of its EPContext node too.
        ep: the EP that compiled it.
        nodes: number of nodes that it replaced, those inside subgraphs and functions
            included.
        node_names: names of those that are not inside others.
        operators: their operators, in the same order.
        inputs: names of the values that it reads.
        outputs: names of the values that it gives.
    """

    name: str
    ep: str
    nodes: int
    node_names: tuple[str, ...]
    operators: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RefusalReport:
    """Nodes that an EP did not take, with its reason.

    Attributes:
        ep: the EP.
        reason: its reason.
        nodes: names of the nodes.
        operators: their operators, in the same order.
        follows: by name of a constant, QuantizeLinear or DequantizeLinear among `nodes`
            that only serves nodes which the EP refused for another reason: the first of
            those.
        inside: by name of each of `nodes` that has nodes inside, in subgraphs or the
            function that it calls: the number of those.
    """

    ep: str
    reason: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...] = ()
    follows: Mapping[str, str] = field(default_factory=dict, compare=False)
    inside: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, kw_only=True)
class CompileReport:
    """Report of `ModelCompiler`.

    Attributes:
        output: path of the context model, in JSON its file name; None for bytes or a
            stream.
        folder: folder of the files; None without one.
        outputs: all files that were written: binaries, initializers, the model.
        partitions: compiled partitions in the order of the model.
        total_nodes: number of nodes of the source, those inside subgraphs and functions
            included.
        inside_nodes: number of those inside subgraphs and functions.
        assignments: number of nodes that each EP runs, by EP name, those inside
            subgraphs and functions included; the CPU EP last.
        refusals: nodes that EPs did not take, with the reasons.
        timings: seconds by stage.
        required_files: files that belong together, as names relative to the context
            model's folder. Includes files in which the host put initializers itself.
        delivered: payloads that the host's write callback got, and its read callback
            has to supply.
        source_files: in weightless mode, files of the source that a load also needs,
            beside the context model or where session options say.
        kept_nodes: names of EPContext nodes of the source that passed through.
        skipped_providers: optional EPs that were not available.
        providers: EPs that were asked, with the distribution and version of each.
        folded_nodes: number of nodes of the source with the same results in every
            run: small initializers took their place before EPs were asked.
        contradictions: for each value whose declared shape its operators contradict,
            both shapes.
        warnings: for each EP that gets few of the nodes that compute, a sentence.
    """

    output: Path | None
    folder: Path | None
    outputs: tuple[OutputFile, ...]
    partitions: tuple[PartitionReport, ...]
    total_nodes: int
    inside_nodes: int
    assignments: Mapping[str, int]
    refusals: tuple[RefusalReport, ...]
    timings: Mapping[str, float]
    required_files: tuple[str, ...]
    delivered: tuple[OutputFile, ...] = ()
    source_files: tuple[str, ...] = ()
    kept_nodes: tuple[str, ...] = ()
    skipped_providers: tuple[SkippedProvider, ...] = ()
    providers: tuple[PluginRecord, ...] = ()
    folded_nodes: int = 0
    contradictions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def compiled(self) -> bool:
        """True if the context model has an EPContext node; without one it is a plain
        model.
        """
        return bool(self.partitions or self.kept_nodes)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON that `epctx compile --json` prints."""
        # Of EPs not all is shown.
        fields = asdict(replace(self, providers=()))
        del fields["folder"]
        files = fields.pop("outputs")
        return {
            **fields,
            "output": self.output.name if self.output else None,
            "files": files,
            "providers": [
                get_facts(
                    record, "name", "distribution", "version", "vendor", "simulated"
                )
                for record in self.providers
            ],
        }

    def __str__(self) -> str:
        """Return the report as tables."""
        return self._render()

    def _repr_html_(self) -> str:
        """Return the report as a notebook shows it."""
        return self._render(as_html=True)

    def _render(self, *, as_html: bool = False) -> str:
        name = self.output.name if self.output else "context model"
        compiled = "compiled" if self.compiled else "nothing was compiled"
        return render(
            " ".join([*self.warnings, f"{name}: {compiled}"]),
            self.as_dict(),
            as_html=as_html,
            partitions="name ep nodes",
            assignments="ep nodes",
            providers="name distribution version simulated",
            files="path bytes",
        )


def describe_partition(partition: GraphPartition) -> PartitionReport:
    """Return the report of a partition."""
    graph = partition.graph
    return PartitionReport(
        name=partition.node_name,
        ep=partition.ep,
        nodes=partition.node_count,
        node_names=tuple(map(graph.get_node_name, partition.node_indices)),
        operators=tuple(map(graph.op_types.__getitem__, partition.node_indices)),
        inputs=partition.input_names,
        outputs=partition.output_names,
    )


def describe_refusal(refusal: RefusalRecord) -> RefusalReport:
    """Return the report of a refusal."""
    graph = refusal.graph
    name = graph.get_node_name
    # Nodes in the subgraphs of a node within a subgraph are refused themselves.
    inside = {
        name(i): count
        for i in refusal.nodes
        if (not graph.path or i not in graph.subgraphs)
        and (count := graph.count_inside([i]))
    }
    return RefusalReport(
        ep=refusal.ep,
        reason=refusal.reason,
        nodes=tuple(map(name, refusal.nodes)),
        operators=tuple(map(graph.op_types.__getitem__, refusal.nodes)),
        follows={name(node): name(cause) for node, cause in refusal.follows.items()},
        inside=inside,
    )
