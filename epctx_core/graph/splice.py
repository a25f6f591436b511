"""Splicing: a model in which groups of nodes are replaced by one node each.

One sweep over each graph.

A control-flow node in whose subgraphs something is replaced is itself replaced, by one
with the new subgraphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from epctx_core.graph.type_table import (
    list_lengths,
    make_tensor_type,
    mark_declared,
)
from epctx_core.graph.walks import copy_message, find_outer_names
from epctx_core.plugin.protos import GraphProto, ModelProto, NodeProto, TensorShapeProto

if TYPE_CHECKING:
    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.partition import NodeGroups


PARTITION = "epctx.partition"
"""Metadata of an EPContext node that its EP named: the name of its partition."""


SOURCE_NODES = "epctx.source_nodes"
"""Metadata of an EPContext node: the number of nodes that it replaced, those inside
subgraphs and functions included.
"""


class NodeDraft:
    """Node that differs from a template in its name, one text and its inputs and
    outputs; cheaper than a copy of its own.

    Args:
        template: complete but for those; its metadata begins with the number of nodes.
        text_at: index of the text among the template's attributes.
        partition: gives the rest.
    """

    __slots__ = ("_partition", "_template", "_text_at", "input", "output")

    def __init__(
        self, template: NodeProto, text_at: int, partition: GraphPartition
    ) -> None:
        self._template = template
        self._text_at = text_at
        self._partition = partition
        self.input: Sequence[str] = partition.input_names
        self.output: Sequence[str] = partition.output_names

    def write(self, node: NodeProto) -> None:
        """Fill an empty node."""
        partition = self._partition
        node.CopyFrom(self._template)
        node.name = partition.node_name
        node.attribute[self._text_at].s = partition.graph_name.encode()
        node.metadata_props[0].value = str(partition.node_count)
        if partition.node_name != partition.name:
            node.metadata_props.add(key=PARTITION, value=partition.name)
        node.input.extend(self.input)
        node.output.extend(self.output)


Replacement: TypeAlias = NodeProto | NodeDraft


def splice(
    source: ModelProto,
    graph: GraphIndex,
    order: NodeGroups,
    replacements: Mapping[int, Replacement],
) -> ModelProto:
    """Return a copy of a model in which groups of nodes are replaced.

    All information about the model is kept: names, docs, producer, metadata, opsets, IR
    version, inputs and outputs in their order. Weights that only replaced nodes read
    are gone; of the others, those that are detached stay so.

    Args:
        source: the model that `graph` indexes.
        graph: the index over its main graph.
        order: all nodes in groups, in execution order (`Partitioner.execution_order`).
        replacements: first node of a group to its replacement.
    """
    model = ModelProto(
        **{f.name: value for f, value in source.ListFields() if f.name != "graph"}
    )
    splice_graph(model.graph, graph, order, replacements)
    return model


def replace_subgraphs(
    node: NodeProto, subgraphs: Mapping[str, GraphProto]
) -> NodeProto:
    """Return a copy of a node with other graphs in its attributes."""
    copy: NodeProto = copy_message(node)
    for attribute in copy.attribute:
        if attribute.name in subgraphs:
            attribute.g.CopyFrom(subgraphs[attribute.name])
    return copy


def splice_graph(
    target: GraphProto,
    graph: GraphIndex,
    order: NodeGroups,
    replacements: Mapping[int, Replacement],
) -> None:
    """Fill an empty graph with a copy of one, main graph or subgraph, in which groups
    of nodes are replaced; see `splice`.
    """
    fields = {f.name: v for f, v in graph.graph.ListFields() if f.name not in _REBUILT}
    target.MergeFrom(GraphProto(**fields))
    add = target.node.add
    for group in order:
        node = replacements.get(group[0]) or graph.nodes[group[0]]
        if isinstance(node, NodeProto):
            add().CopyFrom(node)
        else:
            node.write(add())

    unused, read = _find_constants(graph, order, replacements)
    target.input.extend(v for v in graph.graph.input if v.name not in unused)
    target.initializer.extend(
        t for t in graph.graph.initializer if t.name not in unused
    )

    # Results of Constant nodes that were replaced.
    replaced = read & graph.producer.keys()
    gone = (
        replaced.difference(*(node.output for node in target.node)) if replaced else ()
    )
    target.initializer.extend(
        graph.weights[name].make_tensor_proto() for name in sorted(gone)
    )
    _splice_values(target, graph, replacements)


_REBUILT = frozenset({"node", "input", "initializer", "value_info"})


def _find_constants(
    graph: GraphIndex,
    order: NodeGroups,
    replacements: Mapping[int, Replacement],
) -> tuple[set[str], set[str]]:
    """Return the constants that only replaced nodes read, and those that others
    read.
    """
    if not graph.constants:
        return set(), set()
    left = set(graph.output_names)
    replaced: set[str] = set()
    for group in order:
        replacement = replacements.get(group[0])
        if replacement is None:
            left.update(graph.inputs[group[0]])
        else:
            left.update(replacement.input)
            if isinstance(replacement, NodeProto) and group[0] in graph.subgraphs:
                left.update(find_outer_names(replacement))
            for i in group:
                replaced.update(graph.inputs[i])
    return (replaced & graph.constants) - left, left & graph.constants


def _splice_values(
    target: GraphProto, graph: GraphIndex, replacements: Mapping[int, Replacement]
) -> None:
    """Keep the types of values that are still there, and give each replacement's inputs
    and outputs theirs.

    EPContext has no shape inference: without its outputs' types onnxruntime cannot type
    the graph. With those of its inputs, too, a session needs no inference (see
    `make_declared_types`). It takes them as they stand, so they contain proven types
    only.
    """
    if not replacements:
        target.value_info.extend(graph.graph.value_info)
        return
    around = chain.from_iterable(
        chain(node.input, node.output) for node in replacements.values()
    )
    names = {name: None for name in around if name in graph.producer}
    if graph.graph.value_info:
        present = {name for node in target.node for name in (*node.input, *node.output)}
        declared = (
            v
            for v in graph.graph.value_info
            if v.name in present and v.type.WhichOneof("value")
        )
        target.value_info.extend(declared)

    types = graph.types
    for value in target.value_info:
        if value.name in names and list_lengths(
            types.get_proven(value.name)
        ) != list_lengths(make_tensor_type(value.type)):
            value.type.CopyFrom(types.get_proven_proto(value.name) or value.type)

    typed = {v.name: v for values in (target.value_info, target.output) for v in values}
    add = target.value_info.add
    for name in names:
        proto = types.get_proven_proto(name)
        if name not in typed and proto is not None:
            add(name=name, type=proto)
        elif proto is not None and typed[name].type.WhichOneof("value") is None:
            # Outputs need no declared type, as long as inference finds it.
            typed[name].type.CopyFrom(proto)

    # What values are only declared to be is noted in them: EPs compiled for that, and
    # get it at a load, too. Most have neither a hint nor a note of an earlier one.
    get = types.get
    hints = {name for name in names if get(name) != types.get_proven(name)}
    changed = hints | {n for n, v in typed.items() if v.metadata_props and n in names}
    for value in chain(target.value_info, target.output) if changed else ():
        if value.name in changed:
            mark_declared(value, get(value.name) if value.name in hints else None)


def declare_shapes(graph: GraphProto, shapes: Mapping[str, Sequence[int]]) -> None:
    """Write the shapes that EPs compiled for where values are declared; nothing
    declares a value that is not there.
    """
    for value in chain(graph.value_info, graph.output) if shapes else ():
        if value.name in shapes:
            dims = [
                TensorShapeProto.Dimension(dim_value=length)
                for length in shapes[value.name]
            ]
            value.type.tensor_type.shape.CopyFrom(TensorShapeProto(dim=dims))
            mark_declared(value)
