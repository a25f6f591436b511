"""Types of values of operators that onnx does not know, inferred by onnxruntime.

Only onnxruntime has the schemas of `com.microsoft`, and those of custom operators; only onnx follows shapes that a model
computes. So quantizers of `com.microsoft`, which stand between all operators of a network, are for onnx what they are
to types: a Cast.
"""

from __future__ import annotations

import logging
import re
from itertools import chain
from typing import TYPE_CHECKING

import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto

from epctx_onnxruntime.graphs import all_graphs, free_names, subgraphs
from epctx_onnxruntime.newest_versions import load_structure
from epctx_onnxruntime.versions import fit_versions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    import onnxruntime
    from onnx import GraphProto, NodeProto

    _Known: TypeAlias = "ValueInfoProto | TensorProto"

_log = logging.getLogger("epctx.engines")
_ONNX_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training"}
)
_QUANTIZERS = {"QuantizeLinear": 2, "DequantizeLinear": 1}
"""The input that has the type of the result: the zero point, the scale."""
_LONGEST_SHAPE = 4096
"""Elements above which a vector is data: onnx would keep some 70 bytes for each to follow shapes."""
_TENSOR = re.compile(r"tensor\((\w+)\)")
_ELEMENTS = {name.lower(): number for name, number in TensorProto.DataType.items()}


def resolve_types(inferred: ModelProto, options: onnxruntime.SessionOptions) -> None:
    """Declare, in place, values of the main graph and of subgraphs that inference left without a type.

    Does nothing if onnxruntime cannot read the model.

    Args:
        inferred: the model after onnx's inference, without detached weights.
        options: of sessions that load models, with the libraries of custom operators.
    """
    _see_through_quantizers(inferred)
    _resolve(inferred, options, inferred.graph, {})


def _see_through_quantizers(inferred: ModelProto) -> None:
    """Declare, in place, what onnx infers behind quantizers of `com.microsoft`, too."""
    probe = ModelProto()
    probe.CopyFrom(inferred)
    graphs = [graph for _, graph in all_graphs(probe.graph)]
    known: dict[str, int] = {}
    for graph in graphs:
        known |= {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info)}
        known |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    if not [node for graph in graphs for node in graph.node if _cast(node, known)]:
        return
    has_vectors = any(_is_long_vector(value) for graph in graphs for value in graph.value_info)
    try:
        found = onnx.shape_inference.infer_shapes(probe, data_prop=not has_vectors)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        _log.debug("onnx does not infer what is behind quantizers: %s", error)
        return
    for (_, graph), (_, better) in zip(all_graphs(inferred.graph), all_graphs(found.graph), strict=True):
        declared = {value.name: value for value in chain(graph.value_info, graph.output)}
        for value in chain(better.value_info, better.output):
            target = declared.get(value.name)
            if _count_lengths(value) > (0 if target is None else _count_lengths(target)):
                (target or graph.value_info.add(name=value.name)).type.CopyFrom(value.type)


def _cast(node: NodeProto, known: Mapping[str, int]) -> bool:
    """Turn a quantizer of `com.microsoft` into a Cast in place; return whether it was one with known types."""
    if node.domain != "com.microsoft" or node.op_type not in _QUANTIZERS:
        return False
    place = _QUANTIZERS[node.op_type]
    has_type = len(node.input) > place and node.input[place]
    kind = known.get(node.input[place], 0) if has_type else TensorProto.UINT8
    if not kind:
        return False
    del node.input[1:]
    del node.attribute[:]
    node.attribute.append(onnx.helper.make_attribute("to", kind))
    node.op_type, node.domain = "Cast", ""
    return True


def _is_long_vector(value: ValueInfoProto) -> bool:
    dims = value.type.tensor_type.shape.dim
    return len(dims) == 1 and dims[0].dim_value > _LONGEST_SHAPE


def _count_lengths(value: ValueInfoProto) -> int:
    """Return how much is known of a tensor: 0 without a type, 1 without a rank, then 2 and one for each length."""
    kind = value.type.tensor_type
    if not kind.elem_type:
        return 0
    return 1 + int(kind.HasField("shape")) + sum(bool(dim.HasField("dim_value")) for dim in kind.shape.dim)


def _resolve(
    model: ModelProto, options: onnxruntime.SessionOptions, graph: GraphProto, outer: Mapping[str, _Known]
) -> None:
    """Resolve a graph, then its subgraphs, which may read values of the graph."""
    makers = _makers_of_unknown(graph)
    # A value of a subgraph may depend on one outside that such an operator computes.
    if makers and (outer or any(map(_is_foreign, makers.values()))):
        unknown = set(makers)
        declared = {value.name: value for values in (graph.value_info, graph.output) for value in values}
        for value in _ask(_probe(model, graph, outer, unknown), options, unknown):
            (declared.get(value.name) or graph.value_info.add(name=value.name)).type.CopyFrom(value.type)
    holders = [node for node in graph.node if any(True for _ in subgraphs(node))]
    if holders:
        scope = {**outer, **_known(graph)}
        for node in holders:
            for subgraph in subgraphs(node):
                _declare_inputs(subgraph, [scope.get(name) for name in node.input])
                _resolve(model, options, subgraph, scope)


def _declare_inputs(subgraph: GraphProto, given: Sequence[_Known | None]) -> None:
    """Set missing element types of the inputs of a subgraph to those of its node.

    A Loop and a Scan pass their inputs in order; a slice or a later iteration may have another shape.
    """
    for value, source in zip(subgraph.input, given, strict=False):
        if source is None or _is_typed(value):
            continue
        if isinstance(source, TensorProto):
            value.type.tensor_type.elem_type = source.data_type
        elif source.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.elem_type = source.type.tensor_type.elem_type


def _probe(
    model: ModelProto, graph: GraphProto, outer: Mapping[str, _Known], unknown: set[str]
) -> ModelProto:
    """Return a model of one graph with its unknown values as outputs, and outer values of a subgraph as inputs."""
    probe = ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions
    )
    probe.graph.CopyFrom(graph)
    for name in sorted(free_names(graph)) if outer else ():
        given = outer.get(name)
        if isinstance(given, TensorProto):
            probe.graph.initializer.append(given)
        elif given is not None:
            probe.graph.input.append(given)
    for name in unknown - {value.name for value in probe.graph.output}:
        probe.graph.output.add(name=name)
    return probe


def _ask(probe: ModelProto, options: onnxruntime.SessionOptions, unknown: set[str]) -> list[ValueInfoProto]:
    try:
        fit_versions(probe)
        found = load_structure(probe, options).outputs_meta
    except Exception as error:  # noqa: BLE001 - onnxruntime's exception classes have no base of their own
        _log.debug("onnxruntime does not resolve the types of %d values: %s", len(unknown), error)
        return []
    declared = []
    for value in found:
        match = _TENSOR.fullmatch(value.type)
        element = _ELEMENTS.get(match.group(1)) if match and value.name in unknown else None
        if element is not None:
            # The shape is [] for a scalar and for an unknown rank.
            declared.append(onnx.helper.make_tensor_value_info(value.name, element, value.shape or None))
    return declared


def _makers_of_unknown(graph: GraphProto) -> dict[str, NodeProto]:
    """Return the values without a type, with their nodes; of foreign nodes also those without a shape."""
    values = list(chain(graph.value_info, graph.output))
    typed = {v.name for v in values if _is_typed(v)}
    shaped = {v.name for v in values if v.type.tensor_type.HasField("shape")}
    return {
        name: node
        for node in graph.node
        for name in node.output
        if name and (name not in typed or (name not in shaped and node.domain not in _ONNX_DOMAINS))
    }


def _is_foreign(node: NodeProto) -> bool:
    """Return whether a node, or one in its subgraphs, is of a domain that onnx does not know."""
    if node.domain not in _ONNX_DOMAINS:
        return True
    return any(_is_foreign(inner) for subgraph in subgraphs(node) for inner in subgraph.node)


def _known(graph: GraphProto) -> dict[str, _Known]:
    """Return the typed values and the initializers of a graph, which its subgraphs may read."""
    values = chain(graph.output, graph.value_info, graph.input)
    return {v.name: v for v in values if _is_typed(v)} | {t.name: t for t in graph.initializer}


def _is_typed(value: ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or bool(value.type.tensor_type.elem_type))
