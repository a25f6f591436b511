"""Models around pieces: the frame of a whole model, and guards before recurrent operators that get no rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from epctx_core.graph.bodies import all_graphs, bodies, may_hold_bodies, outer_names

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from onnx import GraphProto, NodeProto


def with_frame(found: ModelProto, source: ModelProto) -> ModelProto:
    """Return the optimised nodes and weights in a model that says of itself what the source did."""
    model = ModelProto()
    model.CopyFrom(source)
    graph = model.graph
    for field in ("node", "initializer", "value_info", "quantization_annotation"):
        graph.ClearField(field)
        getattr(graph, field).extend(getattr(found.graph, field))
    kept = {annotation.tensor_name for annotation in source.graph.quantization_annotation}
    values = {name for node in graph.node for name in (*node.input, *node.output)}
    del graph.quantization_annotation[:]
    graph.quantization_annotation.extend(
        a for a in source.graph.quantization_annotation if a.tensor_name in kept & values
    )
    _restore_inputs(model, source)
    imported = {("" if o.domain == "ai.onnx" else o.domain) for o in model.opset_import}
    for domain in sorted({n.domain for n in all_nodes(graph)} - imported - {"ai.onnx"}):
        version = next((o.version for o in found.opset_import if o.domain == domain), 1)
        model.opset_import.add(domain=domain, version=version)
    called = {(n.domain, n.op_type) for n in all_nodes(graph)}
    if not any((f.domain, f.name) in called for f in model.functions):
        model.ClearField("functions")
    return model


def _restore_inputs(model: ModelProto, source: ModelProto) -> None:
    """Before IR version 4, initializers stand among the inputs: those that there are now."""
    if source.ir_version >= 4:  # noqa: PLR2004 - see drop_initializer_inputs
        return
    gone = {t.name for t in source.graph.initializer}
    kept = [value for value in source.graph.input if value.name not in gone]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in model.graph.initializer
    )


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of all bodies in it."""
    for _, inner in all_graphs(graph):
        yield from inner.node


GUARD = "epctx: rows for "
"""What the names of nodes that refuse an empty input begin with."""
_ENDING = frozenset({"LSTM", "GRU", "DynamicQuantizeLSTM"})
"""Recurrent operators that make onnxruntime end the process when their first input is empty."""
_BY_ROWS = "FeatureVectorizer"
"""The same of ai.onnx.ml, for an input of rows and columns."""


def guard_recurrent(model: ModelProto) -> None:
    """Have each of these operators read its input through nodes that fail if it is empty.

    Their names end in a number of their own, after a space.
    """
    # A graph comes before those inside it, which are changed first.
    guarded_types = {*_ENDING, _BY_ROWS}
    found = [nodes for nodes in _node_lists(model) if any(node.op_type in guarded_types for node in nodes)]
    ranks = _ranks(model) if found else {}
    number = 0
    for nodes in reversed(found):
        guarded: list[NodeProto] = []
        for node in nodes:
            shapes = _GUARDING[3] if node.op_type in _ENDING and node.input else []
            if node.op_type == _BY_ROWS and node.input and ranks.get(node.input[0]) == 2:  # noqa: PLR2004
                shapes = _GUARDING[2]
            if shapes:
                number += 1
                guarded += _guards(node, f"{GUARD}{node.op_type} {node.name!r} {number}", shapes)
            guarded.append(node)
        del nodes[:]
        nodes.extend(guarded)


def _node_lists(model: ModelProto) -> Iterator[RepeatedCompositeFieldContainer[NodeProto]]:
    yield from (graph.node for _, graph in all_graphs(model.graph))
    for function in model.functions:
        yield function.node
        holders = (node for node in function.node if may_hold_bodies(node))
        inner = (body for node in holders for body in bodies(node))
        yield from (graph.node for body in inner for _, graph in all_graphs(body))


def _ranks(model: ModelProto) -> dict[str, int]:
    """Return the ranks that are declared, by value."""
    values = (v for _, graph in all_graphs(model.graph) for v in (*graph.input, *graph.value_info))
    return {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")}


_GUARDING = {2: [[0, -1]], 3: [[-1, 0, 0], [0, -1, 0]]}
"""Shapes by rank: those of the input itself, which cannot be computed where it is empty in rows, or rows and steps."""


def _guards(node: NodeProto, name: str, shapes: Sequence[Sequence[int]]) -> Iterator[NodeProto]:
    """Yield nodes that reshape a node's input to the shape it has, and have the node read their result.

    That copies nothing. onnxruntime computes the length written as -1 from the others, and fails if one of those is 0.
    """
    for step, shape in enumerate(shapes):
        checked, lengths = f"{name}.{step}", f"{name}.{step} shape"
        value = numpy_helper.from_array(np.array(shape, np.int64))
        yield helper.make_node("Constant", [], [lengths], value=value)
        yield helper.make_node("Reshape", [node.input[0], lengths], [checked], name=checked)
        node.input[0] = checked


def folds_recurrent(model: ModelProto) -> bool:
    """Whether onnxruntime would compute one of these operators while it optimises: nothing that it reads is fed."""
    found = any(node.op_type in _ENDING for nodes in _node_lists(model) for node in nodes)
    return found and _folds(model.graph, frozenset())


def _folds(graph: GraphProto, fed: frozenset[str]) -> bool:
    given = {tensor.name for tensor in graph.initializer}
    known = {*fed, *(value.name for value in graph.input if value.name not in given)}
    for node in graph.node:
        if not known.isdisjoint((*node.input, *outer_names(node))):
            known.update(node.output)
        elif node.op_type in _ENDING:
            return True
        if may_hold_bodies(node) and any(_folds(body, frozenset(known)) for body in bodies(node)):
            return True
    return False
