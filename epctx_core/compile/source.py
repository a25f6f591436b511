"""A model as the rest of the core works with it: read, checked, typed and indexed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.node import DOMAIN, OP_TYPE, ContextNodeRecord, read_context_nodes, read_placed_nodes
from epctx_core.context.paths import ModelFolder, OpenedFile
from epctx_core.errors import InvalidArgument, InvalidGraph, NoSuchFile
from epctx_core.graph.garbage import collection_paused
from epctx_core.graph.index import GraphIndex
from epctx_core.graph.inference import TypeTable, declared_types, infer_types
from epctx_core.graph.inlining import FunctionId, inline_functions
from epctx_core.graph.model_io import SourceModel, detach_model, parse_model, read_model
from epctx_core.kernels.contrib_types import resolve_types
from epctx_core.plugin import ModelIdentity

if TYPE_CHECKING:
    from epctx_core.options import SessionConfig

_FOLDER_OPTION = "session.model_external_initializers_file_folder_path"


@dataclass(kw_only=True)
class OpenModel:
    """A model that was read and checked.

    Attributes:
        source: structure and weights.
        types: the type of every value.
        graph: the index over the main graph.
    """

    source: SourceModel
    types: TypeTable
    graph: GraphIndex

    @cached_property
    def context_nodes(self) -> list[ContextNodeRecord]:
        """The EPContext nodes of the main graph and of all bodies."""
        graph = self.graph
        if graph.holders:
            return read_context_nodes(graph.graph)
        if (DOMAIN, OP_TYPE) not in graph.operators:
            return []
        operators = zip(graph.domains, graph.op_types, strict=True)
        places = [i for i, operator in enumerate(operators) if operator == (DOMAIN, OP_TYPE)]
        return read_placed_nodes([((), i, graph.nodes[i]) for i in places])

    @property
    def identity(self) -> ModelIdentity:
        """What an EP may know about the model."""
        return ModelIdentity(
            name=self.source.name, digest=self.source.digest, opset_imports=self.source.opset_imports
        )


@collection_paused()
def open_model(
    model: str | os.PathLike[str] | bytes,
    config: SessionConfig,
    kept_functions: Callable[[], Collection[FunctionId]] = frozenset,
) -> OpenModel:
    """Read a model, check it, put its functions in place, find the types of its values and index it.

    Args:
        model: a path or bytes.
        config: where weights lie, for a model whose folder is not known.
        kept_functions: says which functions EPs want as calls; asked only if the model has functions.

    Raises:
        NoSuchFile, InvalidArgument, InvalidProtobuf, InvalidGraph: see `read_model`, `detach_model`.
    """
    data, path = read_model(model)
    folder = _WeightsFolder(path, config.external_initializers_folder)
    source = detach_model(parse_model(data, path), data, path, folder.open)
    source.weights_files = tuple(folder.opened)
    if source.proto.functions:
        inline_functions(source, kept_functions())
    return index_model(source)


def index_model(source: SourceModel) -> OpenModel:
    """Find the types of a checked model's values and index it.

    Raises:
        InvalidGraph: types that contradict each other, or a name that is not UTF-8.
    """
    nodes = source.proto.graph.node
    find = declared_types if OP_TYPE in {node.op_type for node in nodes} else infer_types
    types = find(source.proto, resolve_types)
    graph = GraphIndex(
        source.proto.graph,
        types=types,
        weights=source.weights,
        opset_imports=source.opset_imports,
        ir_version=source.proto.ir_version,
        functions=source.proto.functions,
    )
    return OpenModel(source=source, types=types, graph=graph)


class _WeightsFolder:
    """Where a model's external weights are looked for."""

    def __init__(self, model: Path | None, option: str | None) -> None:
        self.opened: dict[str, None] = {}
        self._folder: ModelFolder | None = None
        if option is not None:
            if not Path(option).is_dir():
                raise NoSuchFile(f"{_FOLDER_OPTION} names {option!r}, which is no folder.", path=option)
            self._folder = ModelFolder(Path(option))
        elif model is not None:
            self._folder = ModelFolder(model.parent, model)

    def open(self, location: str, tensor: str) -> OpenedFile:
        """Open a file of weights; see `epctx_core.graph.weights.OpenExternal`."""
        if self._folder is None:
            raise InvalidArgument(
                f"the model given as bytes keeps the weight {tensor!r} in the file {location!r}, "
                "and bytes have no folder.",
                hint=f"Set the session option {_FOLDER_OPTION!r}.",
            )
        file = self._folder.open(location, what="the weights file", node=tensor)
        self.opened[file.path] = None
        return file


def refuse_compiled(model: OpenModel) -> None:
    """Raise InvalidGraph if a model that is to be compiled has EPContext nodes already."""
    if model.context_nodes:
        first = model.context_nodes[0].name
        raise InvalidGraph(
            f"{model.source.where} is compiled already: it has {len(model.context_nodes)} EPContext nodes, "
            f"such as {first!r}.",
            node=first,
            path=model.source.path,
            hint="Compile the model that it was made from.",
        )
