"""An explained model for viewers: a copy whose nodes say which EP takes them, and
colours of nodes for Model Explorer.

Knows no command.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from epctx_cli import text
from epctx_cli.arguments import CPU_EP
from epctx_cli.graphs import (
    OF_ONNX,
    decode_text,
    get_initializers,
    iter_subgraphs,
    walk_graphs,
)

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

    from epctx_core import Explanation, NodeExplanation

SESSION = "session"
"""Taker of an If, Loop or Scan around an EP's work."""
LEFT_OUT = "left-out-by-epctx-explain"
"""Name of the file, which does not exist, of the weights that a copy leaves out."""
_BECAUSE_OF_SUBGRAPHS = "EPs take nodes of its subgraphs, so the session runs it"
_EP = "epctx.ep"
_WRITTEN = frozenset({_EP, "epctx.partition", "epctx.reason", "namespace"})
_PAYLOAD = "ep_cache_context"
_LARGEST_TENSOR = 1024
"""Bytes of a tensor that a copy keeps: viewers show the values of small ones."""
_METADATA_SINCE = 10
"""IR version from which nodes have metadata."""
_UNNAMED_GRAPH = "<main>"
_DATA_FIELDS: Sequence[Any] = (
    "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data",
    "external_data",
)  # fmt: skip
_CPU_COLOUR = "#d9d9d9"
_SESSION_COLOUR = "#f7f7f7"
_COLOURS = ("#8dd3c7", "#fdb462", "#80b1d3", "#bebada", "#b3de69", "#fb8072", "#fccde5")
"""Of the EPs in their order; ColorBrewer's Set3, on which black text is readable."""


class PlacedNode(NamedTuple):
    """Node of a model, also of a subgraph.

    Attributes:
        node: the protobuf.
        explained: its explanation, or that of the node around it which an EP takes
            whole; None for a node that the session itself runs.
        graph_id, node_id: what Model Explorer calls its graph and itself.
    """

    node: NodeProto
    explained: NodeExplanation | None
    graph_id: str
    node_id: str

    @property
    def ep(self) -> str:
        """The EP that takes it, or `SESSION`."""
        return SESSION if self.explained is None else self.explained.ep


def annotate(explanation: Explanation) -> ModelProto:
    """Return a copy of the model, without large weights, whose nodes have metadata.

    `epctx.ep`, `epctx.partition` and `epctx.reason` say where a node is and why;
    `namespace` nests it by EP and partition in Model Explorer.
    """
    from onnx import ModelProto

    copy = ModelProto()
    copy.CopyFrom(explanation.model)
    copy.ir_version = max(copy.ir_version, _METADATA_SINCE)
    copy.graph.name = copy.graph.name or _UNNAMED_GRAPH
    for placed in _place_nodes(copy, explanation):
        _write_metadata(placed)
    _leave_out_weights(copy)
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


def make_node_data(explanation: Explanation) -> dict[str, Any]:
    """Return the EP of each node in the form of Model Explorer's node data: by graph,
    then by node, each EP with a colour.

    Nodes have the names that Model Explorer's adapter for ONNX gives them.
    """
    eps = [ep for ep in explanation.eps if ep != CPU_EP]
    others = (node.ep for node in explanation.nodes if node.ep != CPU_EP)
    takers = dict.fromkeys([*eps, *others])
    colours = {
        ep: _COLOURS[index % len(_COLOURS)] for index, ep in enumerate(takers)
    } | {CPU_EP: _CPU_COLOUR, SESSION: _SESSION_COLOUR}

    graphs: dict[str, dict[str, Any]] = {}
    for placed in _place_nodes(explanation.model, explanation):
        graph = graphs.setdefault(
            placed.graph_id,
            {
                "name": "EP",
                "results": {},
                "showExpandedSummaryOnGroupNode": True,
                "showLabelCountColumnsInChildrenStatsTable": True,
            },
        )
        ep = placed.ep
        graph["results"][placed.node_id] = {"value": ep, "bgColor": colours[ep]}
    return graphs


def join_refusals(explained: NodeExplanation) -> str:
    """Return the EPs that refused a node, each with its reason."""
    refusals = []
    for ep, reason in explained.refusals:
        refusal = f"{ep}: {reason}"
        if ep in explained.follows:
            refusal += f" (follows from {explained.follows[ep]!r})"
        refusals.append(refusal)
    return "; ".join(refusals)


class _Placing:
    """One walk over a model.

    Model Explorer's adapter names nodes without a name, and those whose name occurs
    twice in a graph, by counters of the whole model; the walk has its order.
    """

    def __init__(self, explanation: Explanation) -> None:
        self._explained = {
            (node.graph, node.index): node
            for node in explanation.nodes
            if not node.session
        }
        self._counts: Counter[str] = Counter()

    def walk(
        self,
        graph: GraphProto,
        path: tuple[tuple[int, str], ...],
        owner: NodeExplanation | None,
        graph_id: str,
        prefix: str,
    ) -> Iterator[PlacedNode]:
        """Yield the nodes of a graph, each before those of its subgraphs.

        Args:
            graph: the graph.
            path: from the main graph to it.
            owner: the explanation of the node around it, if that has one.
            graph_id: what Model Explorer calls the graph that it shows the nodes in.
            prefix: of their names there.
        """
        taken: set[str] = set()
        for index, node in enumerate(graph.node):
            explained = self._explained.get((path, index), owner)
            node_id = f"{prefix}{self._make_unique(node.name, taken)}"
            yield PlacedNode(node, explained, graph_id, node_id)

            # The adapter shows the branches of an If in the graph around it.
            is_if = node.op_type == "If" and node.domain in OF_ONNX
            for name, subgraph in iter_subgraphs(node):
                inside = f"{node_id}/{name}"
                yield from self.walk(
                    subgraph,
                    (*path, (index, name)),
                    explained,
                    graph_id if is_if else inside,
                    f"{inside}/" if is_if else "",
                )

    def _make_unique(self, name: str, taken: set[str]) -> str:
        expected = name or "node"
        unique = expected
        while unique in taken:
            self._counts[expected] += 1
            unique = f"{expected}_{self._counts[expected]}"
        taken.add(unique)
        return unique


def _place_nodes(model: ModelProto, explanation: Explanation) -> Iterator[PlacedNode]:
    graph = model.graph
    graph_id = graph.name or _UNNAMED_GRAPH
    return _Placing(explanation).walk(graph, (), None, graph_id, "")


def _write_metadata(placed: PlacedNode) -> None:
    node = placed.node
    explained = placed.explained
    groups = [placed.ep.replace("/", "_")]
    values = {_EP: placed.ep}
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


def _leave_out_weights(model: ModelProto) -> None:
    """Remove the data of large tensors, and embedded payloads."""
    from onnx import AttributeProto

    for graph in walk_graphs(model):
        for tensor in get_initializers(graph):
            _leave_out_data(tensor)
        for attribute in chain.from_iterable(node.attribute for node in graph.node):
            if attribute.type == AttributeProto.TENSOR:
                _leave_out_data(attribute.t)
            elif attribute.name == _PAYLOAD and len(attribute.s) > _LARGEST_TENSOR:
                size = text.byte_size(len(attribute.s))
                attribute.s = f"({size} left out)".encode()


def _leave_out_data(tensor: TensorProto) -> None:
    from onnx import TensorProto

    is_large = tensor.ByteSize() > _LARGEST_TENSOR
    is_external = tensor.data_location == TensorProto.EXTERNAL
    # Text cannot be external.
    if tensor.data_type == TensorProto.STRING or not (is_large or is_external):
        return

    for name in _DATA_FIELDS:
        tensor.ClearField(name)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=LEFT_OUT)
