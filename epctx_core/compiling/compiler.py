"""Compile API of hosts: `ModelCompiler`, as in ONNX Runtime, and `ShareGroup` for
several models.
"""

from __future__ import annotations

import io
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from epctx_core.compiling.compile import Compile
from epctx_core.compiling.destination import Destination, make_destination
from epctx_core.compiling.group import (
    Group,
    Member,
    count_saved_bytes,
)
from epctx_core.compiling.initializers import (
    DEFAULT_THRESHOLD,
    LocationFunc,
    make_placement,
)
from epctx_core.compiling.report import CompileReport, OutputFile
from epctx_core.errors import Fail, InvalidArgument, convert_errors
from epctx_core.file_names import is_plain_name
from epctx_core.frozen import dataclass
from epctx_core.graph.model_io import get_model_path
from epctx_core.options import (
    GraphOptimizationLevel,
    Isolation,
    OrtCompileApiFlags,
    SessionConfig,
    SessionOptions,
)
from epctx_core.process import keep_forever
from epctx_core.publish.publication import settle_death
from epctx_core.registry import Registry, default_registry
from epctx_core.registry.guard import blame_host
from epctx_core.sessions import host
from epctx_core.sessions.optimise import check_level
from epctx_core.sessions.shared_workspaces import fingerprint_providers
from epctx_core.sessions.stages import Request

if TYPE_CHECKING:
    from types import TracebackType

    from epctx_core.compiling.compile import ModelSink
    from epctx_core.context.callbacks import WriteCallback
    from epctx_core.graph.mapping import ModelInput, PathInput
    from epctx_core.sessions.providers import Progress


_BUSY = "Wait for it, or make another ModelCompiler."

STREAM_CHUNK = 64 << 10
"""Bytes of a chunk for a stream; the last chunk may be shorter."""


class ModelCompiler:
    """Compiles a model ahead of time; arguments as `onnxruntime.ModelCompiler`.

    One compiler may be used again, by one thread at a time. To stop a compile from
    another thread, call `set_load_cancellation_flag(True)` of the options; EPs see
    that, and Ctrl-C, as `ProviderContext.cancel`.

    Args:
        sess_options: the EPs (`add_provider`) and session options to compile with; a
            copy is kept.
        input_model_path_or_bytes: the source.
        embed_compiled_data_into_model: True to store payloads in the model; overrides
            `ep.context_embed_mode`.
        external_initializers_file_path: a file for the initializers that stay, relative
            to the context model; overrides
            `ep.context_model_external_initializers_file_name`, whose threshold is 0.
        external_initializers_size_threshold: bytes from which an initializer goes into
            that file.
        flags: `OrtCompileApiFlags`.
        graph_optimization_level: optimisation of the whole model before EPs see it:
            by default what it computes from constants and static shapes is folded
            into small initializers; with DISABLE_ALL it stays as it is. BASIC uses
            ONNX's operators only, EXTENDED also onnxruntime's own, which few EPs take.
            Both need onnxruntime. The level of `sess_options` has no meaning here.
        get_initializer_location_func: `f(name, value, present location or None)`
            returns the `OrtExternalInitializerInfo` of an initializer that the host
            stored itself, or None to store it in the model; not together with a file.
        progress: called with (stage, done, total); a total of 0 says that `done` are
            bytes written.
        registry: registry that finds the EPs.

    Raises:
        InvalidArgument: an argument is wrong, or two contradict each other.

    Examples:
        >>> so = SessionOptions()
        >>> so.add_provider("QNN", {"htp_arch": "73"})
        >>> report = ModelCompiler(so, "model.onnx").compile_to_file()
        >>> [file.path for file in report.outputs]
        ['model_qnn.bin', 'model_ctx.onnx']
    """

    def __init__(  # noqa: PLR0913 - as onnxruntime.ModelCompiler
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: ModelInput,
        embed_compiled_data_into_model: bool | None = None,
        external_initializers_file_path: PathInput | None = None,
        external_initializers_size_threshold: int = DEFAULT_THRESHOLD,
        flags: OrtCompileApiFlags | int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel | None = None,
        get_initializer_location_func: LocationFunc | None = None,
        *,
        progress: Progress | None = None,
        registry: Registry = default_registry,
    ) -> None:
        self._model = host.check_model_argument(input_model_path_or_bytes)
        self._session = host.copy_options(sess_options)
        config = self._session.config()
        self._level = check_level(graph_optimization_level, config.engine)
        self._embedded = _parse_embed(embed_compiled_data_into_model, config)
        self._placement = make_placement(
            external_initializers_file_path,
            external_initializers_size_threshold,
            get_initializer_location_func,
            config.external_initializers_file,
        )
        self._flags = OrtCompileApiFlags(flags)
        self._progress = host.wrap_progress(progress)
        self._registry = registry
        self._binary_information: Path | None = None
        self._write_function: WriteCallback | None = None
        self._running = threading.Lock()
        self._report: CompileReport | None = None

    @property
    def report(self) -> CompileReport | None:
        """Report of the last compile that succeeded; None before the first."""
        return self._report

    def set_ep_context_binary_information(
        self, output_directory: PathInput, model_name: str
    ) -> None:
        """Set the folder and the base name of binaries, as the C API's
        SetEpContextBinaryInformation.

        Args:
            output_directory: for a compile to a file, its folder or one below it, which
                is created if it is missing; for bytes and streams any folder, or one
                below that of `ep.context_file_path`.
            model_name: a file name; its stem, without one trailing `_ctx`, begins the
                binaries' names.

        Raises:
            InvalidArgument: the name is not a file name.
            Fail: a compile is in progress.
        """
        self._refuse_while_running("where binaries go")
        if not is_plain_name(model_name):
            raise InvalidArgument(
                f"binaries cannot be named after {model_name!r:.80}, which is not a "
                "plain file name.",
                hint="Give a name such as model.onnx, and the folder apart from it.",
            )
        self._binary_information = Path(
            host.check_path("output_directory", output_directory), model_name
        )

    def set_ep_context_data_write_func(self, write_func: WriteCallback) -> None:
        """Hand payloads that are not embedded to `f(name, data)` instead of writing
        files.

        It is called once for each payload, before the model is written; `data` is an
        `OrtEpContextData`.

        Raises:
            InvalidArgument: it is not a function.
            Fail: a compile is in progress.
        """
        self._refuse_while_running("the write callback")
        self._write_function = host.check_function(
            "set_ep_context_data_write_func", write_func
        )

    def clear_ep_context_data_write_func(self) -> None:
        """Write files again.

        Raises:
            Fail: a compile is in progress.
        """
        self._refuse_while_running("the write callback")
        self._write_function = None

    def compile_to_file(
        self, output_model_path: PathInput | None = None
    ) -> CompileReport:
        """Compile, and write the context model with its files, all or none.

        Args:
            output_model_path: path of the context model; None for
                `ep.context_file_path`, and without that for the input's name with
                `_ctx.onnx`. A missing folder is created. An existing model is replaced
                unless the flags forbid it, but never the source itself.

        Raises:
            NoSuchFile: the model does not exist.
            InvalidArgument: the output path is wrong or names a folder, or an EP or
                option does not exist.
            InvalidProtobuf, InvalidGraph: the file is not a model, or not a valid one.
            Fail: the output exists or nothing was compiled, and the flags forbid it;
                the folder is not writable; a compile with this compiler is in progress;
                a callback raised; the model would exceed 2 GiB.
            EPFail: an EP raised while it compiled.
            PluginError: a plugin is broken.
            ModelLoadCanceled: the load cancellation flag was set.
        """
        return self._run(
            host.check_optional(host.check_path, "output_model_path", output_model_path)
        )

    def compile_to_bytes(self) -> bytes:
        """Compile, and return the context model; `report` then holds the report.

        Binaries, and initializers in a file, go into the folder of
        `ep.context_file_path` or the one that `set_ep_context_binary_information`
        names, never into the current one by accident.

        Raises:
            InvalidArgument: there are such files and no folder for them.
            EpctxError: see `compile_to_file`.
        """
        whole = io.BytesIO()
        # Chunks are not joined: views of mapped weights would all be resident at once.
        self._run(None, whole.writelines)
        return whole.getvalue()

    def compile_to_stream(self, write_function: Callable[[bytes], object]) -> None:
        """Compile, and pass the context model to a function; `report` then holds the
        report.

        The function gets chunks of 65,536 bytes, the last one shorter. For other files
        see `compile_to_bytes`; they appear after the last chunk was taken.

        Raises:
            Fail: the function raised.
            EpctxError: see `compile_to_bytes`.
        """
        write = host.check_function("compile_to_stream", write_function)

        def sink(chunks: Iterator[memoryview]) -> None:
            for chunk in _resize(chunks, STREAM_CHUNK):
                with blame_host("the write function of compile_to_stream raised"):
                    write(chunk)

        self._run(None, sink)

    @convert_errors("compiling the model")
    def _run(self, output: str | None, sink: ModelSink | None = None) -> CompileReport:
        """Compile; the model goes to the sink, or without one into the destination's
        file.
        """
        if not self._running.acquire(blocking=False):
            raise Fail(
                "Compilation is already in progress with this ModelCompiler.",
                hint=_BUSY,
            )
        try:
            config = self._session.config()
            self._report = (Member if config.share_contexts else Compile)(
                request=Request.from_options(
                    self._model,
                    self._session,
                    self._registry,
                    self._session.providers,
                    self._progress,
                ),
                destination=make_destination(
                    get_model_path(self._model),
                    config.context_file_path if output is None else output,
                    replace=not self._flags
                    & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS,
                    binaries=self._binary_information,
                    placement=self._placement,
                    in_memory=sink is not None,
                ),
                sink=sink,
                embedded=self._embedded,
                flags=self._flags,
                level=self._level,
                deliver=self._write_function,
            ).run()
        finally:
            self._running.release()
        return self._report

    def _refuse_while_running(self, setting: str) -> None:
        if self._running.locked():
            raise Fail(
                f"{setting} cannot be changed while compilation is in progress.",
                hint=_BUSY,
            )


def _resize(chunks: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """Yield the same bytes in chunks of one size; the last one may be shorter."""
    waiting = bytearray()
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            waiting += chunk[start : start + size]
            if len(waiting) >= size:
                yield bytes(waiting[:size])
                del waiting[:size]
    if waiting:
        yield bytes(waiting)


@dataclass(frozen=True, kw_only=True)
class ShareReport:
    """Report of a share group.

    Attributes:
        folder: folder of all files.
        members: one report for each model, in the order in which they were added.
        binaries: one for each payload; every model of the group needs those of its EPs.
        saved_bytes: bytes of the models' weights that separate binaries would have
            stored again; only weights that EPs handed over as such count.
    """

    folder: Path
    members: tuple[CompileReport, ...]
    binaries: tuple[OutputFile, ...]
    saved_bytes: int

    @property
    def outputs(self) -> tuple[OutputFile, ...]:
        """All files that were written: binaries, then those of each model."""
        return (
            *self.binaries,
            *(file for member in self.members for file in member.outputs),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON that `epctx share --json` prints."""
        return {
            "folder": str(self.folder),
            "files": [file.as_dict() for file in self.outputs],
            "saved_bytes": self.saved_bytes,
            "members": [member.as_dict() for member in self.members],
        }


class ShareGroup:
    """Compiles several models into one group: N context models and one binary for each
    EP.

    Equal weights are stored once, whatever their names and models. A `with` block that
    ends without an exception writes all files, which appear together; until then there
    are none, and an exception discards the group. Several groups may be built at once.
    A group serves one thread at a time.

    Args:
        output_dir: the folder of all files; None for the first model's.
        flags: `OrtCompileApiFlags`, for each model.
        graph_optimization_level: see `ModelCompiler`.
        progress: called with (stage, done, total); a total of 0 says that `done` are
            bytes written.
        registry: registry that finds the EPs.

    Raises:
        InvalidArgument: an argument has a wrong type.

    Examples:
        >>> with ShareGroup("out") as group:
        ...     group.compile("prefill.onnx", so)
        ...     group.compile("decode.onnx", so)
        >>> [file.path for file in group.report.outputs]
        ['prefill_qnn.bin', 'prefill_ctx.onnx', 'decode_ctx.onnx']
    """

    # until __init__ succeeds: a group with wrong arguments has nothing to discard
    _is_over = True

    def __init__(
        self,
        output_dir: PathInput | None = None,
        *,
        flags: OrtCompileApiFlags | int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel | None = None,
        progress: Progress | None = None,
        registry: Registry = default_registry,
    ) -> None:
        folder = host.check_optional(host.check_path, "output_dir", output_dir)
        self._folder = None if folder is None else Path(folder)
        self._flags = OrtCompileApiFlags(flags)
        self._level = check_level(graph_optimization_level, None)
        self._progress = host.wrap_progress(progress)
        self._registry = registry
        self._group = Group()
        self._members: list[Member] = []
        self._open = ExitStack()
        self._report: ShareReport | None = None
        # The group in another process, which its first model may ask for.
        self._isolated: Any = None
        self._process = os.getpid()
        self._is_over = False

    def __enter__(self) -> Self:
        """Return the group."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the group, or discard it after an exception; do nothing if it is over.

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
                names = ", ".join(repr(m.destination.model) for m in self._members)
                warnings.warn(
                    f"the share group of {names} was left without an end: nothing was "
                    "written.",
                    ResourceWarning,
                    stacklevel=2,
                    source=self,
                )
            self.discard()

    @property
    def report(self) -> ShareReport:
        """Report of what was written.

        Raises:
            Fail: the group was not written.
        """
        if self._report is None:
            raise Fail(
                "this share group was not written, so there is no report.",
                hint="It is there when the group's block has ended, or after finish().",
            )
        return self._report

    def discard(self) -> None:
        """End the group without writing anything; do nothing if it is over."""
        self._is_over = True
        if os.getpid() != self._process:
            keep_forever(self._open)
            return
        self._members.clear()
        self._open.close()

    @convert_errors("compiling a model of the share group")
    def compile(
        self,
        model: ModelInput,
        sess_options: SessionOptions,
        *,
        name: str | None = None,
    ) -> None:
        """Compile a model into the group; its files appear with all others.

        Args:
            model: a path or bytes.
            sess_options: EPs and session options; a copy is kept. EPs and their options
                must be the same as those of the group's first model, anything else may
                differ, such as lengths of open dimensions.
            name: the stem of its context model, `<name>_ctx.onnx`; None for the model's
                own. Needed for bytes, and where two models have one stem.

        Raises:
            InvalidArgument: two models would get one name, the EPs differ from those of
                the group, a name is not a file name, the model is a context model, or
                options leave nothing to share, such as `ep.context_embed_mode=1`.
            Fail: the group is over.
            EpctxError: as `ModelCompiler.compile_to_file`. The group stays as it was.
        """
        self._refuse_over()
        is_first = self._isolated is None
        if isolated := self._find_isolated(sess_options):
            try:
                isolated.compile(model, sess_options, name)
            except BaseException:
                # The next model is the first one again, in another process.
                if is_first:
                    isolated.discard()
                    self._isolated = None
                raise
            return
        with ExitStack() as stack:
            if not self._members:
                # Of a first model that fails, nothing stays.
                stack.callback(self._group.close)
            member = self._make_member(model, host.copy_options(sess_options), name)
            with member.request.cancel.by_interrupt():
                chosen = member.choose()
                stack.enter_context(closing(chosen))
                first = self._members[0].work if self._members else chosen
                if fingerprint_providers(chosen.choices) != fingerprint_providers(
                    first.choices
                ):
                    raise InvalidArgument(
                        "the models of a share group are compiled by the same EPs "
                        "with the same options.",
                        hint=(
                            "Use a share group of its own for each set of EPs and "
                            "options."
                        ),
                    )
                opened = member.open(chosen)
                member.compile(opened, stack.enter_context(member.settle(opened)))
            self._open.push(stack.pop_all())

        self._folder = member.destination.folder
        self._members.append(member)

    def _find_isolated(self, session: SessionOptions) -> Any:
        """Return the group in another process; None if the first model is compiled
        here.
        """
        config = host.copy_options(session).config()
        if (
            self._isolated is None
            and not self._members
            and config.compile_isolation is not Isolation.NONE
        ):
            from epctx_core.sessions.isolation import use_isolation

            arguments = {
                "output_dir": self._folder,
                "flags": self._flags,
                "graph_optimization_level": self._level,
                "progress": self._progress,
                "registry": self._registry,
            }
            with use_isolation(config) as isolation:
                self._isolated = isolation.share(config, arguments)
            self._open.callback(self._isolated.discard)
        return self._isolated

    def _make_member(
        self,
        model: ModelInput,
        session: SessionOptions,
        name: str | None,
    ) -> Member:
        config = session.config()
        if config.stop_sharing or config.context_file_path is not None:
            option = (
                "ep.stop_share_ep_contexts"
                if config.stop_sharing
                else "ep.context_file_path"
            )
            raise InvalidArgument(
                f"{option} has no meaning in a ShareGroup, which names the outputs of "
                "its models and ends with its block or finish().",
                hint=(
                    "Leave the option out. Give ShareGroup an output_dir, and "
                    "compile() a name."
                ),
            )
        path = get_model_path(host.check_model_argument(model))
        return Member(
            request=Request.from_options(
                model, session, self._registry, session.providers, self._progress
            ),
            destination=self._make_destination(
                path, name, config.external_initializers_file
            ),
            embedded=config.embed,
            group=self._group,
            flags=self._flags,
            level=self._level,
        )

    @convert_errors("writing the share group")
    def finish(self) -> ShareReport:
        """Write all context models and the binaries, all or none, and end the group.

        The end of a `with` block does this. If it fails, the group stays as it was.

        Raises:
            Fail: no model was compiled, a file belongs to a model outside of the group,
                or the system refused a step.
            PluginError: an EP does not describe its nodes, or write its binary, as it
                should.
        """
        self._refuse_over()
        if self._isolated is not None:
            with settle_death(self._folder):
                self._report = self._isolated.finish(ShareReport)
            self.discard()
            return self._report
        if not self._members:
            raise Fail(
                "a share group without a model cannot be written.",
                hint="compile() its models first, or discard() it.",
            )

        last = self._members[-1]
        with last.report_stage("write"), last.request.cancel.by_interrupt():
            payloads = self._group.write(self._members, last, is_end=True)
        self._report = ShareReport(
            folder=self._folder or Path(),
            members=tuple(m.make_report() for m in self._members),
            binaries=tuple(
                OutputFile.from_entry(each.make_entry()) for each in payloads
            ),
            saved_bytes=count_saved_bytes(
                (m.work.assignment.partitions for m in self._members), payloads
            ),
        )
        self.discard()
        return self._report

    def _refuse_over(self) -> None:
        if self._is_over or os.getpid() != self._process:
            raise Fail(
                "this share group is over."
                if self._is_over
                else "this share group was made before the process was forked: its "
                "models are the parent's.",
                hint=(
                    "Write it in the process that made it, or make another ShareGroup."
                ),
            )

    def _make_destination(
        self, path: Path | None, name: str | None, initializers: str | None
    ) -> Destination:
        if path is None and (name is None or self._folder is None):
            raise InvalidArgument(
                "a model that is given as bytes needs a name in a share group, and "
                "the group a folder.",
                hint=(
                    'ShareGroup(output_dir="..."), and compile(model, sess_options, '
                    'name="...")'
                ),
            )

        if name is not None and not is_plain_name(name):
            raise InvalidArgument(
                f"a context model cannot be named after {name!r:.80}, which is not a "
                "plain file name.",
                hint="Give a name without a folder.",
            )

        folder = self._folder or (Path() if path is None else path.parent)
        output = (
            folder
            / f"{path.stem if name is None and path is not None else name}_ctx.onnx"
        )
        used = {
            file.casefold()
            for member in self._members
            for file in (member.destination.model, member.destination.placement.file)
            if file is not None
        }
        for file in (output.name, initializers):
            if file is not None and file.casefold() in used:
                raise InvalidArgument(
                    f"two models of the share group would both be written to {file!r}.",
                    path=folder / file,
                    hint=(
                        "Give one of them a name of its own: name= of compile(), "
                        "--name of epctx share; files for initializers get theirs in "
                        "the model's own sess_options."
                    ),
                )

        return make_destination(
            path,
            str(output),
            replace=not self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS,
            placement=make_placement(None, DEFAULT_THRESHOLD, None, initializers),
        )


def _parse_embed(argument: object, config: SessionConfig) -> bool:
    """Return whether to store payloads in the model: the argument, or without one the
    session option.

    Raises:
        InvalidArgument: the argument is neither true nor false.
    """
    if argument is None:
        return config.embed
    if argument not in (False, True):
        raise InvalidArgument(
            f"embed_compiled_data_into_model is {argument!r:.80}, which is neither "
            "True nor False.",
            hint="Leave it out to use ep.context_embed_mode.",
        )
    return bool(argument)


@convert_errors("loading the model")
def prepare_export(request: Request) -> Compile:
    """Return the compile that writes the context model of a session; never over one
    that exists, as in ONNX Runtime.

    Args:
        request: that of the session.

    Raises:
        InvalidArgument: options that contradict a share group, or an output path that
            names a folder.
        Fail: the context model exists, or the system refuses its path.
    """
    config = request.config
    export = (Member if config.share_contexts else Compile)(
        request=request,
        destination=make_destination(
            get_model_path(request.source),
            config.context_file_path,
            replace=False,
            placement=make_placement(None, 0, None, config.external_initializers_file),
        ),
        embedded=config.embed,
        plain=False,
    )
    export.check_destination()
    return export
