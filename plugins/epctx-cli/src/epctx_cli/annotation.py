"""An explained model for viewers: a copy whose nodes say which EP takes them.

Knows no command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from epctx_cli.graphs import decode_text, iter_subgraphs

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import GraphProto, ModelProto, NodeProto

    from epctx_core import Explanation, NodeExplanation

SESSION = "session"
"""Taker of an If, Loop or Scan around an EP's work."""
_BECAUSE_OF_SUBGRAPHS = "EPs take nodes of its subgraphs, so the session runs it"
_EP = "epctx.ep"
_WRITTEN = frozenset({_EP, "epctx.partition", "epctx.reason", "namespace"})
_METADATA_SINCE = 10
"""IR version from which nodes have metadata."""
_UNNAMED_GRAPH = "<main>"
GraphPath: TypeAlias = "tuple[tuple[int, str], ...]"
"""Indices of nodes and names of attributes from the main graph to a subgraph."""


def annotate(explanation: Explanation) -> ModelProto:
    """Return a copy of the model as EPs saw it, without large weights, whose nodes have
    metadata.

    `epctx.ep`, `epctx.partition` and `epctx.reason` say where a node is and why;
    `namespace` nests it by EP and partition in Model Explorer.
    """
    from onnx import ModelProto

    copy = ModelProto()
    copy.CopyFrom(explanation.model)
    copy.ir_version = max(copy.ir_version, _METADATA_SINCE)
    copy.graph.name = copy.graph.name or _UNNAMED_GRAPH
    explained = {
        (node.graph, node.index): node for node in explanation.nodes if not node.session
    }
    for node, taken in _walk(copy.graph, explained):
        _write_metadata(node, taken)
    return copy


def is_annotated(path: Path) -> bool:
    """True for a file that `annotate` made: a node of it names its EP."""
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    try:
        model = ModelProto.FromString(path.read_bytes())
    except (DecodeError, OSError):
        return False
    return any(
        entry.key == _EP for node in model.graph.node for entry in node.metadata_props
    )


def join_refusals(explained: NodeExplanation) -> str:
    """Return the EPs that refused a node, each with its reason."""
    refusals = []
    for ep, reason in explained.refusals:
        refusal = f"{ep}: {reason}"
        if ep in explained.follows:
            refusal += f" (follows from {explained.follows[ep]!r})"
        refusals.append(refusal)
    return "; ".join(refusals)


def _walk(
    graph: GraphProto,
    explained: Mapping[tuple[GraphPath, int], NodeExplanation],
    path: GraphPath = (),
    owner: NodeExplanation | None = None,
) -> Iterator[tuple[NodeProto, NodeExplanation | None]]:
    """Yield the nodes of a graph and of its subgraphs, each with its explanation, or
    that of the node around it which an EP takes whole; None for a node that the session
    itself runs.
    """
    for index, node in enumerate(graph.node):
        taken = explained.get((path, index), owner)
        yield node, taken
        for name, subgraph in iter_subgraphs(node):
            yield from _walk(subgraph, explained, (*path, (index, name)), taken)


def _write_metadata(node: NodeProto, explained: NodeExplanation | None) -> None:
    ep = SESSION if explained is None else explained.ep
    groups = [ep.replace("/", "_")]
    values = {_EP: ep}
    if explained is None:
        values["epctx.reason"] = _BECAUSE_OF_SUBGRAPHS
    else:
        if explained.partition is not None:
            values["epctx.partition"] = str(explained.partition)
            groups.append(f"partition {explained.partition}")
        if reason := join_refusals(explained):
            values["epctx.reason"] = reason

    # The model's own nesting stays inside: the exporter's, or that of the node's name.
    own = node.name.rpartition("/")[0]
    entries = node.metadata_props
    for index in reversed(range(len(entries))):
        if entries[index].key == "namespace":
            own = decode_text(entries[index].value)
        if entries[index].key in _WRITTEN:
            del entries[index]

    groups += filter(None, own.split("/"))
    values["namespace"] = "/".join(groups)
    for key, value in values.items():
        entries.add(key=key, value=value)
