"""Optimising a model before partitioning: by plugins of the host, by the engine, then
by EPs.

The result is checked like a model that was read. Knows no files.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from epctx_core.engines.cpu_engine import (
    CpuEngine,
    blame_engine,
    load_engine_class,
    make_engine,
)
from epctx_core.errors import (
    EpctxError,
    Fail,
    InvalidArgument,
    InvalidGraph,
    NotImplementedByProvider,
)
from epctx_core.graph.model_io import check_model, check_opsets
from epctx_core.graph.tensor_bytes import detach_weights
from epctx_core.graph.walks import ONNX_DOMAINS, copy_message, keep_messages
from epctx_core.graph.weights import INLINE_LIMIT, is_detached
from epctx_core.installing import install_engine_command
from epctx_core.options import GraphOptimizationLevel
from epctx_core.plugin.protos import GraphProto, ModelProto
from epctx_core.registry.guard import contract_error
from epctx_core.sessions.source import OpenModel, index_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.model_io import SourceModel
    from epctx_core.graph.weights import Weights
    from epctx_core.plugin import TensorView
    from epctx_core.registry.entries import HostPlugin
    from epctx_core.registry.instances import ProviderInstances
    from epctx_core.sessions.providers import ProviderSession

_log = logging.getLogger("epctx.graph")
HOOK = "optimize_model"
_FRAME = (
    "producer_name",
    "producer_version",
    "domain",
    "model_version",
    "doc_string",
    "metadata_props",
)


def check_level(
    level: GraphOptimizationLevel | int | None, engine: str | None
) -> GraphOptimizationLevel | None:
    """Return a level to which a whole model can be optimised.

    Args:
        level: the host's; None, which only folds, fits any engine.
        engine: the engine that the host named.

    Raises:
        InvalidArgument: no such level, one for single groups only, or the engine has no
            optimiser.
    """
    if level is None:
        return None
    level = GraphOptimizationLevel(level)
    if level > GraphOptimizationLevel.ORT_ENABLE_EXTENDED:
        raise InvalidArgument(
            f"graph_optimization_level is {level.name}, which would arrange weights "
            "for this machine's CPU.",
            hint="Use ORT_ENABLE_EXTENDED; EPs may go further with what they take.",
        )
    if (
        level > GraphOptimizationLevel.ORT_DISABLE_ALL
        and not load_engine_class(engine).optimizes
    ):
        raise InvalidArgument(
            f"graph_optimization_level is {level.name}, and the engine "
            f"{load_engine_class(engine).name} has no optimiser.",
            hint=f"{install_engine_command()}, or use ORT_DISABLE_ALL.",
        )
    return level


def optimise_model(
    model: OpenModel,
    providers: ProviderSession,
    level: GraphOptimizationLevel | None,
    engine: CpuEngine,
) -> OpenModel:
    """Return the model, changed by plugins of the host, optimised to a level, then
    changed by EPs.

    With ORT_DISABLE_ALL the whole model stays as it is; so does one with EPContext
    nodes. Levels above EXTENDED, which apply to single groups where they run, and None
    fold constants for EPs.

    Raises:
        InvalidArgument: a model with EPContext nodes is to be optimised, or a plugin of
            the host gave a model that is not valid or has other inputs or outputs.
        Fail: the engine cannot optimise the model.
        PluginError: an EP returned such a model.
        ModelLoadCanceled: the host asked to stop.
    """
    of_engine = (
        GraphOptimizationLevel.ORT_ENABLE_BASIC,
        GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    )
    whole = level if level in of_engine else None
    if model.context_nodes:
        if whole:
            raise InvalidArgument(
                f"{model.source.where} has EPContext nodes already, so that it cannot "
                f"be optimised to {whole.name}.",
                hint="Use ORT_DISABLE_ALL, or compile the model that it was made from.",
            )
        return model

    for host in providers.instances.host_plugins:
        if host.transform is not None:
            model = _apply_host(host, model, level=int(level or 0))
            providers.cancel.raise_if_requested()
    if whole:
        check_level(whole, model.policy.engine)
        model = _optimise_by_engine(model, whole)
    elif level is not GraphOptimizationLevel.ORT_DISABLE_ALL and providers.choices:
        model = _fold(model, engine)
    for ep in providers.choices:
        if providers.instances.implements(ep, HOOK):
            model = _apply_ep(ep, model, providers.instances, level=int(level or 0))
    return model


def _optimise_by_engine(model: OpenModel, level: GraphOptimizationLevel) -> OpenModel:
    source = model.source
    contrib = level >= GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    try:
        with blame_engine(model.policy.engine):
            optimized = make_engine(model.policy).optimize_model(
                source.proto, source.weights, level, contrib=contrib
            )
    except NotImplementedByProvider as error:
        raise Fail(
            f"{source.where} cannot be optimised to {level.name}: {error.message}.",
            path=source.path,
            hint="Use ORT_DISABLE_ALL.",
        ) from error
    return _accept(
        optimized.model,
        model,
        {**source.weights, **optimized.weights},
        lambda what: Fail(
            f"optimising {source.where} to {level.name} {what}.", path=source.path
        ),
    )


def _fold(model: OpenModel, engine: CpuEngine) -> OpenModel:
    """Return a model without what it computes from constants and static shapes."""
    # Every EP is asked here; few models have anything to fold.
    from epctx_core.sessions.folding import MOST_PASSES, fold_once

    for decide in (True, False):
        folded = model
        for _ in range(MOST_PASSES):
            proto = fold_once(folded, engine, decide=decide)
            if proto is None:
                break
            source = replace(folded.source, proto=proto)
            source.weights = _collect_weights(proto.graph, source.weights, Fail)
            folded = _index_again(source, folded)
        # Without its If, a subgraph may prove more of a value than an operator that
        # reads it allows, such as the rank of Range's inputs: engines refuse it then.
        if not (model.graph.subgraphs and _find_fault(folded.graph)):
            break

    # A branch that gives weights becomes a node for each.
    folded.folded = max(0, model.node_count - folded.node_count)
    folded.folded_outside = len(model.graph.nodes) - len(folded.graph.nodes)
    return folded


def _find_fault(graph: GraphIndex) -> str:
    """Return what strict inference refuses of a graph in the form in which engines get
    it, empty for nothing; without operators that onnx does not know, among which it
    reports no fault.
    """
    from epctx_core.graph.extraction import NodeGroup
    from epctx_core.graph.inference import prove_wrong

    nodes = [
        i
        for i, domain in enumerate(graph.domains)
        if domain in ONNX_DOMAINS and i not in graph.node_constants
    ]
    return prove_wrong(NodeGroup(graph, nodes).model()) if nodes else ""


def _apply_host(host: HostPlugin, model: OpenModel, *, level: int) -> OpenModel:
    result = host.transform_model(_describe_arguments(model, level))
    if not isinstance(result, ModelProto | None):
        kind = type(result).__name__
        raise host.blame(f"gave a {kind} instead of an onnx.ModelProto or None")
    changed = _take(result, model, host.blame)
    state = "unchanged" if changed is model else "changed"
    _log.info("transform_model of host plugin %s: %s.", host.name, state)
    return changed


def _apply_ep(
    ep: str, model: OpenModel, instances: ProviderInstances, *, level: int
) -> OpenModel:
    arguments = _describe_arguments(model, level)
    with instances.calling(ep, HOOK, **arguments) as result:
        refusal = partial(contract_error, instances.record(ep), HOOK)
        return _take(result, model, refusal)


def _describe_arguments(model: OpenModel, level: int) -> dict[str, Any]:
    """Return the arguments of a hook that may change a model."""
    return {
        "model": copy_message(model.source.proto),
        "weights": dict(model.source.weights),
        "level": level,
    }


def _take(
    result: ModelProto | None, model: OpenModel, refusal: Callable[[str], EpctxError]
) -> OpenModel:
    """Return the model that a hook gave, checked; the original where it gave None or an
    equal one.
    """
    if result is None or result == model.source.proto:
        return model
    proto: ModelProto = copy_message(result)
    changed = _accept(proto, model, model.source.weights, refusal)
    if changed.context_nodes:
        raise refusal(
            "gave a model with EPContext nodes, which only `get_ep_context_nodes` may "
            "describe"
        )
    return changed


def _accept(
    proto: ModelProto,
    model: OpenModel,
    weights: Mapping[str, TensorView],
    refusal: Callable[[str], EpctxError],
) -> OpenModel:
    """Return a changed model, checked and indexed, with the metadata of the original.

    Args:
        proto: the changed model.
        model: the original.
        weights: the weights that it may refer to.
        refusal: returns the error for a wrong model, of text that completes "it ...".
    """
    original = model.source.proto
    for field in _FRAME:
        proto.ClearField(field)
    proto.MergeFrom(
        ModelProto(
            **{f.name: value for f, value in original.ListFields() if f.name in _FRAME}
        )
    )
    proto.graph.name = original.graph.name
    proto.graph.doc_string = original.graph.doc_string
    source = replace(model.source, proto=proto)
    try:
        check_opsets(proto, source.path)
        functions = {(f.domain, f.name) for f in original.functions}
        if any((f.domain, f.name) not in functions for f in proto.functions):
            from epctx_core.graph.functions import inline_functions

            inline_functions(source, functions)
        source.weights = _collect_weights(source.proto.graph, weights, refusal)
        check_model(source)
        changed = _index_again(source, model)
    except InvalidGraph as error:
        raise refusal(f"gave a wrong model: {error.message}") from error

    for kind in ("input", "output"):
        before = _describe_boundary(model, kind)
        after = _describe_boundary(changed, kind)
        if before != after:
            raise refusal(
                f"gave a model with other {kind}s: {list(after)} instead of "
                f"{list(before)}, or of other types"
            )

    return changed


def _index_again(source: SourceModel, model: OpenModel) -> OpenModel:
    """Return an open model with another source."""
    changed = index_model(source, model.policy)
    # Declarations that were wrong are corrected by now.
    changed.types.contradictions = {
        **model.types.contradictions,
        **changed.types.contradictions,
    }
    return replace(model, source=source, types=changed.types, graph=changed.graph)


def _collect_weights(
    graph: GraphProto,
    originals: Mapping[str, TensorView],
    refusal: Callable[[str], EpctxError],
) -> Weights:
    """Return all weights by name: mapped ones as they were, new ones out of the
    protobuf.
    """

    def no_files(location: str, tensor: str) -> NoReturn:
        raise refusal(
            f"gave a model whose tensor {tensor!r} lies in the file {location!r}"
        )

    weights: dict[str, Any] = {}
    detached = [tensor for tensor in graph.initializer if is_detached(tensor)]
    for tensor in detached:
        old = originals.get(tensor.name)
        if old is None or (old.elem_type, old.shape) != (
            tensor.data_type,
            tuple(tensor.dims),
        ):
            strange = (
                f"an external weight {tensor.name!r} that the original does not have"
            )
            raise refusal(f"gave a model with {strange}")
        # Weights of the optimiser and of a source are both the core's.
        weights[tensor.name] = old

    keep_messages(graph.initializer, lambda tensor: not is_detached(tensor))
    for name, weight in detach_weights(graph, no_files).items():
        old = originals.get(name)
        # A small one that came back unchanged is the original's.
        same = (
            old is not None
            and weight.nbytes <= INLINE_LIMIT
            and (old.elem_type, old.shape, old.nbytes)
            == (weight.elem_type, weight.shape, weight.nbytes)
            and old.digest == weight.digest
        )
        weights[name] = old if same else weight

    graph.initializer.extend(detached)
    return weights


def _describe_boundary(model: OpenModel, kind: str) -> dict[str, bytes]:
    """Return the names of inputs or outputs, in order, with their types as written."""
    names = model.graph.input_names if kind == "input" else model.graph.output_names
    values = {v.name: v.type for v in getattr(model.source.proto.graph, kind)}
    return {name: values[name].SerializeToString(deterministic=True) for name in names}
