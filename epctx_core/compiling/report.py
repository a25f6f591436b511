"""What a compile did: files, partitions, who runs what, refusals, times."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.options.choices import CPU_EP

if TYPE_CHECKING:
    from epctx_core.compiling.destination import Destination
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.registry.records import PluginRecord
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.missing_providers import SkippedProvider
    from epctx_core.sessions.providers import ProviderSession

_log = logging.getLogger("epctx.compile")


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """One file that was written, or one payload that the host's write callback got.

    Attributes:
        path: relative to the context model's folder; of a payload the name that the callback got.
        bytes: its length.
        digest: SHA-256 of a model; of a binary the root digest that the manifest holds; of a file for
            initializers the same kind of digest.
    """

    path: str
    bytes: int
    digest: str

    def as_dict(self) -> dict[str, Any]:
        """Return its form in JSON."""
        return {"path": self.path, "bytes": self.bytes, "digest": self.digest}


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written.

    Attributes:
        payloads: those that are not embedded.
        others: the file for initializers, then the model; those of them that are files of this compile.
        named_files: files in which the host put initializers itself.
        kept_nodes: names of EPContext nodes that the source had already.
        kept_files: their binaries, written or not.
        source_files: the source's files in which payloads leave weights.
        delivered: whether payloads went to the host's write callback.
        pending: binaries that the model's share group writes at its end.
        to_read: names of the nodes by which they are read back then; see `ContextModel.to_read`.
    """

    payloads: tuple[OutputFile, ...] = ()
    others: tuple[OutputFile, ...] = ()
    named_files: tuple[str, ...] = ()
    kept_nodes: tuple[str, ...] = ()
    kept_files: tuple[str, ...] = ()
    source_files: tuple[str, ...] = ()
    delivered: bool = False
    pending: tuple[str, ...] = ()
    to_read: frozenset[str] = frozenset()

    @property
    def files(self) -> tuple[OutputFile, ...]:
        """Every file written, the model last."""
        return self.others if self.delivered else (*self.payloads, *self.others)

    @property
    def required(self) -> tuple[str, ...]:
        """What has to travel together."""
        kept = () if self.delivered else self.kept_files
        return tuple(dict.fromkeys([*kept, *self.pending, *(f.path for f in self.files), *self.named_files]))


@dataclass(frozen=True, kw_only=True)
class PartitionReport:
    """One compiled partition."""

    name: str
    ep: str
    node_names: tuple[str, ...]
    operators: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def nodes(self) -> int:
        """How many nodes it replaced."""
        return len(self.node_names)


@dataclass(frozen=True, kw_only=True)
class RefusalReport:
    """Nodes that an EP did not take, with its reason."""

    ep: str
    reason: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CompileReport:
    """What `ModelCompiler` did.

    Attributes:
        output: the context model's path, None if it was handed over as bytes or to a stream.
        folder: where the files are; None if nothing says where they would go.
        outputs: every file written: binaries, initializers, the model.
        partitions: in the order of the model.
        assignments: EP type to the number of nodes it runs; the CPU EP last.
        refusals: what EPs did not take and why.
        timings: stage to seconds.
        required_files: what has to travel together: names relative to the context model's folder. Also
            files in which the host put initializers itself.
        delivered: payloads that the host's write callback got, and its read callback has to give.
        source_files: in weightless mode, the source's files that a load needs besides: beside the
            context model, or where session options say.
        kept_nodes: names of EPContext nodes that the model had already and that passed through.
        skipped_providers: optional EPs that could not be had.
        providers: the EPs that were asked, with the distribution and version of each.
        contradictions: for each value of which the model declares a shape that its operators do not give, both.
    """

    output: Path | None
    folder: Path | None
    outputs: tuple[OutputFile, ...]
    partitions: tuple[PartitionReport, ...]
    assignments: Mapping[str, int]
    refusals: tuple[RefusalReport, ...]
    timings: Mapping[str, float]
    required_files: tuple[str, ...]
    delivered: tuple[OutputFile, ...] = ()
    source_files: tuple[str, ...] = ()
    kept_nodes: tuple[str, ...] = ()
    skipped_providers: tuple[SkippedProvider, ...] = ()
    providers: tuple[PluginRecord, ...] = ()
    contradictions: tuple[str, ...] = ()

    @property
    def compiled(self) -> bool:
        """Whether the context model has an EPContext node; without one it is a plain model."""
        return bool(self.partitions or self.kept_nodes)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx compile --json` prints."""
        return {
            "output": self.output.name if self.output else None,
            "files": [file.as_dict() for file in self.outputs],
            "partitions": [
                {"name": p.name, "ep": p.ep, "nodes": p.nodes, "node_names": list(p.node_names)}
                for p in self.partitions
            ],
            "assignments": dict(self.assignments),
            "refusals": [{"ep": r.ep, "reason": r.reason, "nodes": list(r.nodes)} for r in self.refusals],
            "timings": dict(self.timings),
            "required_files": list(self.required_files),
            "delivered": [file.as_dict() for file in self.delivered],
            "source_files": list(self.source_files),
            "kept_nodes": list(self.kept_nodes),
            "skipped_providers": [skip.as_dict() for skip in self.skipped_providers],
            "providers": [
                {
                    "name": record.name,
                    "distribution": record.distribution,
                    "version": record.version,
                    "vendor": record.vendor,
                    "simulated": record.simulated,
                }
                for record in self.providers
            ],
            "contradictions": list(self.contradictions),
        }


def make_report(
    assignment: Assignment,
    *,
    destination: Destination,
    written: Written,
    timings: Mapping[str, float],
    providers: ProviderSession,
) -> CompileReport:
    """Put a report together; nothing compiled is a warning."""
    counts: dict[str, int] = {}
    for partition in assignment.partitions:
        counts[partition.ep] = counts.get(partition.ep, 0) + len(partition.node_indices)
    counts[CPU_EP] = sum(
        len(part.left_over()) + len(part.kernel_nodes) + len(part.executed) for part in assignment.graphs
    )
    report = CompileReport(
        output=destination.path,
        folder=destination.folder,
        outputs=written.files,
        partitions=_reported(assignment.partitions),
        assignments=counts,
        refusals=tuple(
            RefusalReport(ep=r.ep, reason=r.reason, nodes=tuple(map(r.graph.node_name, r.nodes)))
            for r in assignment.refusals
        ),
        timings=dict(timings),
        required_files=written.required,
        delivered=written.payloads if written.delivered else (),
        source_files=written.source_files,
        kept_nodes=written.kept_nodes,
        skipped_providers=providers.skipped,
        providers=providers.records,
        contradictions=tuple(assignment.main.graph.types.contradictions.values()),
    )
    if not report.compiled:
        _log.warning("%s", _nothing_compiled(report))
    return report


def _nothing_compiled(report: CompileReport) -> str:
    asked = ", ".join(record.name for record in report.providers) or "no EP was asked for"
    model = "the model" if report.output is None else repr(report.output.name)
    why = next((f" {r.ep} says: {r.reason.rstrip('.')}." for r in report.refusals), "")
    return f"nothing was compiled ({asked}): {model} is a plain model, which runs on the CPU EP.{why}"


def _reported(partitions: Sequence[GraphPartition]) -> tuple[PartitionReport, ...]:
    return tuple(
        [
            PartitionReport(
                name=p.name,
                ep=p.ep,
                node_names=tuple(map(p.graph.node_name, p.node_indices)),
                operators=tuple(map(p.graph.op_types.__getitem__, p.node_indices)),
                inputs=p.input_names,
                outputs=p.output_names,
            )
            for p in partitions
        ]
    )
