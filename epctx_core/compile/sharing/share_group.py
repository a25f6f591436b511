"""`ShareGroup`: several models compiled into context models that share one binary for each EP."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from epctx_core.compile.cancellation import CompileCancellation
from epctx_core.compile.compilation import Compilation
from epctx_core.compile.optimise import check_level
from epctx_core.compile.providers import Progress, ProviderSession, choose_providers, reported_progress
from epctx_core.compile.report import CompileReport, OutputFile, make_report
from epctx_core.compile.sharing.group import Group
from epctx_core.compile.sharing.rules import check_shared_options, fingerprint
from epctx_core.compile.writing.destination import Destination, destination_of
from epctx_core.compile.writing.initializers import DEFAULT_THRESHOLD, placement_of
from epctx_core.context.naming import is_plain_name
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.options import GraphOptimizationLevel, OrtCompileApiFlags, SessionOptions
from epctx_core.registry import Registry, default_registry

if TYPE_CHECKING:
    from types import TracebackType

    from epctx_core.compile.sharing.member import CompiledMember
    from epctx_core.compile.source import OpenModel
    from epctx_core.options import SessionConfig


@dataclass(frozen=True, kw_only=True)
class ShareReport:
    """What a share group wrote.

    Attributes:
        folder: where all files are.
        members: one report a model, in the order in which they were added.
        binaries: one a payload; every model of the group needs those of its EPs.
        saved_bytes: bytes of weights that separate binaries would have stored again.
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
            "files": [{"path": f.path, "bytes": f.bytes, "digest": f.digest} for f in self.outputs],
            "saved_bytes": self.saved_bytes,
            "members": [member.as_dict() for member in self.members],
        }


class ShareGroup:
    """Compiles several models into one group: N context models and one binary for each EP.

    Equal weights are stored once, whatever their names and models. All files appear together when `finish`
    is called; until then nothing is written. Several groups may be built at once. A group serves one
    thread at a time.

    Args:
        sess_options: the EPs and session options; a copy is kept.
        output_folder: where all files go; None for the first model's folder.
        flags: `OrtCompileApiFlags`, for each model.
        graph_optimization_level: see `ModelCompiler`.
        progress: called with (stage, done, total).
        registry: where EPs are looked up.

    Raises:
        InvalidArgument: options that leave nothing to share, such as `ep.context_embed_mode=1`.

    Example:
        >>> with ShareGroup(so) as group:
        ...     group.add("prefill.onnx")
        ...     group.add("decode.onnx")
        ...     report = group.finish()
        >>> [file.path for file in report.outputs]
        ['prefill_qnn.bin', 'prefill_ctx.onnx', 'decode_ctx.onnx']
    """

    def __init__(
        self,
        sess_options: SessionOptions,
        output_folder: str | os.PathLike[str] | None = None,
        *,
        flags: OrtCompileApiFlags | int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        progress: Progress | None = None,
        registry: Registry = default_registry,
    ) -> None:
        self._session = sess_options.copy()
        _check(self._session)
        self._folder = None if output_folder is None else Path(output_folder)
        self._flags = OrtCompileApiFlags(flags)
        self._level = check_level(graph_optimization_level)
        self._progress = reported_progress(progress)
        self._registry = registry
        self._group = Group()
        self._members: list[CompiledMember] = []
        self._eps: object = None
        self._open = ExitStack()
        self._is_over = False

    def __enter__(self) -> Self:
        """Return the group."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Discard what was not finished.

        Raises:
            Fail: models were added and `finish` was not called, without an exception that says why.
        """
        forgotten = kind is None and self._members and not self._is_over
        names = ", ".join(repr(path.name) for path in self._group.models)
        self.close()
        if forgotten:
            raise Fail(
                f"the share group of {names} was left without finish(): nothing was written.",
                hint="Call finish() when all models are added, or close() to discard them.",
            )

    def close(self) -> None:
        """Discard what was not finished; further calls do nothing."""
        self._is_over = True
        self._members.clear()
        try:
            self._open.close()
        finally:
            self._group.close()

    def add(
        self,
        model: str | os.PathLike[str] | bytes,
        *,
        name: str | None = None,
        sess_options: SessionOptions | None = None,
    ) -> None:
        """Compile a model into the group.

        Args:
            model: a path or bytes.
            name: the stem of its context model, `<name>_ctx.onnx`; None for the model's own. Needed for
                bytes, and where two models have one stem.
            sess_options: this model's own options, such as other lengths of open dimensions. EPs and
                their options must be the group's.

        Raises:
            InvalidArgument: two models would have one name, other EPs than the group's, a name that is
                none, or a context model.
            EpctxError: as `ModelCompiler.compile_to_file`. The group stays as it was.
        """
        self._refuse_over()
        session = self._session if sess_options is None else sess_options.copy()
        config = _check(session)
        compilation = Compilation(
            session=session,
            model=model,
            embedded=False,
            placement=placement_of(None, DEFAULT_THRESHOLD, None, config.external_initializers_file),
            flags=self._flags,
            level=self._level,
            progress=self._progress,
            registry=self._registry,
            deliver=None,
        )
        cancel = CompileCancellation(session.cancellation)
        with ExitStack() as stack, cancel.by_interrupt():
            # A first model that fails decides nothing.
            group = self._group if self._members else Group()
            if not self._members:
                stack.callback(group.close)
            providers = stack.enter_context(closing(ProviderSession()))
            choices = choose_providers(session.providers, session, self._registry)
            eps = fingerprint(choices)
            if self._members and eps != self._eps:
                raise InvalidArgument(
                    "the models of a share group are compiled by the same EPs with the same options.",
                    hint="Use a share group of its own for each set of EPs and options.",
                )
            source = compilation.open(choices)
            wanted = self._destination(source, name, config.external_initializers_file)
            member = compilation.compile_member(group, source, wanted, providers, choices, cancel)
            self._open.push(stack.pop_all())
        self._eps, self._folder, self._group = eps, wanted.folder, group
        self._group.add(member)
        self._members.append(member)

    def finish(self) -> ShareReport:
        """Write all context models and the binaries, all or none; the group is over then.

        Raises:
            InvalidArgument: no model was added.
            Fail: a file belongs to a model outside of the group, or the system refused a step.
            PluginError: an EP does not describe its nodes, or write its binary, as it should.
        """
        self._refuse_over()
        if not self._members:
            raise InvalidArgument(
                "a share group without a model cannot be finished.", hint="Add models first."
            )
        self._progress("write", 0, 1)
        with CompileCancellation(self._session.cancellation).by_interrupt():
            finished = self._group.finish(self._members, self._members[-1])
        self._progress("write", 1, 1)
        reports = [
            make_report(m.assignment, output=m.destination.path, written=w, timings=m.watch.seconds)
            for m, w in zip(self._members, finished.members, strict=True)
        ]
        folder = self._members[0].destination.folder or Path()
        self.close()
        return ShareReport(
            folder=folder,
            members=tuple(reports),
            binaries=finished.binaries,
            saved_bytes=finished.saved_bytes,
        )

    def _refuse_over(self) -> None:
        if self._is_over:
            raise Fail("this share group is over.", hint="Make another ShareGroup.")

    def _destination(self, model: OpenModel, name: str | None, initializers: str | None) -> Destination:
        stem = _stem(model, name)
        path = model.source.path
        folder = self._folder or (path.parent if path is not None else None)
        if folder is None:
            raise InvalidArgument(
                "the group's first model was given as bytes, so nothing says where its files go.",
                hint="Give ShareGroup an output_folder.",
            )
        output = folder / f"{stem}_ctx.onnx"
        other = next((p for p in self._group.models if p.name.casefold() == output.name.casefold()), None)
        if other is not None:
            raise InvalidArgument(
                f"two models of the share group would both be written to {output.name!r}.",
                path=output,
                hint='Give one of them another name: add(model, name="...").',
            )
        return destination_of(
            path,
            str(output),
            replace=not self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS,
            reads=model.source.weights_files,
            initializers=initializers,
        )


def _check(session: SessionOptions) -> SessionConfig:
    config = session.config()
    check_shared_options(config, embedded=config.embed, delivered=False, in_memory=False)
    return config


def _stem(model: OpenModel, name: str | None) -> str:
    if name is None and model.source.path is not None:
        return model.source.path.stem
    if name is None:
        raise InvalidArgument(
            "a model that is given as bytes needs a name in a share group.", hint='add(model, name="...")'
        )
    if not is_plain_name(name):
        raise InvalidArgument(
            f"a context model cannot be named after {name!r:.80}, which is no plain file name.",
            hint="Give a name without a folder.",
        )
    return name
