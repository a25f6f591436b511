"""Sessions that another process loads and runs, or whose EPs compile there and run in
this one.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from epctx_core.compiling.compile import Compile
from epctx_core.compiling.compiler import prepare_export
from epctx_core.compiling.destination import make_destination
from epctx_core.compiling.initializers import DEFAULT_THRESHOLD, make_placement
from epctx_core.context.node import is_context_node
from epctx_core.context.scratch import make_scratch_folder
from epctx_core.errors import InvalidArgument, NotImplementedByProvider
from epctx_core.graph.mapping import OpenedFiles
from epctx_core.graph.model_io import get_model_path
from epctx_core.graph.walks import walk_indexed_nodes
from epctx_core.options import (
    SESSION_OPTIONS,
    CachePart,
    GraphOptimizationLevel,
    Isolation,
    ModelOverrides,
)
from epctx_core.options.choices import CPU_EP
from epctx_core.publish.publication import settle_death
from epctx_core.sessions.host import host_call
from epctx_core.sessions.isolation import load_elsewhere
from epctx_core.sessions.load import load_session
from epctx_core.sessions.source import read_source
from epctx_core.sessions.stages import make_stages

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_core.compiling.report import CompileReport
    from epctx_core.sessions.load import SessionState
    from epctx_core.sessions.stages import Request

_FOR_PLAIN = frozenset(
    {
        GraphOptimizationLevel.ORT_DISABLE_ALL,
        GraphOptimizationLevel.ORT_ENABLE_BASIC,
        GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    }
)
"""Levels of a session at which the whole model is optimised, or nothing of it."""


@host_call("loading the model")
def load_isolated(request: Request) -> SessionState | None:
    """Have another process load a model that it exports or, into a private folder or
    where the session exports to, only compile it; None for a model of which nothing is
    to be compiled.

    Raises:
        InvalidArgument: the session is a member of a share group, or an EP takes nodes
            that stay in the model.
        NotImplementedByProvider: an EP cannot save what it compiles.
        EpctxError: see `ModelCompiler` and `InferenceSession`.
    """
    if request.config.isolation is Isolation.ALL:
        with settle_death(prepare_export(request).destination.folder):
            return load_elsewhere(request)  # type: ignore[no-any-return]
    if not request.requested or _is_compiled(request):
        return None
    if request.config.share_contexts:
        raise InvalidArgument(
            "ep.isolate=compile and ep.share_ep_contexts=1 contradict each other "
            "in a session: EPs share objects within one process only. So does "
            "ep.compile_timeout, which isolates compiles.",
            hint="Leave one of the two out.",
        )
    with ExitStack() as stack:
        compiled = _compile(request, stack.enter_context(make_scratch_folder()))
        state = load_session(compiled, is_compiled=True)
        # What is mapped lies there.
        state.providers.scratch.push(stack.pop_all())
        return state


def _is_compiled(request: Request) -> bool:
    """Return whether a model has EPContext nodes: a context model is loaded here."""
    with OpenedFiles() as opened:
        # No EP is chosen: none keeps functions, or asks for a digest.
        source = read_source(
            request.source, request.config, set, opened=opened, digested=False
        )
        nodes = walk_indexed_nodes(source.proto.graph)
        return any(is_context_node(node) for _, _, node in nodes)


def _compile(request: Request, folder: Path) -> Request:
    """Have another process compile a model; return the request for the result."""
    export = (
        prepare_export(request)
        if request.config.context_enable
        else _prepare_private(request, folder)
    )
    try:
        report = export.run()
    except NotImplementedByProvider as error:
        error.hint = "Set ep.isolate=all: the EP then runs there, too."
        raise

    _refuse_kept_nodes(report)
    output = report.output if report.outputs else None
    compiled = replace(request, source=output or request.source, resources=ExitStack())
    if report.outputs:
        # Options about the source were for the compile.
        entries = {
            key: value
            for key, value in request.config.entries.items()
            if key not in SESSION_OPTIONS
            or SESSION_OPTIONS[key].cache is not CachePart.SOURCE
        }
        overrides = ModelOverrides()
        config = replace(request.config, entries=entries, overrides=overrides)
        compiled = replace(compiled, config=config, stages=make_stages(config))
    return compiled


def _refuse_kept_nodes(report: CompileReport) -> None:
    """Raise InvalidArgument if an EP took nodes that stay in the model: there is
    nothing to load of them.
    """
    compiled = Counter(dict.fromkeys(report.assignments, 0))
    for partition in report.partitions:
        compiled[partition.ep] += partition.nodes
    for ep, count in report.assignments.items():
        if ep != CPU_EP and count > compiled[ep]:
            raise InvalidArgument(
                f"{ep} runs nodes that stay in the model, which ep.isolate=compile, "
                "which ep.compile_timeout includes, cannot load from another process.",
                ep=ep,
                hint="Set ep.isolate=all, or leave out ep.compile_timeout or the EP.",
            )


def _prepare_private(request: Request, folder: Path) -> Compile:
    """Return the compile into a folder of the session's own."""
    level = GraphOptimizationLevel(request.session.graph_optimization_level)
    return Compile(
        request=request,
        destination=make_destination(
            get_model_path(request.source),
            str(folder / "model_ctx.onnx"),
            replace=True,
            # A model may be larger than one file.
            placement=make_placement(None, DEFAULT_THRESHOLD, None, "model.weights"),
        ),
        embedded=False,
        # Without a compiled node the session has its own model.
        plain=False,
        level=level if level in _FOR_PLAIN else None,
    )
