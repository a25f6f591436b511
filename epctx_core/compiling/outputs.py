"""Everything that one compile writes, from the first payload to the last rename, and the report of what it did.

A payload is embedded, goes into a file, or to the host's write callback; the model goes into a file, or to a
function that gets its bytes. Files appear all or none, after all that the host hears of.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeAlias

from epctx_core.context.callbacks import MemorySink, deliver
from epctx_core.errors import EpctxError, Fail, InvalidArgument
from epctx_core.options.choices import CPU_EP
from epctx_core.publish.publication import Publication
from epctx_core.registry.guard import describe

if TYPE_CHECKING:
    from types import TracebackType

    from epctx_core.compiling.compile import Compile, CompileRequest
    from epctx_core.compiling.destination import Destination
    from epctx_core.context.manifest import PayloadEntry
    from epctx_core.context.node_writer import SerializedModel
    from epctx_core.options import CancellationFlag
    from epctx_core.registry.records import PluginRecord
    from epctx_core.sessions.providers import SkippedProvider

_log = logging.getLogger("epctx.compile")

STREAM_CHUNK = 64 << 10
"""Bytes that a stream gets at once; the last piece has what is left."""


ModelSink: TypeAlias = Callable[[Iterator[memoryview]], None]
"""Takes the bytes of a context model, piece by piece."""


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

    @classmethod
    def of(cls, entry: PayloadEntry) -> OutputFile:
        """Return the file of a payload."""
        return cls(path=entry.name, bytes=entry.size, digest=entry.root)

    def as_dict(self) -> dict[str, Any]:
        """Return its form in JSON."""
        return asdict(self)


class Outputs:
    """Context manager: the outputs of one compile. What is not finished leaves no file.

    Args:
        destination: where files go.
        request: whether payloads are embedded, and what gets the model and the payloads in place of files.
        cancel: the wish to stop, looked at between pieces.
        final: False for a member of a share group: its binaries are written when the group ends.
        publication: an open one that brings the files to their names together with others, by whoever
            lends it; None for one of its own.

    Attributes:
        files: the names of those that were opened so far, but for the model.
        states: what the system says of the files that were published, but for the model; see `Publication.commit`.
    """

    def __init__(
        self,
        destination: Destination,
        request: CompileRequest,
        cancel: CancellationFlag,
        *,
        final: bool = True,
        publication: Publication | None = None,
    ) -> None:
        self.destination = destination
        self.final = final
        self.embedded = request.embedded
        self._cancel = cancel
        self._request = request
        self._delivered: dict[str, MemorySink] = {}
        self.files: list[str] = []
        self.states: Mapping[str, os.stat_result] = {}
        self._publication = publication
        self._is_lent = publication is not None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Lock the folder, if files go into one, and look once more whether they may.

        Raises:
            NoSuchFile, InvalidArgument, Fail: see `Publication` and `Destination.check`.
        """
        with ExitStack() as stack:
            folder = self.destination.folder
            if not self._is_lent and folder is not None:
                self._publication = stack.enter_context(
                    Publication(folder, before_writing=self._cancel.raise_if_requested)
                )
            self.destination.check_model()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard what was not finished."""
        self._stack.__exit__(kind, error, trace)

    def open_payload(self, name: str) -> BinaryIO:
        """Open where a payload goes.

        Raises:
            Fail: a file of that name belongs to another model.
        """
        if not self.embedded and self._request.deliver is None:
            return self._create(name, "the context binary")
        sink = MemorySink()
        if not self.embedded:
            self._delivered[name] = sink
        return sink

    def open_initializers(self, name: str) -> BinaryIO:
        """Open the file for the initializers that stay.

        Raises:
            Fail: a file of that name belongs to another model.
        """
        return self._create(name, "the file for initializers")

    def finish(self, model: SerializedModel, named: Iterable[str] = ()) -> OutputFile | None:
        """Hand over payloads, then the model, then bring all files to their names.

        Args:
            model: its bytes.
            named: files that the host wrote and the model names.

        Returns:
            The model's file, None without one.

        Raises:
            Fail: a callback raised, or the system refused a step.
            InvalidArgument: the host wrote a file under a name that this compile writes.
            ModelLoadCanceled: the host asked to stop.
        """
        for name in named:
            if name in {*self.files, self.destination.model}:
                raise InvalidArgument(
                    f"get_initializer_location_func named the file {name!r}, which this compile writes itself.",
                    hint="Write initializers into a file of another name.",
                )
        for name, sink in self._delivered.items():
            self._cancel.raise_if_requested()
            if self._request.deliver is not None:
                deliver(self._request.deliver, name, sink)
        if self._request.sink is not None:
            self._request.sink(self._watched(model.chunks()))
        written: OutputFile | None = None
        if self._publication is not None and self.destination.model is not None:
            digest = hashlib.sha256()
            with self._publication.create(self.destination.model) as file:
                for piece in model.chunks():
                    digest.update(piece)
                    file.write(piece)
            written = OutputFile(path=self.destination.model, bytes=model.size, digest=digest.hexdigest())
        self._cancel.raise_if_requested()
        if self._publication is not None and not self._is_lent and (written is not None or self.files):
            self.states = self._publication.commit(
                models=[] if written is None else [written.path],
                new=[] if written is None or self.destination.replace else [written.path],
            )
        return written

    def _watched(self, pieces: Iterator[memoryview]) -> Iterator[memoryview]:
        for piece in pieces:
            self._cancel.raise_if_requested()
            yield piece

    def _create(self, name: str, what: str) -> BinaryIO:
        if self._publication is None:
            raise InvalidArgument(f"there is no folder for the file {name!r}.")
        file = self._publication.create(name)
        # Looked at once the publication knows whether the name is free: whose file comes later, it keeps.
        self.destination.check_file(name, what)
        self.files.append(name)
        return file


def sized(pieces: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of one size; the last one may be shorter."""
    waiting = bytearray()
    for piece in pieces:
        for at in range(0, len(piece), size):
            waiting += piece[at : at + size]
            if len(waiting) >= size:
                yield bytes(waiting[:size])
                del waiting[:size]
    if waiting:
        yield bytes(waiting)


def to_stream(write: Callable[[bytes], object]) -> ModelSink:
    """Return a sink that hands a model to a host's function in pieces of `STREAM_CHUNK` bytes.

    What the function raises becomes a Fail that carries its text.
    """

    def sink(pieces: Iterator[memoryview]) -> None:
        for chunk in sized(pieces, STREAM_CHUNK):
            try:
                write(chunk)
            except EpctxError:
                raise
            except Exception as error:
                raise Fail(
                    f"the write function of compile_to_stream raised: {describe(error)}.",
                    hint="Its own exception is the cause of this error.",
                ) from error

    return sink


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
        said = {key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}
        del said["folder"], said["outputs"]
        facts = ("name", "distribution", "version", "vendor", "simulated")
        return {
            **said,
            "output": self.output.name if self.output else None,
            "files": [file.as_dict() for file in self.outputs],
            "partitions": [
                {"name": p.name, "ep": p.ep, "nodes": p.nodes, "node_names": list(p.node_names)}
                for p in self.partitions
            ],
            "refusals": [{"ep": r.ep, "reason": r.reason, "nodes": list(r.nodes)} for r in self.refusals],
            "delivered": [file.as_dict() for file in self.delivered],
            "skipped_providers": [skip.as_dict() for skip in self.skipped_providers],
            "providers": [{key: getattr(record, key) for key in facts} for record in self.providers],
        }


def make_report(compile_: Compile) -> CompileReport:
    """Say what a compile did; nothing compiled is a warning."""
    assignment, context, request = compile_.assignment, compile_.context, compile_.request
    delivered = compile_.payloads if request.deliver is not None and not request.embedded else ()
    outputs = (*([] if delivered else compile_.payloads), *compile_.files)
    required: list[str] = []
    if context is not None:
        kept = () if delivered else context.kept_files
        required = [*kept, *context.pending, *(file.path for file in outputs), *context.named_files]
    counts: dict[str, int] = {}
    for partition in assignment.partitions:
        counts[partition.ep] = counts.get(partition.ep, 0) + len(partition.node_indices)
    counts[CPU_EP] = sum(
        len(part.left_over()) + len(part.kernel_nodes) + len(part.executed) for part in assignment.graphs
    )
    report = CompileReport(
        output=compile_.destination.path,
        folder=compile_.destination.folder,
        outputs=outputs,
        partitions=tuple(
            [
                PartitionReport(
                    name=p.name,
                    ep=p.ep,
                    node_names=tuple(map(p.graph.node_name, p.node_indices)),
                    operators=tuple(map(p.graph.op_types.__getitem__, p.node_indices)),
                    inputs=p.input_names,
                    outputs=p.output_names,
                )
                for p in assignment.partitions
            ]
        ),
        assignments=counts,
        refusals=tuple(
            RefusalReport(ep=r.ep, reason=r.reason, nodes=tuple(map(r.graph.node_name, r.nodes)))
            for r in assignment.refusals
        ),
        timings=dict(compile_.seconds),
        required_files=tuple(dict.fromkeys(required)),
        delivered=delivered,
        source_files=() if context is None else context.source_files,
        kept_nodes=tuple(record.name for record in compile_.existing.records),
        skipped_providers=compile_.providers.skipped,
        providers=compile_.providers.records,
        contradictions=tuple(assignment.main.graph.types.contradictions.values()),
    )
    if not report.compiled:
        asked = ", ".join(record.name for record in report.providers) or "no EP was asked for"
        model = "the model" if report.output is None else repr(report.output.name)
        why = next((f" {r.ep} says: {r.reason.rstrip('.')}." for r in report.refusals), "")
        _log.warning(
            "nothing was compiled (%s): %s is a plain model, which runs on the CPU EP.%s", asked, model, why
        )
    return report
