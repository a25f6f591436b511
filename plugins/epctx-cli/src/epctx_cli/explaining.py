"""EP of each node of a model, with the refusals of others; nothing is compiled or
written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from epctx_cli.arguments import CPU_EP
from epctx_core import (
    GraphOptimizationLevel,
    Registry,
    SessionOptions,
    default_registry,
    ext,
)
from epctx_core.errors import convert_errors
from epctx_core.plugin import EnginePolicy, Purpose


@dataclass(frozen=True, kw_only=True)
class NodeExplanation:
    """One node.

    Attributes:
        name: the node's, or operator and index for one without.
        operator: with its domain, if that is not ONNX's own.
        ep: the EP that takes it; the CPU EP for what is left.
        partition: the partition's number in the model's order, or None for what is in
            none.
        kernel: whether a kernel of `ep` runs it, on its own.
        compiled: whether it is an EPContext node already; `ep` is then its source.
        refusals: EP and reason, for each EP asked before `ep`.
        follows: for a constant, QuantizeLinear or DequantizeLinear that only serves
            nodes which an EP refused, too: the EP, and the name of the first of those.
    """

    name: str
    operator: str
    ep: str
    partition: int | None = None
    kernel: bool = False
    compiled: bool = False
    refusals: tuple[tuple[str, str], ...] = ()
    follows: Mapping[str, str] = field(default_factory=dict, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return its form in JSON."""
        fields = dict(vars(self))
        follows = fields.pop("follows")
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
        nodes: of the main graph, then of each body that a session runs itself. An If,
            Loop or Scan around an EP's work is not among them: the session itself runs
            it.
    """

    eps: tuple[str, ...]
    nodes: tuple[NodeExplanation, ...]

    @property
    def left(self) -> tuple[NodeExplanation, ...]:
        """The nodes that are left to the CPU EP."""
        return tuple(node for node in self.nodes if node.ep == CPU_EP)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx explain --json` prints."""
        nodes = [node.as_dict() for node in self.nodes]
        return {"eps": list(self.eps), "nodes": nodes, "left": len(self.left)}


@convert_errors("explaining the model")
def explain_model(
    path_or_bytes: str | os.PathLike[str] | bytes,
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
        purpose: that of the EPs' instances: EXPORT as in a compile, RUN as in a
            session.

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
    session, requested = ext.read_request(sess_options, None, None)
    work = ext.Work(path_or_bytes, session, registry, requested)
    with work.cancel.by_interrupt():
        work.choose(purpose)
        with closing(work):
            work.open()
            work.start(ext.CpuEngine(EnginePolicy(**work.config.engine_settings)))
            work.optimise(GraphOptimizationLevel.ORT_DISABLE_ALL)
            return Explanation(
                eps=tuple(work.providers.choices), nodes=tuple(_explain(work))
            )


def _explain(work: ext.Work) -> Iterator[NodeExplanation]:
    assignment = work.assign()
    model = work.model
    sources = {
        (record.path, record.index): record.source for record in model.context_nodes
    }
    numbers = {
        id(partition): number for number, partition in enumerate(assignment.partitions)
    }
    reasons: dict[tuple[int, int], list[tuple[str, str]]] = {}
    follows: dict[tuple[int, int], dict[str, str]] = {}
    for refusal in assignment.refusals:
        for node in refusal.nodes:
            key = id(refusal.graph), node
            reasons.setdefault(key, []).append((refusal.ep, refusal.reason))
            if node in refusal.follows:
                cause = refusal.graph.get_node_name(refusal.follows[node])
                follows.setdefault(key, {})[refusal.ep] = cause
    for part in assignment.graphs:
        takers = {
            node: (partition.ep, numbers[id(partition)])
            for partition in part.partitions
            for node in partition.node_indices
        }
        kernels = {node: ep for node, (ep, _) in part.kernel_nodes.items()}
        for index in range(len(part.graph.nodes)):
            if index in part.executed:
                continue
            source = sources.get((part.graph.path, index))
            ep, partition = takers.get(
                index, (kernels.get(index, source or CPU_EP), None)
            )
            yield NodeExplanation(
                name=part.graph.get_node_name(index),
                operator="::".join(
                    filter(
                        None, (part.graph.domains[index], part.graph.op_types[index])
                    )
                ),
                ep=ep,
                partition=partition,
                kernel=index in kernels,
                compiled=source is not None,
                refusals=tuple(dict.fromkeys(reasons.get((id(part.graph), index), ()))),
                follows=follows.get((id(part.graph), index), {}),
            )
