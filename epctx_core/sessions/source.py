"""Opening a model: reading, checking, typing and indexing it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import field, replace
from functools import cache, cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from epctx_core.context.digests import IN_PLACE, DigestChecks, ReplacedBinaryError
from epctx_core.context.manifest import MANIFEST
from epctx_core.context.metadata import INITIALIZERS, get_metadata
from epctx_core.context.model_formats import decode_model, find_format
from epctx_core.context.node import (
    DOMAIN,
    OP_TYPE,
    ContextNodeRecord,
    is_context_node,
    read_context_nodes,
)
from epctx_core.errors import InvalidGraph, NotImplementedByProvider
from epctx_core.frozen import dataclass
from epctx_core.graph import model_io
from epctx_core.graph.index import GraphIndex
from epctx_core.graph.mapping import OpenedFiles
from epctx_core.graph.type_table import TypeTable, is_only_declared, make_declared_types
from epctx_core.graph.walks import EXECUTABLE, list_operators, walk_graphs
from epctx_core.options import ModelOverrides, SessionConfig, SessionOptions
from epctx_core.plugin import EnginePolicy, ModelIdentity
from epctx_core.process import pause_collection

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

    from epctx_core.context.dependencies import ModelDigest
    from epctx_core.context.weights_folder import WeightsFolder
    from epctx_core.graph.functions import FunctionId
    from epctx_core.graph.mapping import ModelInput, OpenedFile
    from epctx_core.graph.model_io import SourceModel
    from epctx_core.graph.walks import Operators
    from epctx_core.graph.weights import ModelContent, Weights
    from epctx_core.registry.installed import EntryPoint

_log = logging.getLogger("epctx.graph")
_T = TypeVar("_T")
_SHOWN = 3
"""Number of wrong declarations in one line of the log."""
READ_ATTEMPTS = 5
"""Attempts to read a model while its files are replaced."""


@dataclass(kw_only=True)
class OpenModel:
    """A model that was read and checked.

    Attributes:
        source: structure and weights.
        types: the type of every value.
        graph: the index over the main graph.
        overrides: the host's replacements of parts of the file.
        checks: of the files that it names; those of a load run concurrently with it.
        opened: the files that it was read from.
        policy: settings of the engine that knows further operators than onnx.
        folded: number of nodes that were folded into initializers.
        folded_outside: number of those in the main graph.
    """

    source: SourceModel
    types: TypeTable
    graph: GraphIndex
    overrides: ModelOverrides = field(default_factory=ModelOverrides)
    checks: DigestChecks = IN_PLACE
    opened: OpenedFiles = field(default_factory=OpenedFiles)
    policy: EnginePolicy
    folded: int = 0
    folded_outside: int = 0

    @cached_property
    def context_nodes(self) -> list[ContextNodeRecord]:
        """EPContext nodes of the main graph and of all subgraphs."""
        has_some = self.graph.holders or (DOMAIN, OP_TYPE) in self.graph.operators
        return read_context_nodes(self.graph.graph) if has_some else []

    def graph_of(self, record: ContextNodeRecord) -> GraphIndex:
        """Return the graph that an EPContext node is in.

        Raises:
            NotImplementedByProvider: it is in a subgraph of an operator that epctx does
                not run itself.
        """
        graph = self.graph.find_subgraph(record.path)
        if graph is None:
            raise NotImplementedByProvider(
                f"EPContext node {record.name!r} is in a subgraph of an operator that "
                "epctx does not run itself.",
                node=record.name,
                hint=f"Subgraphs of {', '.join(EXECUTABLE)} can contain EPContext "
                "nodes.",
            )
        return graph

    @property
    def node_count(self) -> int:
        """Number of nodes, those of subgraphs included."""
        return sum(len(graph.nodes) for graph in self.graph.walk())

    @cached_property
    def identity(self) -> ModelIdentity:
        """Name, digest and operator sets of the model, for EPs; a model that no EP sees
        is not digested.
        """
        digest = self.source.digest
        if self.overrides:
            from epctx_core.graph.overrides import digest_overrides

            digest = digest_overrides(digest, self.overrides, self.source.weights)
        return ModelIdentity(
            name=self.source.name,
            digest=digest,
            opset_imports=self.source.opset_imports,
        )


def read_one_state(read: Callable[[OpenedFiles], _T]) -> _T:
    """Return what a function reads of a model and its files, all of one state of them.

    Files that are replaced while they are read are read again: a model gives the old
    one or the new one, even where nothing in it says which files belong to it.

    Args:
        read: notes the files that it opens, and ends with `require_one_state`.
    """
    for left in reversed(range(READ_ATTEMPTS)):
        with OpenedFiles() as opened:
            try:
                return read(opened)
            except InvalidGraph:
                if not left or not opened.find_replaced():
                    raise
    raise AssertionError("the last attempt returns or raises")


def require_one_state(opened: OpenedFiles, where: str) -> None:
    """Check that the files of a model were all in place at one moment.

    Raises:
        ReplacedBinaryError: one was replaced since it was opened.
    """
    if not opened.settle():
        raise ReplacedBinaryError(
            f"files of {where} were replaced while it was read, {READ_ATTEMPTS} times.",
            hint="Let whatever replaces them finish, then start again.",
        )


@model_io.require_text_names()
def digest_model(model: ModelInput, options: SessionOptions) -> ModelDigest:
    """Digest a model and its weights; within a `host_call`, a compile does not digest
    the weights again.

    Args:
        model: a path or bytes.
        options: the folder of the weights, the initializers that the host replaced
            (which are not read), and the limit of what the model may decode to.

    Raises:
        NoSuchFile, InvalidArgument, InvalidProtobuf, InvalidGraph: as for a load.
    """
    # A load needs no such digest.
    from epctx_core.context.dependencies import digest_with_weights

    config = options.config()

    def read(opened: OpenedFiles) -> ModelDigest:
        digest = digest_with_weights(
            model,
            opened,
            weights_folder=config.external_initializers_folder,
            replaced=config.overrides.initializers,
            budget=config.input_budget,
            named=config.model_format,
        )
        require_one_state(
            opened, model_io.describe_path(model_io.get_model_path(model))
        )
        return digest

    return read_one_state(read)


@model_io.require_text_names()
def read_source(
    path_or_bytes: ModelInput,
    config: SessionConfig,
    kept_functions: Callable[[], Collection[FunctionId]],
    checks: DigestChecks = IN_PLACE,
    *,
    opened: OpenedFiles,
    digested: bool,
) -> SourceModel:
    """Read a model, check it and inline its functions.

    Args:
        path_or_bytes: the model.
        config: the folder of the weights, for a model from no known folder, and
            overrides of the model.
        kept_functions: returns the functions that EPs keep as calls; called only if the
            model has functions.
        checks: of a load, for files that are checked once; by default they are checked
            when they are opened.
        opened: gets the files that are opened; see `read_one_state`.
        digested: whether EPs will ask for the model's digest; those of EPContext nodes
            do.

    Raises:
        NoSuchFile, InvalidArgument, InvalidProtobuf, InvalidGraph: see `read_model`,
            `decode_model`, `detach_model`.
        ReplacedBinaryError: a file was replaced meanwhile.
    """
    data, path = model_io.read_model(path_or_bytes, opened)
    content, other = separate_content(data, path, config)
    structure = content.structure
    # The checker decodes a copy of its own: two at once would be the peak of a load. It
    # would look for files of weights in the process's folder. A context model in ONNX's
    # form needs none.
    may_be_compiled = OP_TYPE.encode() in structure
    checked = (
        other is None
        and not content.extents
        and len(structure) > model_io.LARGE_STRUCTURE
        and not may_be_compiled
        and b"location" not in structure
        and model_io.is_accepted_by_checker(data)
    )
    proto = decode_model(content.structure, path, config.input_budget, other)
    detach = partial(
        make_detach(proto, content, config, checks, opened),
        checked=checked,
        digested=digested or may_be_compiled,
    )
    source = open_proto(
        proto, detach, config, kept_functions, changed=other is not None
    )
    require_one_state(opened, source.where)
    source.locations = opened.locations
    return source


@model_io.require_text_names()
def index_source(source: SourceModel, config: SessionConfig) -> OpenModel:
    """Find the types of a model's values and index it; see `read_source`.

    Raises:
        InvalidGraph, NotImplementedByProvider: see `index_model`.
    """
    with pause_collection(len(source.proto.graph.node)):
        model = index_model(source, EnginePolicy(**config.engine_settings))
    model.overrides = config.overrides
    return model


def warn_of_declarations(model: OpenModel) -> None:
    """Log a warning that names declarations of a model which inference refutes."""
    wrong = list(model.types.contradictions.values())
    if wrong:
        more = f"; {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        _log.warning(
            "%s has wrong declarations: %s%s.",
            model.source.where,
            "; ".join(wrong[:_SHOWN]),
            more,
        )


def separate_content(
    data: bytes, path: Path | None, config: SessionConfig
) -> tuple[ModelContent, EntryPoint | None]:
    """Return a model's bytes, those to decode apart, and its format if that is not
    ONNX; see `find_format`.
    """
    content = model_io.separate_model(data, path)
    other = find_format(
        data, path, config.input_budget, config.model_format, content.structure
    )
    if other is not None:
        content = replace(content, structure=data, extents={})
    return content, other


def open_proto(
    proto: ModelProto,
    detach: Callable[..., SourceModel],
    config: SessionConfig,
    kept_functions: Callable[[], Collection[FunctionId]],
    *,
    changed: bool = False,
) -> SourceModel:
    """Return a decoded model, checked; see `read_source`.

    Args:
        proto: the model.
        detach: `detach_model` of it; lacks only whether the model was changed since it
            was decoded.
        config: see `read_source`.
        kept_functions: see `read_source`.
        changed: whether the bytes that `detach` has are not the model.
    """
    overridden: Weights = {}
    with pause_collection(len(proto.graph.node)):
        if config.overrides:
            from epctx_core.graph.overrides import apply_overrides, check_initializers

            overridden = check_initializers(proto, config.overrides.initializers)
        source = detach(changed=changed or bool(overridden))
        for weight in source.weights.values():
            weight.source_name = weight.name
        if config.overrides:
            apply_overrides(source, config.overrides, overridden)
        if source.proto.functions:
            from epctx_core.graph.functions import inline_functions

            inline_functions(source, kept_functions())
        return source


def make_detach(
    proto: ModelProto,
    content: ModelContent,
    config: SessionConfig,
    checks: DigestChecks,
    opened: OpenedFiles,
) -> Callable[..., SourceModel]:
    """Return `detach_model` of a decoded model, which opens the files of weights that
    it names; `opened` has the model's own and gets the others.

    Raises:
        NoSuchFile: the host's folder for them does not exist.
        InvalidGraph: the model's record of its file for initializers is damaged.
    """

    @cache
    def folder() -> WeightsFolder:
        # Many models hold all their weights.
        from epctx_core.context.weights_folder import WeightsFolder, read_checksum

        return WeightsFolder(
            content.path,
            config.external_initializers_folder,
            checksum=read_checksum(proto),
            verification=config.verification,
            checks=checks,
            opened=opened,
        )

    def open_weights(location: str, tensor: str) -> OpenedFile:
        return folder().open(location, tensor)

    if (
        config.external_initializers_folder is not None
        or get_metadata(proto, INITIALIZERS) is not None
    ):
        # What is wrong with either is said whether or not the model names files.
        folder()
    return partial(model_io.detach_model, proto, content, open_weights)


def infer_model_types(
    proto: ModelProto,
    policy: EnginePolicy,
    trusted: Collection[str] = (),
    operators: Operators | None = None,
) -> TypeTable:
    """Return the types of a model's values, also of operators that only the engine
    knows; see `infer_types`.
    """
    from epctx_core.engines.cpu_engine import blame_engine, make_engine
    from epctx_core.graph.inference import infer_types

    def resolve(inferred: ModelProto) -> None:
        with blame_engine(policy.engine):
            make_engine(policy).resolve_types(inferred)

    return infer_types(proto, resolve, trusted, operators)


def _require_operators(source: SourceModel, policy: EnginePolicy) -> None:
    """Check that the engine has the operators of ONNX's domains that onnx lacks.

    Raises:
        NotImplementedByProvider: onnx's own engine is used, which has none of them.
        InvalidGraph: the engine does not have one.
    """
    from epctx_core.engines.cpu_engine import (
        BUILT_IN,
        blame_engine,
        make_engine,
    )
    from epctx_core.installing import install_engine_command

    with blame_engine(policy.engine):
        engine = make_engine(policy)
        missing = sorted(
            operator
            for operator in source.unknown_operators
            if not engine.has_operator(*operator)
        )
    for domain, op_type, version in missing:
        problem = (
            f"{source.where} has the operator {domain or 'ai.onnx'}::{op_type}, which "
            f"neither version {version} of ONNX's operators nor {engine.name} has."
        )
        if engine.name.startswith(BUILT_IN):
            raise NotImplementedByProvider(
                problem,
                hint=f"If it is one of onnxruntime's, {install_engine_command()}.",
            )
        raise InvalidGraph(problem, path=source.path)


def index_model(source: SourceModel, policy: EnginePolicy) -> OpenModel:
    """Find the types of a checked model's values and index it.

    Raises:
        InvalidGraph: types that contradict each other, a name that is not UTF-8, an
            output without a producer, or an operator that nobody has.
        NotImplementedByProvider: an operator that another engine may have.
    """
    if source.unknown_operators:
        _require_operators(source, policy)
    operators = list_operators(source.proto.graph)
    trusted: frozenset[str] = frozenset()
    if get_metadata(source.proto, MANIFEST) is not None:
        # Of the types of values around EPContext nodes, epctx wrote what it had
        # proven.
        walk = walk_graphs(source.proto.graph, operators=operators)
        graphs = [graph for _, graph in walk]
        nodes = chain.from_iterable(graph.node for graph in graphs)
        placed = filter(is_context_node, nodes)
        around = {name for n in placed for name in (*n.input[:], *n.output[:])}
        outputs = chain.from_iterable(graph.output for graph in graphs)
        trusted = frozenset(
            around.difference(v.name for v in outputs if is_only_declared(v))
        )
    infer = partial(infer_model_types, source.proto, policy, trusted, operators)
    compiled = (DOMAIN, OP_TYPE) in operators
    if compiled and len(operators) > 1:
        # It may be inferred late or never, and engines have native code, too.
        from epctx_core.graph.preconditions import check_preconditions

        check_preconditions(source.proto, operators)
    types = (
        make_declared_types(source.proto, infer, trusted, operators)
        if compiled
        else infer()
    )
    graph = GraphIndex(
        source.proto.graph, types=types, weights=source.weights, owner=source.proto
    )

    values = graph.constants.union(graph.producer, graph.input_names)
    for name in graph.output_names:
        if name not in values:
            raise InvalidGraph(
                f"the output {name!r} of {source.where} is not given by any node, "
                "input or initializer.",
                path=source.path,
            )

    return OpenModel(source=source, types=types, graph=graph, policy=policy)
