"""EP of each node of a model, and why others refused it: `explain_model` asks EPs for
their claims, and nothing is compiled or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from epctx_core import (
    GraphOptimizationLevel,
    Registry,
    SessionOptions,
    default_registry,
)
from epctx_core.ext import CpuEngine, Request, choose, host_call, read_request
from epctx_core.plugin import EnginePolicy, Purpose

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core import Placement
    from epctx_core.plugin import TensorType

CPU_EP = "CPUExecutionProvider"


@dataclass(frozen=True, kw_only=True)
class NodeExplanation:
    """One node.

    Attributes:
        name: its name, or operator and index for one without.
        operator: its operator, with the domain if that is not ONNX's own.
        graph: the path from the main graph to its own: index and attribute of each
            node around it.
        index: its index in that graph. Steps of profiles have both, too.
        ep: the EP that takes it; the CPU EP for what is left.
        partition: the partition's number in the model's order, or None for what is in
            none.
        kernel: whether a kernel of `ep` runs it, on its own.
        compiled: whether it is an EPContext node already; `ep` is then its source.
        session: whether the session itself runs it: an If, Loop or Scan around an EP's
            work. `ep` is then the CPU EP.
        refusals: EP and reason, for each EP asked before `ep`.
        follows: for a constant, QuantizeLinear or DequantizeLinear that only serves
            nodes which an EP refused, too: the EP, and the name of the first of those.
        inside: number of the nodes inside its subgraphs, and the function that it
            calls, which have no explanation.
    """

    name: str
    operator: str
    graph: tuple[tuple[int, str], ...]
    index: int
    ep: str
    partition: int | None = None
    kernel: bool = False
    compiled: bool = False
    session: bool = False
    refusals: tuple[tuple[str, str], ...] = ()
    follows: Mapping[str, str] = field(default_factory=dict, compare=False)
    inside: int = field(default=0, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return its form in JSON."""
        fields = dict(vars(self))
        follows = fields.pop("follows")
        fields["graph"] = [list(step) for step in self.graph]
        fields["refusals"] = [
            {"ep": ep, "reason": reason, "follows": follows.get(ep)}
            for ep, reason in self.refusals
        ]
        return fields


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Assignment of the nodes of a model.

    Attributes:
        eps: the EPs asked, in order of priority.
        nodes: nodes of the main graph, then of each subgraph that a session runs
            itself.
        model: the model as the EPs saw it, which graph and index of each node refer to:
            calls of functions are inlined, host plugins have changed it, and it
            has no large weights.
        placement: numbers of nodes and bytes of weights by EP, those inside subgraphs
            and functions included. EPContext nodes are counted by source, or for
            `Purpose.RUN` by EP.
        types: for each of the graphs that `nodes` are of, a function that returns the
            type of a value by its name, as far as inference knows it.
    """

    eps: tuple[str, ...]
    nodes: tuple[NodeExplanation, ...]
    model: ModelProto = field(repr=False, compare=False)
    placement: Placement = field(repr=False, compare=False)
    types: Mapping[tuple[tuple[int, str], ...], Callable[[str], TensorType]] = field(
        repr=False, compare=False
    )

    @property
    def left(self) -> tuple[NodeExplanation, ...]:
        """The nodes that are left to the CPU EP; those inside them have no explanation,
        and `placement` counts them.
        """
        return tuple(node for node in self.nodes if node.ep == CPU_EP)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx explain --json` prints."""
        nodes = [node.as_dict() for node in self.nodes]
        placement = self.placement
        return {
            "eps": list(self.eps),
            "nodes": nodes,
            "total_nodes": placement.total_nodes,
            "inside_nodes": placement.inside_nodes,
            "folded_nodes": placement.folded_nodes,
            "left": placement.eps[-1]["nodes"],
        }


def explain_model(
    path_or_bytes: str | PathLike[str] | bytes,
    sess_options: SessionOptions | None = None,
    *,
    registry: Registry = default_registry,
    purpose: Purpose = Purpose.EXPORT,
) -> Explanation:
    """Return the nodes of a model that each EP takes; nothing is compiled.

    Args:
        path_or_bytes: the model.
        sess_options: EPs and options, as for a compile. None for the defaults.
        registry: the registry of EPs.
        purpose: that of the EPs' instances: EXPORT as in a compile; RUN as in a
            session, which loads the EPContext nodes of a context model.

    Raises:
        InvalidArgument: no path or bytes, or no session options.
        NotImplementedByProvider: an EP cannot compile on this machine.
        PluginError: a plugin is broken, or breaks the contract.
        EpctxError: the model cannot be read; see `ModelCompiler.compile_to_file`.

    Examples:
        >>> options = SessionOptions()
        >>> options.add_provider("QNN")
        >>> explanation = explain_model("model.onnx", options)
        >>> [(node.name, node.refusals) for node in explanation.left]
        [('nms', (('QNNExecutionProvider', 'NonMaxSuppression is not supported'),))]
    """
    with host_call("explaining the model"):
        session, requested = read_request(sess_options, None, None)
        request = Request.from_options(path_or_bytes, session, registry, requested)
        runs = purpose is Purpose.RUN
        with closing(request), request.cancel.by_interrupt():
            opened = choose(request, None if runs else purpose).open()
            routed = opened.route() if runs else opened.keep_nodes()
            engine = CpuEngine(EnginePolicy(**request.config.engine_settings))
            level = GraphOptimizationLevel(session.graph_optimization_level)
            # Other levels of a session are not those of a compile.
            as_it_is = level is GraphOptimizationLevel.ORT_DISABLE_ALL
            optimised = routed.start(engine).optimise(
                level if runs or as_it_is else None
            )
            work = optimised.assign(routed.settled)
            return Explanation(
                eps=tuple(work.providers.choices),
                nodes=tuple(_explain_nodes(work)),
                model=work.model.source.proto,
                placement=work.describe_placement(),
                types={
                    part.graph.path: part.graph.types.get
                    for part in work.assignment.graphs
                },
            )


def _explain_nodes(work: Any) -> Iterator[NodeExplanation]:
    """Yield the explanation of each node, in the order of `Explanation.nodes`."""
    assignment = work.assignment
    sources = {
        (record.path, record.index): record.source
        for record in work.model.context_nodes
    }
    numbers = {
        id(partition): number for number, partition in enumerate(assignment.partitions)
    }

    # By graph and node: of each EP that refused it, the reason and the node whose
    # refusal it only follows.
    refusals: dict[tuple[int, int], dict[tuple[str, str], str | None]] = {}
    for refusal in assignment.refusals:
        for node in refusal.nodes:
            cause = refusal.follows.get(node)
            refusals.setdefault((id(refusal.graph), node), {})[
                refusal.ep, refusal.reason
            ] = None if cause is None else refusal.graph.get_node_name(cause)

    for part in assignment.graphs:
        graph = part.graph
        partitions = {
            node: partition
            for partition in part.partitions
            for node in partition.node_indices
        }
        keepers = {i: kept.ep for kept in part.kept for i in kept.node_indices}
        for index in range(len(graph.nodes)):
            source = sources.get((graph.path, index))
            partition = partitions.get(index)
            keeper = keepers.get(index)
            ep = partition.ep if partition is not None else source or CPU_EP
            reasons = refusals.get((id(graph), index), {})
            domain = graph.domains[index]
            operator = graph.op_types[index]
            yield NodeExplanation(
                name=graph.get_node_name(index),
                operator=f"{domain}::{operator}" if domain else operator,
                graph=graph.path,
                index=index,
                ep=keeper or ep,
                partition=numbers.get(id(partition)),
                kernel=keeper is not None,
                compiled=source is not None,
                session=index in part.executed,
                refusals=tuple(reasons),
                follows={ep: cause for (ep, _), cause in reasons.items() if cause},
                inside=graph.count_inside({index} - part.executed),
            )
