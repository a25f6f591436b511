"""Explanation of a model's assignment: the EP of each node, in a session or before one, and why others refused it.

Compiles and writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from epctx_core.engines import CpuEngine, EnginePolicy
from epctx_core.errors import errors_typed
from epctx_core.options import GraphOptimizationLevel, SessionOptions
from epctx_core.options.choices import CPU_EP
from epctx_core.plugin import Purpose
from epctx_core.registry import Registry, default_registry
from epctx_core.sessions.assignment import assign_nodes
from epctx_core.sessions.boundary import given_model, given_options
from epctx_core.sessions.compile_host import CompileCancellation
from epctx_core.sessions.optimise import optimise_model
from epctx_core.sessions.providers import ProviderSession, choose_providers, kept_functions
from epctx_core.sessions.source import open_model

if TYPE_CHECKING:
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.graph.index import GraphIndex
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.source import OpenModel


@dataclass(frozen=True, kw_only=True)
class NodeExplanation:
    """One node.

    Attributes:
        name: the node's, or operator and place for one without.
        operator: with its domain, if that is not ONNX's own.
        ep: who takes it: an EP, or the CPU EP for what is left.
        partition: the partition's number in the model's order, or None for what is in none.
        kernel: whether a kernel of `ep` runs it, on its own.
        compiled: whether it is an EPContext node already; `ep` is then its source.
        refusals: EP and reason, for each EP asked before `ep`.
    """

    name: str
    operator: str
    ep: str
    partition: int | None = None
    kernel: bool = False
    compiled: bool = False
    refusals: tuple[tuple[str, str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return its form in JSON."""
        return {**vars(self), "refusals": [{"ep": ep, "reason": reason} for ep, reason in self.refusals]}


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Who takes what of a model.

    Attributes:
        eps: who was asked, in order of priority.
        nodes: of the main graph, then of each body that a session runs itself. An If, Loop or Scan around
            an EP's work is not among them: to run it is nobody's task but the session's.
    """

    eps: tuple[str, ...]
    nodes: tuple[NodeExplanation, ...]

    @property
    def left(self) -> tuple[NodeExplanation, ...]:
        """The nodes that are left to the CPU EP."""
        return tuple(node for node in self.nodes if node.ep == CPU_EP)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx explain --json` prints."""
        return {
            "eps": list(self.eps),
            "nodes": [node.as_dict() for node in self.nodes],
            "left": len(self.left),
        }


@errors_typed("explaining the model")
def explain_model(
    path_or_bytes: str | os.PathLike[str] | bytes,
    sess_options: SessionOptions | None = None,
    *,
    registry: Registry = default_registry,
    purpose: Purpose = Purpose.EXPORT,
) -> Explanation:
    """Ask EPs which nodes of a model they take, and compile nothing.

    Args:
        path_or_bytes: the model.
        sess_options: EPs and options, as for a compile. None for the defaults.
        registry: where EPs are looked up.
        purpose: what the EPs' instances are made for: EXPORT as in a compile, RUN as in a session.

    Raises:
        InvalidArgument: no path or bytes, or no session options.
        NotImplementedByProvider: an EP cannot compile on this machine.
        PluginError: a plugin is broken, or breaks the contract.
        EpctxError: the model cannot be read; see `ModelCompiler.compile_to_file`.

    Example:
        >>> options = SessionOptions()
        >>> options.add_provider("QNN")
        >>> explanation = explain_model("model.onnx", options)
        >>> [(node.name, node.refusals) for node in explanation.left]
        [('nms', (('QNNExecutionProvider', 'NonMaxSuppression is not supported'),))]
    """
    session = SessionOptions() if sess_options is None else given_options(sess_options)
    cancel = CompileCancellation(session.cancellation)
    with closing(ProviderSession(session, registry, cancel=cancel)) as providers, cancel.by_interrupt():
        choices, _ = choose_providers(session.providers, session, registry, purpose)
        model = open_model(given_model(path_or_bytes), session.config(), lambda: kept_functions(choices))
        providers.start(
            choices,
            purpose=purpose,
            model=model.identity,
            engine=CpuEngine(EnginePolicy(engine=session.config().engine)),
        )
        model = optimise_model(model, providers, GraphOptimizationLevel.ORT_DISABLE_ALL)
        assignment = assign_nodes(model, providers, list(providers.choices))
        return Explanation(eps=tuple(providers.choices), nodes=tuple(_explained(model, assignment)))


def _explained(model: OpenModel, assignment: Assignment) -> Iterator[NodeExplanation]:
    sources = {(record.path, record.index): record.source for record in model.context_nodes}
    numbers = {id(partition): number for number, partition in enumerate(assignment.partitions)}
    reasons: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for refusal in assignment.refusals:
        for node in refusal.nodes:
            reasons.setdefault((id(refusal.graph), node), []).append((refusal.ep, refusal.reason))
    for part in assignment.graphs:
        takers = {
            node: (partition.ep, numbers[id(partition)])
            for partition in part.partitions
            for node in partition.node_indices
        }
        kernels = {kernel.node: kernel.ep for kernel in part.kernel_nodes}
        for index in range(len(part.graph.nodes)):
            if index in part.executed:
                continue
            source = sources.get((part.graph.path, index))
            ep, partition = takers.get(index, (kernels.get(index, source or CPU_EP), None))
            yield NodeExplanation(
                name=part.graph.node_name(index),
                operator="::".join(filter(None, (part.graph.domains[index], part.graph.op_types[index]))),
                ep=ep,
                partition=partition,
                kernel=index in kernels,
                compiled=source is not None,
                refusals=tuple(dict.fromkeys(reasons.get((id(part.graph), index), ()))),
            )


@dataclass(frozen=True, kw_only=True)
class OrtEpAssignedNode:
    """One node; attributes as `onnxruntime.OrtEpAssignedNode`."""

    name: str
    domain: str
    op_type: str


@dataclass(frozen=True, kw_only=True)
class OrtEpAssignedSubgraph:
    """Nodes that an EP runs as one; attributes as `onnxruntime.OrtEpAssignedSubgraph`.

    Attributes:
        ep_name: the EP type.
        nodes: the nodes, in the model's order.
    """

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """Return the nodes."""
        return list(self.nodes)


def assigned_subgraphs(
    assignment: Assignment, eps: Sequence[str], loaded: Mapping[str, Sequence[ContextNodeRecord]]
) -> list[OrtEpAssignedSubgraph]:
    """Return who runs what, bodies included: EPs in order of priority, the CPU EP last.

    A partition is one subgraph; so is each EPContext node, each node that an EP runs by a kernel, and each
    node of the CPU EP.

    Args:
        assignment: of the whole model.
        eps: the session's EPs.
        loaded: EP type to its EPContext nodes.
    """
    graphs: Mapping[object, GraphIndex] = {part.graph.path: part.graph for part in assignment.graphs}
    found: list[OrtEpAssignedSubgraph] = []

    def add(ep: str, graph: GraphIndex, places: Sequence[int]) -> None:
        nodes = tuple(
            OrtEpAssignedNode(name=graph.node_name(i), domain=graph.domains[i], op_type=graph.op_types[i])
            for i in places
        )
        found.append(OrtEpAssignedSubgraph(ep_name=ep, nodes=nodes))

    for ep in eps:
        for partition in assignment.of(ep):
            add(ep, partition.graph, partition.node_indices)
        for record in loaded.get(ep, ()):
            add(ep, graphs[record.path], [record.index])
        for kernel in (kernel for part in assignment.graphs for kernel in part.kernel_nodes):
            if kernel.ep == ep:
                add(ep, kernel.graph, [kernel.node])
    for part in assignment.graphs:
        for place in sorted({*part.left_over(), *part.executed}):
            add(CPU_EP, part.graph, [place])
    return found
