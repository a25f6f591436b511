"""`ModelCompiler`: ONNX Runtime's compile API."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.compile.destination import Destination, destination_of
from epctx_core.compile.emit import check_can_export
from epctx_core.compile.node_names import check_names
from epctx_core.compile.optimise import check_level, optimise_model
from epctx_core.compile.pipeline import assign_nodes, compile_partitions, write_context_model
from epctx_core.compile.providers import (
    Progress,
    ProviderChoice,
    ProviderSession,
    choose_providers,
    kept_functions,
    reported_progress,
)
from epctx_core.compile.report import CompileReport, Stopwatch, make_report
from epctx_core.compile.source import OpenModel, open_model, refuse_compiled
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.graph.garbage import collection_paused
from epctx_core.kernels import CpuEngine, EnginePolicy
from epctx_core.options import GraphOptimizationLevel, OrtCompileApiFlags, SessionOptions
from epctx_core.plugin import Purpose
from epctx_core.registry import Registry, default_registry

if TYPE_CHECKING:
    from epctx_core.compile.assign import Assignment

DEFAULT_THRESHOLD = 1024


class ModelCompiler:
    """Compiles a model ahead of time; arguments as `onnxruntime.ModelCompiler`.

    Args:
        sess_options: the EPs (`add_provider`) and session options to compile with.
        input_model_path_or_bytes: the source.
        embed_compiled_data_into_model: True to store payloads in the model; overrides
            `ep.context_embed_mode`.
        external_initializers_file_path, get_initializer_location_func: not supported yet; any value
            is refused.
        external_initializers_size_threshold: bytes; has a meaning only with the former.
        flags: `OrtCompileApiFlags`.
        graph_optimization_level: how far the whole model is optimised before EPs see it: BASIC uses
            ONNX's operators only; EXTENDED also onnxruntime's own, which few EPs take. Both need
            onnxruntime. That of `sess_options` has no meaning here.
        progress: called with (stage, done, total).
        registry: where EPs are looked up.

    Raises:
        InvalidArgument: an argument that is wrong or not supported.

    Example:
        >>> so = SessionOptions()
        >>> so.add_provider("QNN", {"htp_arch": "73"})
        >>> report = ModelCompiler(so, "model.onnx").compile_to_file()
        >>> [file.path for file in report.outputs]
        ['model_qnn.bin', 'model_ctx.onnx']
    """

    def __init__(
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: str | os.PathLike[str] | bytes,
        embed_compiled_data_into_model: bool | None = None,
        external_initializers_file_path: str | os.PathLike[str] | None = None,
        external_initializers_size_threshold: int = DEFAULT_THRESHOLD,
        flags: OrtCompileApiFlags | int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: Callable[..., Any] | None = None,
        *,
        progress: Progress | None = None,
        registry: Registry = default_registry,
    ) -> None:
        _refuse_unsupported(
            external_initializers_file_path=external_initializers_file_path,
            get_initializer_location_func=get_initializer_location_func,
            external_initializers_size_threshold=(
                None
                if external_initializers_size_threshold == DEFAULT_THRESHOLD
                else external_initializers_size_threshold
            ),
        )
        self._level = check_level(graph_optimization_level)
        self._session = sess_options
        self._model = input_model_path_or_bytes
        config = sess_options.config()
        config.refuse_unsupported()
        self._embedded = (
            config.embed if embed_compiled_data_into_model is None else embed_compiled_data_into_model
        )
        self._flags = OrtCompileApiFlags(flags)
        self._progress = reported_progress(progress)
        self._registry = registry

    @collection_paused()
    def compile_to_file(self, output_model_path: str | os.PathLike[str] | None = None) -> CompileReport:
        """Compile, and write the context model with its binaries, all or none.

        Args:
            output_model_path: where; None for `ep.context_file_path`, and without that for the
                input's name with `_ctx.onnx`. A model that is there is replaced unless the flags
                forbid it, but never the source itself.

        Raises:
            NoSuchFile: no such model, or no such output folder.
            InvalidArgument: an output path that names a folder, an EP or option that does not exist.
            InvalidProtobuf, InvalidGraph: the model is none, or is not valid.
            Fail: the output exists or nothing was compiled, and the flags forbid it.
            EPFail: an EP raised while it compiled.
            PluginError: a plugin is broken.
            ModelLoadCanceled: the load cancellation flag was set.
        """
        watch = Stopwatch()
        path = Path(self._model) if isinstance(self._model, (str, os.PathLike)) else None
        replace = not self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS
        choices = choose_providers(self._session.providers, self._session, self._registry)
        model = self._open(watch, choices)
        output = self._session.config().context_file_path if output_model_path is None else output_model_path
        destination = destination_of(path, output, replace=replace, reads=model.source.weights_files)
        destination.check(self._binaries(destination, choices))
        with closing(ProviderSession()) as providers:
            self._start(model, providers, choices)
            with watch.stage("optimise"):
                model = optimise_model(model, providers, self._level)
            assignment = self._compile(model, providers, watch)
            self._progress("write", 0, 1)
            outputs = write_context_model(
                model, assignment, providers, destination, embedded=self._embedded, watch=watch
            )
            self._progress("write", 1, 1)
        return make_report(assignment, output=destination.path, outputs=outputs, timings=watch.seconds)

    def _open(self, watch: Stopwatch, choices: list[ProviderChoice]) -> OpenModel:
        self._progress("read", 0, 1)
        with watch.stage("read"):
            model = open_model(
                self._model, self._session.config(), lambda: kept_functions(c.cls for c in choices)
            )
        self._progress("read", 1, 1)
        refuse_compiled(model)
        return model

    def _binaries(self, destination: Destination, choices: list[ProviderChoice]) -> dict[str, str]:
        return {} if self._embedded else {c.name: destination.binary_name(c.binary_suffix) for c in choices}

    def _start(self, model: OpenModel, providers: ProviderSession, choices: list[ProviderChoice]) -> None:
        providers.start(
            choices,
            purpose=Purpose.EXPORT,
            model=model.identity,
            session=self._session,
            engine=CpuEngine(EnginePolicy()),
            registry=self._registry,
            progress=self._progress,
        )
        check_can_export(providers)

    def _compile(self, model: OpenModel, providers: ProviderSession, watch: Stopwatch) -> Assignment:
        self._progress("partition", 0, 1)
        assignment = assign_nodes(model, providers, list(providers.choices), self._session, watch)
        self._progress("partition", 1, 1)
        if not assignment.partitions and self._flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED:
            raise Fail(
                f"no node of {model.source.where} could be compiled by {', '.join(providers.choices) or 'any EP'}.",
                path=model.source.path,
                hint=_first_refusal(assignment) or "Add an EP to the session options.",
            )
        check_names(model, assignment)
        compile_partitions(assignment, providers, self._session, purpose=Purpose.EXPORT, watch=watch)
        return assignment


def _first_refusal(assignment: Assignment) -> str:
    refusal = next(iter(assignment.refusals), None)
    return f"{refusal.ep} says: {refusal.reason}." if refusal else ""


def _refuse_unsupported(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise InvalidArgument(
                f"ModelCompiler: {name} is not supported by this version of epctx ({value!r} was given).",
                hint="Leave it out: left-over weights are stored in the context model.",
            )
