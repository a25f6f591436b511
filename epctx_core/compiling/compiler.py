"""`ModelCompiler`: ONNX Runtime's compile API."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.compiling.compile import Compile, CompileRequest
from epctx_core.compiling.destination import BinaryInformation, destination_of
from epctx_core.compiling.initializers import DEFAULT_THRESHOLD, LocationFunc, placement_of
from epctx_core.compiling.outputs import ModelSink, to_stream
from epctx_core.context.callbacks import WriteCallback, WriteFunction
from epctx_core.context.named_files import is_plain_name
from epctx_core.errors import Fail, InvalidArgument, errors_typed
from epctx_core.options import GraphOptimizationLevel, OrtCompileApiFlags, SessionOptions
from epctx_core.registry import Registry, default_registry
from epctx_core.sessions.boundary import given_function, given_model, given_options
from epctx_core.sessions.compile_host import embeds, given_path, if_given, path_of, reported_progress
from epctx_core.sessions.optimise import check_level

if TYPE_CHECKING:
    from epctx_core.compiling.report import CompileReport
    from epctx_core.sessions.providers import Progress


class ModelCompiler:
    """Compiles a model ahead of time; arguments as `onnxruntime.ModelCompiler`.

    One compiler may be used again, by one thread at a time. To stop a compile from another thread, call
    `set_load_cancellation_flag(True)` of the options; EPs see that, and Ctrl-C, as `ProviderContext.cancel`.

    Args:
        sess_options: the EPs (`add_provider`) and session options to compile with; a copy is kept.
        input_model_path_or_bytes: the source.
        embed_compiled_data_into_model: True to store payloads in the model; overrides
            `ep.context_embed_mode`.
        external_initializers_file_path: a file for the initializers that stay, relative to the context
            model; overrides `ep.context_model_external_initializers_file_name`, whose threshold is 0.
        external_initializers_size_threshold: bytes from which an initializer goes into that file.
        flags: `OrtCompileApiFlags`.
        graph_optimization_level: how far the whole model is optimised before EPs see it: BASIC uses
            ONNX's operators only; EXTENDED also onnxruntime's own, which few EPs take. Both need
            onnxruntime. That of `sess_options` has no meaning here.
        get_initializer_location_func: `f(name, value, where it lies now or None)` gives an
            `OrtExternalInitializerInfo` that says where the host put an initializer, or None for in the
            model; not together with a file.
        progress: called with (stage, done, total).
        registry: where EPs are looked up.

    Raises:
        InvalidArgument: an argument that is wrong, or two that contradict each other.

    Example:
        >>> so = SessionOptions()
        >>> so.add_provider("QNN", {"htp_arch": "73"})
        >>> report = ModelCompiler(so, "model.onnx").compile_to_file()
        >>> [file.path for file in report.outputs]
        ['model_qnn.bin', 'model_ctx.onnx']
    """

    def __init__(  # noqa: PLR0913 - as onnxruntime.ModelCompiler
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: str | os.PathLike[str] | bytes,
        embed_compiled_data_into_model: bool | None = None,
        external_initializers_file_path: str | os.PathLike[str] | None = None,
        external_initializers_size_threshold: int = DEFAULT_THRESHOLD,
        flags: OrtCompileApiFlags | int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: LocationFunc | None = None,
        *,
        progress: Progress | None = None,
        registry: Registry = default_registry,
    ) -> None:
        self._model = given_model(input_model_path_or_bytes)
        self._session = given_options(sess_options)
        config = self._session.config()
        self._level = check_level(graph_optimization_level, config.engine)
        self._embedded = embeds(embed_compiled_data_into_model, config)
        self._placement = placement_of(
            if_given(given_path, "external_initializers_file_path", external_initializers_file_path),
            external_initializers_size_threshold,
            if_given(given_function, "get_initializer_location_func", get_initializer_location_func),
            config.external_initializers_file,
        )
        self._flags = OrtCompileApiFlags(flags)
        self._progress = reported_progress(if_given(given_function, "progress", progress))
        self._registry = registry
        self._binary_information: BinaryInformation | None = None
        self._write_function = WriteFunction()
        self._running = threading.Lock()
        self._report: CompileReport | None = None

    @property
    def report(self) -> CompileReport | None:
        """What the last compile that succeeded did; None before the first."""
        return self._report

    def set_ep_context_binary_information(
        self, output_directory: str | os.PathLike[str], model_name: str
    ) -> None:
        """Say where binaries go and what they are named after, as the C API's SetEpContextBinaryInformation.

        Args:
            output_directory: for a compile to a file, its folder or one below it, which is made if need be;
                for bytes and streams any folder, or one below that of `ep.context_file_path`.
            model_name: a file name; its stem, without one trailing `_ctx`, begins the binaries' names.

        Raises:
            InvalidArgument: the name is none of a file.
            Fail: a compile is in progress.
        """
        self._refuse_while_running("where binaries go")
        if not is_plain_name(model_name):
            raise InvalidArgument(
                f"binaries cannot be named after {model_name!r:.80}, which is no plain file name.",
                hint="Give a name such as model.onnx, and the folder apart from it.",
            )
        folder = Path(given_path("output_directory", output_directory))
        self._binary_information = BinaryInformation(folder=folder, name=model_name)

    def set_ep_context_data_write_func(self, function: WriteCallback) -> None:
        """Hand payloads that are not embedded to `f(name, data)` instead of writing files.

        It is called once for each payload, before the model is written; `data` is an `OrtEpContextData`.

        Raises:
            InvalidArgument: it is no function.
            Fail: a compile is in progress.
        """
        self._refuse_while_running("the write callback")
        self._write_function.set(function)

    def clear_ep_context_data_write_func(self) -> None:
        """Write files again.

        Raises:
            Fail: a compile is in progress.
        """
        self._refuse_while_running("the write callback")
        self._write_function.clear()

    def compile_to_file(self, output_model_path: str | os.PathLike[str] | None = None) -> CompileReport:
        """Compile, and write the context model with its files, all or none.

        Args:
            output_model_path: where; None for `ep.context_file_path`, and without that for the
                input's name with `_ctx.onnx`. A missing folder is created. A model that is there is
                replaced unless the flags forbid it, but never the source itself.

        Raises:
            NoSuchFile: no such model.
            InvalidArgument: an output path that is none or names a folder, an EP or option that does not exist.
            InvalidProtobuf, InvalidGraph: the model is none, or is not valid.
            Fail: the output exists or nothing was compiled, and the flags forbid it; the folder is not
                writable; a compile with this compiler is in progress; a callback raised; the model would exceed 2 GiB.
            EPFail: an EP raised while it compiled.
            PluginError: a plugin is broken.
            ModelLoadCanceled: the load cancellation flag was set.
        """
        return self._run(if_given(given_path, "output_model_path", output_model_path))

    def compile_to_bytes(self) -> bytes:
        """Compile, and return the context model; `report` then says what was done.

        Binaries, and initializers in a file, go into the folder of `ep.context_file_path` or the one that
        `set_ep_context_binary_information` names, never into the current one by accident.

        Raises:
            InvalidArgument: there are such files, and nothing says where they go.
            EpctxError: see `compile_to_file`.
        """
        whole = io.BytesIO()
        # Not joined: views of mapped weights would all be resident at once.
        self._run(None, whole.writelines)
        return whole.getvalue()

    def compile_to_stream(self, write_function: Callable[[bytes], object]) -> None:
        """Compile, and hand the context model to a function; `report` then says what was done.

        The function gets pieces of 65,536 bytes, the last one shorter. For other files see `compile_to_bytes`;
        they appear after the last piece was taken.

        Raises:
            Fail: the function raised.
            EpctxError: see `compile_to_bytes`.
        """
        self._run(None, to_stream(given_function("compile_to_stream", write_function)))

    @errors_typed("compiling the model")
    def _run(self, output: str | None, sink: ModelSink | None = None) -> CompileReport:
        """Compile; the model goes to the sink, or without one into the destination's file."""
        if not self._running.acquire(blocking=False):
            raise Fail(
                "Compilation is already in progress with this ModelCompiler.",
                hint="Wait for it, or make another ModelCompiler.",
            )
        try:
            request = CompileRequest(
                session=self._session,
                model=self._model,
                destination=destination_of(
                    path_of(self._model),
                    self._session.config().context_file_path if output is None else output,
                    replace=not self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS,
                    binaries=self._binary_information,
                    initializers=self._placement.file,
                    in_memory=sink is not None,
                ),
                sink=sink,
                embedded=self._embedded,
                placement=self._placement,
                flags=self._flags,
                level=self._level,
                progress=self._progress,
                registry=self._registry,
                deliver=self._write_function.opener(),
            )
            self._report = Compile(request).run()
        finally:
            self._running.release()
        return self._report

    def _refuse_while_running(self, what: str) -> None:
        if self._running.locked():
            raise Fail(
                f"{what} cannot be changed while compilation is in progress.",
                hint="Wait for it, or make another ModelCompiler.",
            )
