"""Guards against operators with which onnxruntime ends the process: some if their input
has no rows, one if its last input is left out by an empty name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.errors import NotImplementedByProvider
from epctx_core.plugin.protos import AttributeProto, ModelProto, NodeProto, TensorProto
from epctx_onnxruntime.graphs import (
    GraphPath,
    all_graphs,
    names_read,
    subgraphs,
    without_weights,
)

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from onnx import GraphProto


_NAMED = "LayerNormalization"
GUARD = "epctx: rows for "
"""Prefix of the names of nodes that refuse an empty input."""
_ROWS = ((0, -1),)
_ROWS_AND_STEPS = ((-1, 0, 0), (0, -1, 0))
_BY_RANK = "FeatureVectorizer"
_GUARDING: dict[str, Sequence[Sequence[int]]] = {
    "LSTM": _ROWS_AND_STEPS,
    "GRU": _ROWS_AND_STEPS,
    "DynamicQuantizeLSTM": _ROWS_AND_STEPS,
    _BY_RANK: _ROWS,
}
"""The operators, with the shapes to which their first input is reshaped: its own, which
fails if it is empty.
"""


def guard_recurrent(model: ModelProto) -> None:
    """Insert nodes before these operators that fail if the input is empty.

    Their names end in a space and a number.

    Raises:
        NotImplementedByProvider: an input of unknown rank may have no rows.
    """
    lists = [*_list_nodes(model)]
    operators = {node.op_type for _, nodes in lists for node in nodes}
    ranks = _infer_ranks(model) if _BY_RANK in operators else {}
    number = 0
    # A graph precedes its subgraphs, which are changed first.
    for path, nodes in reversed(lists):
        if _GUARDING.keys().isdisjoint([node.op_type for node in nodes]):
            continue
        guarded: list[NodeProto] = []
        for node in nodes:
            shapes = _GUARDING.get(node.op_type)
            if shapes is _ROWS and not _needs_rows(
                node, {} if path is None else ranks[path]
            ):
                shapes = None
            if shapes and node.input:
                number += 1
                guarded += _guard_nodes(
                    node, f"{GUARD}{node.op_type} {node.name!r} {number}", shapes
                )
            guarded.append(node)
        del nodes[:]
        nodes.extend(guarded)


def _list_nodes(
    model: ModelProto,
) -> Iterator[tuple[GraphPath | None, RepeatedCompositeFieldContainer[NodeProto]]]:
    """Yield all nodes of each graph, with its path; None for a graph in a function."""
    yield from ((path, graph.node) for path, graph in all_graphs(model.graph))
    for function in model.functions:
        yield None, function.node
        yield from (
            (None, graph.node)
            for subgraph in subgraphs(*function.node)
            for _, graph in all_graphs(subgraph)
        )


def _needs_rows(node: NodeProto, ranks: Mapping[str, int | None]) -> bool:
    """Return whether onnxruntime ends the process if this FeatureVectorizer gets no
    rows.

    It does so with a second input. A vector is one row, whatever its length.

    Raises:
        NotImplementedByProvider: the rank of the input is unknown.
    """
    if node.domain != "ai.onnx.ml" or len(node.input) <= 1:
        return False
    rank = ranks.get(node.input[0])
    if rank is None:
        raise NotImplementedByProvider(
            f"{node.op_type} {node.name!r} is not run on onnxruntime, which ends the "
            f"process if there are no rows: the rank of {node.input[0]!r} is unknown."
        )
    return rank > 1


def _infer_ranks(model: ModelProto) -> dict[GraphPath, dict[str, int | None]]:
    """Return the ranks of the values in the scope of each graph, as declared or
    inferred; None for an unknown one.
    """
    import onnx

    inferred = without_weights(model)
    with contextlib.suppress(
        RuntimeError, ValueError, onnx.shape_inference.InferenceError
    ):
        inferred = onnx.shape_inference.infer_shapes(inferred)
    scopes: dict[GraphPath, dict[str, int | None]] = {}
    for path, graph in all_graphs(inferred.graph):
        values = [v for v in (*graph.input, *graph.output, *graph.value_info) if v.name]
        scopes[path] = {
            **(scopes[path[:-1]] if path else {}),
            # A value of a subgraph hides an outer one of its name.
            **{name: None for node in graph.node for name in node.output},
            **{
                v.name: len(v.type.tensor_type.shape.dim)
                for v in values
                if v.type.tensor_type.HasField("shape")
            },
            **{tensor.name: len(tensor.dims) for tensor in graph.initializer},
        }
    return scopes


def _guard_nodes(
    node: NodeProto, name: str, shapes: Sequence[Sequence[int]]
) -> Iterator[NodeProto]:
    """Yield nodes that reshape a node's input to its own shape (rows, to a matrix), and
    make the node read the result.

    This copies nothing. onnxruntime computes the length -1 from the others, and fails
    if one of those is 0.
    """
    for step, shape in enumerate(shapes):
        checked = f"{name}.{step}"
        lengths = f"{name}.{step} shape"
        value = TensorProto(
            data_type=TensorProto.INT64, dims=[len(shape)], int64_data=shape
        )
        constant = NodeProto(op_type="Constant", output=[lengths])
        constant.attribute.add(name="value", type=AttributeProto.TENSOR, t=value)
        yield constant
        yield NodeProto(
            op_type="Reshape",
            name=checked,
            input=[node.input[0], lengths],
            output=[checked],
        )
        node.input[0] = checked


def drop_empty_names(model: ModelProto) -> None:
    """Drop empty names at the end of the inputs of LayerNormalization, in place: they
    say the same as none, and onnxruntime's optimiser ends the process over them where
    the type is float16.
    """
    for _, nodes in _list_nodes(model):
        for node in [node for node in nodes if node.op_type == _NAMED]:
            while node.input and not node.input[-1]:
                del node.input[-1]


def folds_recurrent(model: ModelProto) -> bool:
    """Return whether onnxruntime would compute one of these operators while it
    optimises: all its inputs are constant.
    """
    # It does not compute a FeatureVectorizer.
    operators = (node.op_type for _, nodes in _list_nodes(model) for node in nodes)
    has_recurrent = any(
        _GUARDING.get(operator) is _ROWS_AND_STEPS for operator in operators
    )
    return has_recurrent and _folds(model.graph, frozenset())


def _folds(graph: GraphProto, fed: frozenset[str]) -> bool:
    weights = {tensor.name for tensor in graph.initializer}
    variables = {
        *fed,
        *(value.name for value in graph.input if value.name not in weights),
    }
    for node in graph.node:
        if not variables.isdisjoint(names_read(node)):
            variables.update(node.output)
        elif _GUARDING.get(node.op_type) is _ROWS_AND_STEPS:
            return True
        if any(_folds(subgraph, frozenset(variables)) for subgraph in subgraphs(node)):
            return True
    return False
