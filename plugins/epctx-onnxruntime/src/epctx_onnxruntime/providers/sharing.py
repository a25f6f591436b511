"""Models as onnxruntime's compiler gets them, and the compile of several into one
binary.

A share group of onnxruntime's is state of the process: there is one at a time, and a
model that fails spoils it. So all models of a group are compiled in a process of their
own, once they are known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.errors import Fail, NotImplementedByProvider, quote
from epctx_onnxruntime.custom_operators import register_libraries
from epctx_onnxruntime.real import onnxruntime
from epctx_onnxruntime.versions import compile_model, ort_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np
    from onnx import ModelProto

    from epctx_core.plugin import ContextWriter, Partition, ProviderContext, Workspace

_CONTEXT_PATH = "ep.context_file_path"
_MODEL_FOLDER = "session.model_external_initializers_file_folder_path"
SHARE = "ep.share_ep_contexts"
_STOP = "ep.stop_share_ep_contexts"
_ALONE = "Compile the models without a share group."


@dataclass(frozen=True, kw_only=True, eq=False)
class SourceModel:
    """Model to compile.

    Attributes:
        name: text that no other content has.
        content: the model, without the weights that are lent.
        weights: those, by name.
        level: number of the level at which onnxruntime optimises it.
    """

    name: str
    content: bytes
    weights: Mapping[str, np.ndarray]
    level: int

    def compile(self, options: onnxruntime.SessionOptions, folder: Path) -> ModelProto:
        """Return the model with EPContext nodes; their binaries are in the folder.

        Raises:
            Exception: onnxruntime's, which have no base of their own.
        """
        kept = lend(self.weights, options)
        # The context model stays in memory: EPs read where binaries go, and their name,
        # out of this entry.
        options.add_session_config_entry(
            _CONTEXT_PATH, str(folder / f"{self.name}.onnx")
        )
        # Nothing is read from there: onnxruntime makes names of graphs of it, which
        # have to differ in a binary of several models.
        options.add_session_config_entry(_MODEL_FOLDER, self.name)
        compiler = onnxruntime.ModelCompiler(
            options,
            self.content,
            get_initializer_location_func=_leave_out,
            graph_optimization_level=onnxruntime.GraphOptimizationLevel(self.level),
        )
        compiled = compile_model(compiler)
        del kept
        return compiled


def lend(
    weights: Mapping[str, np.ndarray], options: onnxruntime.SessionOptions
) -> list[onnxruntime.OrtValue]:
    """Lend weights to the model of a session; return their values, to keep until it was
    read.
    """
    values = [ort_value(array) for array in weights.values()]
    if values:
        options.add_external_initializers(list(weights), values)
    return values


def _leave_out(
    _name: str, value: onnxruntime.OrtValue, _info: object
) -> onnxruntime.OrtExternalInitializerInfo:
    # Weights of nodes that the EP leaves to others are not wanted.
    return onnxruntime.OrtExternalInitializerInfo(
        "left-out", 0, value.tensor_size_in_bytes()
    )


def collect_sources(
    compiled: Iterable[tuple[Partition, Any]],
    workspace: Workspace,
    writer: ContextWriter,
) -> dict[str, SourceModel] | None:
    """Note the sources of a model's programs for its share group; return all so far by
    the names of their graphs, None where the model is alone or has nothing to share.
    """
    group: dict[str, tuple[str, SourceModel]] = workspace.get_or_create("sources", dict)
    own = {
        partition.name: (program.name, program.source)
        for partition, program in compiled
        if program.source is not None
    }
    group |= own
    names = chain.from_iterable(writer.graphs_by_model)
    sources = dict(group[name] for name in names if name in group)
    is_alone = writer.final and len(writer.graphs_by_model) == 1
    return None if not sources or (own and is_alone) else sources


def compile_together(
    sources: Mapping[str, SourceModel],
    make_options: Callable[..., onnxruntime.SessionOptions],
    context: ProviderContext,
    libraries: Sequence[str],
    folder: Path,
) -> Path:
    """Return one binary of programs that were compiled alone before.

    Args:
        sources: the models, by the names of the programs' graphs.
        make_options: makes options of a session of given options of the EP; see
            `OnnxRuntimeProvider.make_session_options`.
        context: the EP's options; for cancellation and progress.
        libraries: paths of libraries of custom operators.
        folder: a new folder for the binary.

    Raises:
        NotImplementedByProvider: epctx-isolation is not installed.
        Fail: onnxruntime does not compile them into one, or the process ended.
    """
    try:
        from epctx_isolation import IsolatedFunctions
    except ModuleNotFoundError as error:
        raise NotImplementedByProvider(
            "share groups are compiled in a process of their own, and epctx-isolation, "
            "which starts it, is not installed.",
            hint="pip install epctx-isolation",
        ) from error
    # A model has several programs, and may be in the group twice.
    models = [*{source.name: source for source in sources.values()}.values()]
    folder.mkdir()

    graphs: set[str] = set()
    with IsolatedFunctions(seconds=math.inf, max_bytes=None) as functions:
        for number, model in enumerate(models):
            context.cancel.raise_if_requested()
            context.progress("compile", number, len(models))
            graphs.update(
                functions.call(
                    _compile_member,
                    model,
                    partial(make_options, dict(context.options), compiles=True),
                    libraries,
                    str(folder),
                    model is models[-1],
                    result=tuple[str, ...],
                )
            )
    binaries = list(folder.iterdir())
    if len(binaries) != 1 or not graphs.issuperset(sources):
        raise Fail(
            "onnxruntime did not compile the models of the share group into one "
            f"binary: of {sorted(sources)} it compiled {sorted(graphs)}.",
            hint=_ALONE,
        )
    return binaries[0]


def _compile_member(
    model: SourceModel,
    make_options: Callable[[], onnxruntime.SessionOptions],
    libraries: Iterable[str],
    folder: str,
    is_last: bool,
) -> tuple[str, ...]:
    """Compile a model of the share group of this process, which writes the binary with
    the last; return the names of its graphs.
    """
    options = make_options()
    register_libraries(options, libraries)
    options.add_session_config_entry(SHARE, "1")
    options.add_session_config_entry(_STOP, str(int(is_last)))
    try:
        compiled = model.compile(options, Path(folder))
    except MemoryError:
        raise
    except Exception as error:
        raise Fail(
            f"onnxruntime does not compile a model of the share group: {quote(error)}",
            hint=_ALONE,
        ) from error
    return tuple(
        attribute.s.decode()
        for node in compiled.graph.node
        for attribute in node.attribute
        if attribute.name == "partition_name"
    )
