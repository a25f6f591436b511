"""`ShareGroup`: several models compiled into context models that share one binary for each EP."""

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from epctx_core.compiling.compile import Compile, CompileRequest
from epctx_core.compiling.destination import Destination, destination_of
from epctx_core.compiling.group import Group, check_grouped_options
from epctx_core.compiling.initializers import DEFAULT_THRESHOLD, placement_of
from epctx_core.compiling.report import make_report
from epctx_core.context.named_files import is_plain_name
from epctx_core.errors import Fail, InvalidArgument, errors_typed
from epctx_core.options import GraphOptimizationLevel, OrtCompileApiFlags, SessionOptions
from epctx_core.registry import Registry, default_registry
from epctx_core.registry.forking import keep_forever
from epctx_core.sessions.boundary import given_function, given_model, given_options
from epctx_core.sessions.compile_host import given_path, if_given, path_of, reported_progress
from epctx_core.sessions.optimise import check_level
from epctx_core.sessions.shared_workspaces import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from epctx_core.compiling.report import CompileReport, OutputFile
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.sessions.providers import Progress


@dataclass(frozen=True, kw_only=True)
class ShareReport:
    """What a share group wrote.

    Attributes:
        folder: where all files are.
        members: one report a model, in the order in which they were added.
        binaries: one a payload; every model of the group needs those of its EPs.
        saved_bytes: bytes of the models' weights that separate binaries would have stored again.
    """

    folder: Path
    members: tuple[CompileReport, ...]
    binaries: tuple[OutputFile, ...]
    saved_bytes: int

    @property
    def outputs(self) -> tuple[OutputFile, ...]:
        """Every file written: binaries, then what each model wrote."""
        return (*self.binaries, *(file for member in self.members for file in member.outputs))

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx share --json` prints."""
        return {
            "folder": str(self.folder),
            "files": [file.as_dict() for file in self.outputs],
            "saved_bytes": self.saved_bytes,
            "members": [member.as_dict() for member in self.members],
        }


class ShareGroup:
    """Compiles several models into one group: N context models and one binary for each EP.

    Equal weights are stored once, whatever their names and models. A `with` block that ends without an
    exception writes all files, which appear together; until then there are none, and an exception discards
    the group. Several groups may be built at once. A group serves one thread at a time.

    Args:
        output_dir: the folder of all files; None for the first model's.
        flags: `OrtCompileApiFlags`, for each model.
        graph_optimization_level: see `ModelCompiler`.
        progress: called with (stage, done, total).
        registry: where EPs are looked up.

    Raises:
        InvalidArgument: an argument is of a wrong kind.

    Example:
        >>> with ShareGroup("out") as group:
        ...     group.compile("prefill.onnx", so)
        ...     group.compile("decode.onnx", so)
        >>> [file.path for file in group.report.outputs]
        ['prefill_qnn.bin', 'prefill_ctx.onnx', 'decode_ctx.onnx']
    """

    _is_over = True  # until it was made: an object whose arguments are wrong has nothing to discard

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None = None,
        *,
        flags: OrtCompileApiFlags | int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        progress: Progress | None = None,
        registry: Registry = default_registry,
    ) -> None:
        folder = if_given(given_path, "output_dir", output_dir)
        self._folder = None if folder is None else Path(folder)
        self._flags = OrtCompileApiFlags(flags)
        self._level = check_level(graph_optimization_level, None)
        self._progress = reported_progress(if_given(given_function, "progress", progress))
        self._registry = registry
        self._group = Group()
        self._members: list[Compile] = []
        self._eps: object = None
        self._open = ExitStack()
        self._report: ShareReport | None = None
        self._process = os.getpid()
        self._is_over = False

    def __enter__(self) -> Self:
        """Return the group."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the group, or discard it after an exception; nothing if it is over.

        Raises:
            EpctxError: see `finish`. The group is discarded then.
        """
        try:
            if kind is None and not self._is_over:
                self.finish()
        finally:
            self.discard()

    def __del__(self) -> None:
        """Discard the group, with a ResourceWarning if models are lost by it."""
        if not self._is_over:
            if self._members and os.getpid() == self._process:
                warnings.warn(f"{self._without_an_end()}.", ResourceWarning, stacklevel=2, source=self)
            self.discard()

    @property
    def report(self) -> ShareReport:
        """What was written.

        Raises:
            Fail: nothing was, so far.
        """
        if self._report is None:
            raise Fail(
                "this share group was not written, so there is no report.",
                hint="It is there when the group's block has ended, or after finish().",
            )
        return self._report

    def discard(self) -> None:
        """End the group without writing anything; nothing if it is over."""
        self._is_over = True
        if os.getpid() != self._process:
            keep_forever((self._open, self._group))
            return
        self._members.clear()
        try:
            self._open.close()
        finally:
            self._group.close()

    def close(self) -> None:
        """Discard the group; nothing if it is over.

        Raises:
            Fail: models were compiled that nobody had written or discarded.
        """
        lost = self._without_an_end() if self._members else ""
        self.discard()
        if lost:
            raise Fail(
                f"{lost}: nothing was written.",
                hint="Leave a with block, or call finish(), to write the group; discard() if that is meant.",
            )

    @errors_typed("compiling a model of the share group")
    def compile(
        self,
        model: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions,
        *,
        name: str | None = None,
    ) -> None:
        """Compile a model into the group; its files appear with all others.

        Args:
            model: a path or bytes.
            sess_options: EPs and session options; a copy is kept. EPs and their options must be those of
                the group's first model, anything else may differ, such as lengths of open dimensions.
            name: the stem of its context model, `<name>_ctx.onnx`; None for the model's own. Needed for
                bytes, and where two models have one stem.

        Raises:
            InvalidArgument: two models would have one name, other EPs than the group's, a name that is
                none, a context model, or options that leave nothing to share, such as
                `ep.context_embed_mode=1`.
            Fail: the group is over.
            EpctxError: as `ModelCompiler.compile_to_file`. The group stays as it was.
        """
        self._refuse_over()
        request = self._request(model, given_options(sess_options), name)
        with ExitStack() as stack:
            # A first model that fails decides nothing.
            group = self._group if self._members else Group()
            if not self._members:
                stack.callback(group.close)
            member = Compile(request, group)
            with member.cancel.by_interrupt():
                member.choose()
                stack.enter_context(closing(member.providers))
                eps = fingerprint(member.choices)
                if self._members and eps != self._eps:
                    raise InvalidArgument(
                        "the models of a share group are compiled by the same EPs with the same options.",
                        hint="Use a share group of its own for each set of EPs and options.",
                    )
                member.open()
                stack.enter_context(member.settled(member.model, member.choices))
                member.compile()
            self._open.push(stack.pop_all())
        self._eps, self._folder, self._group = eps, member.destination.folder, group
        self._group.add(member)
        self._members.append(member)

    def _request(
        self, model: str | os.PathLike[str] | bytes, session: SessionOptions, name: str | None
    ) -> CompileRequest:
        config = session.config()
        check_grouped_options(config)
        path = path_of(given_model(model))
        return CompileRequest(
            session=session,
            model=model,
            destination=self._destination(path, name, config.external_initializers_file),
            embedded=False,
            placement=placement_of(None, DEFAULT_THRESHOLD, None, config.external_initializers_file),
            flags=self._flags,
            level=self._level,
            progress=self._progress,
            registry=self._registry,
        )

    @errors_typed("writing the share group")
    def finish(self) -> ShareReport:
        """Write all context models and the binaries, all or none; the group is over then.

        The end of a `with` block does it. If it fails, the group stays as it was.

        Raises:
            Fail: no model was compiled, a file belongs to a model outside of the group, or the system
                refused a step.
            PluginError: an EP does not describe its nodes, or write its binary, as it should.
        """
        self._refuse_over()
        if not self._members:
            raise Fail(
                "a share group without a model cannot be written.",
                hint="compile() its models first, or discard() it.",
            )
        last = self._members[-1]
        self._progress("write", 0, 1)
        with last.cancel.by_interrupt():
            binaries = self._group.finish(self._members, last)
        self._progress("write", 1, 1)
        self._report = ShareReport(
            folder=self._members[0].destination.folder or Path(),
            members=tuple(map(make_report, self._members)),
            binaries=binaries,
            saved_bytes=shared_weight_bytes(m.assignment.partitions for m in self._members),
        )
        self.discard()
        return self._report

    def _refuse_over(self) -> None:
        if os.getpid() != self._process:
            raise Fail(
                "this share group was made before the process was forked: its models are the parent's.",
                hint="Write it in the process that made it, or make a group in the child.",
            )
        if self._is_over:
            raise Fail("this share group is over.", hint="Make another ShareGroup.")

    def _without_an_end(self) -> str:
        names = ", ".join(repr(path.name) for path in self._group.models)
        return f"the share group of {names} was left without an end"

    def _destination(self, path: Path | None, name: str | None, initializers: str | None) -> Destination:
        if name is None and path is None:
            raise InvalidArgument(
                "a model that is given as bytes needs a name in a share group.",
                hint='compile(model, sess_options, name="...")',
            )
        if name is not None and not is_plain_name(name):
            raise InvalidArgument(
                f"a context model cannot be named after {name!r:.80}, which is no plain file name.",
                hint="Give a name without a folder.",
            )
        folder = self._folder or (path.parent if path is not None else None)
        if folder is None:
            raise InvalidArgument(
                "the group's first model was given as bytes, so nothing says where its files go.",
                hint="Give ShareGroup an output_dir.",
            )
        output = folder / f"{path.stem if name is None and path is not None else name}_ctx.onnx"
        if initializers is not None and initializers in {m.destination.initializers for m in self._members}:
            raise InvalidArgument(
                f"two models of the share group would put their initializers into the file {initializers!r}.",
                path=folder / initializers,
                hint="Name one file for each model in its own sess_options.",
            )
        other = next((p for p in self._group.models if p.name.casefold() == output.name.casefold()), None)
        if other is not None:
            raise InvalidArgument(
                f"two models of the share group would both be written to {output.name!r}.",
                path=output,
                hint="Give one of them a name of its own: name= of compile(), --name of epctx share.",
            )
        return destination_of(
            path,
            str(output),
            replace=not self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS,
            initializers=initializers,
        )


def shared_weight_bytes(members: Iterable[Iterable[GraphPartition]]) -> int:
    """Return what the members' weights have each by itself, less what they have together.

    Counted are the models' own bytes; an EP may store them in another type. Equal weights inside one member
    count once.
    """
    shared = 0
    known: set[tuple[str, str, int]] = set()
    for partitions in members:
        weights = {
            (partition.ep, weight.digest, weight.nbytes)
            for partition in partitions
            for weight in partition.weights.values()
        }
        shared += sum(nbytes for _, _, nbytes in weights & known)
        known |= weights
    return shared
