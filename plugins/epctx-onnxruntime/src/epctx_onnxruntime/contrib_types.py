"""Types of values of operators that onnx does not know, inferred by onnxruntime.

Only onnxruntime has the schemas of `com.microsoft`, and those of custom operators.
"""

from __future__ import annotations

import logging
import re
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto

from epctx_onnxruntime.graphs import free_names, subgraphs
from epctx_onnxruntime.newest_versions import fit_versions, load_structure
from epctx_onnxruntime.quantizers import see_through_quantizers
from epctx_onnxruntime.real import native

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from onnx import GraphProto, NodeProto

    from epctx_onnxruntime.real import onnxruntime

    _Value: TypeAlias = "ValueInfoProto | TensorProto"

_log = logging.getLogger("epctx.engines")
_TENSOR = re.compile(r"tensor\((\w+)\)")
_ELEMENTS = {name.lower(): number for name, number in TensorProto.DataType.items()}


@cache
def has_schema(domain: str, op_type: str, version: int) -> bool:
    """Return whether onnxruntime has an operator in a version of its domain."""
    versions = [
        (schema.since_version, not schema.deprecated)
        for schema in native.get_all_operator_schema()
        if (schema.domain, schema.name) == (domain, op_type)
        and schema.since_version <= version
    ]
    return bool(versions) and max(versions)[1]


def resolve_types(inferred: ModelProto, options: onnxruntime.SessionOptions) -> None:
    """Declare, in place, values of the main graph and of subgraphs that inference left
    without a type.

    Does nothing if onnxruntime cannot read the model.

    Args:
        inferred: the model after onnx's inference, without detached weights.
        options: of sessions that load models, with the libraries of custom operators.
    """
    see_through_quantizers(inferred)
    versions = {
        "" if opset.domain == "ai.onnx" else opset.domain: opset.version
        for opset in inferred.opset_import
    }
    _resolve(inferred, options, inferred.graph, {}, versions)


def _resolve(
    model: ModelProto,
    options: onnxruntime.SessionOptions,
    graph: GraphProto,
    outer: Mapping[str, _Value],
    versions: Mapping[str, int],
) -> None:
    """Resolve a graph, then its subgraphs, which may read values of the graph."""
    makers = _find_makers_of_unknown(graph, versions)
    # A value of a subgraph may depend on one outside that such an operator computes.
    if makers and (outer or any(_is_foreign(node, versions) for node in graph.node)):
        unknown = set(makers)
        declared = {
            value.name: value
            for values in (graph.value_info, graph.output)
            for value in values
        }
        for value in _ask(_probe(model, graph, outer, unknown), options, unknown):
            (
                declared.get(value.name) or graph.value_info.add(name=value.name)
            ).type.CopyFrom(value.type)
    holders = [node for node in graph.node if any(True for _ in subgraphs(node))]
    if holders:
        scope = {**outer, **_list_values(graph)}
        for node in holders:
            for subgraph in subgraphs(node):
                _declare_inputs(subgraph, [scope.get(name) for name in node.input])
                _resolve(model, options, subgraph, scope, versions)


def _declare_inputs(subgraph: GraphProto, sources: Sequence[_Value | None]) -> None:
    """Set missing element types of the inputs of a subgraph to those of its node.

    A Loop and a Scan pass their inputs in order; a slice or a later iteration may have
    another shape.
    """
    for value, source in zip(subgraph.input, sources, strict=False):
        if source is None or _is_typed(value):
            continue
        if isinstance(source, TensorProto):
            value.type.tensor_type.elem_type = source.data_type
        elif source.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.elem_type = source.type.tensor_type.elem_type


def _probe(
    model: ModelProto, graph: GraphProto, outer: Mapping[str, _Value], unknown: set[str]
) -> ModelProto:
    """Return a model of one graph with its unknown values as outputs, and outer values
    of a subgraph as inputs.
    """
    probe = ModelProto(
        ir_version=model.ir_version,
        opset_import=model.opset_import,
        functions=model.functions,
    )
    probe.graph.CopyFrom(graph)
    for name in sorted(free_names(graph)) if outer else ():
        outer_value = outer.get(name)
        if isinstance(outer_value, TensorProto):
            probe.graph.initializer.append(outer_value)
        elif outer_value is not None:
            probe.graph.input.append(outer_value)
    for name in unknown - {value.name for value in probe.graph.output}:
        probe.graph.output.add(name=name)
    return probe


def _ask(
    probe: ModelProto, options: onnxruntime.SessionOptions, unknown: set[str]
) -> list[ValueInfoProto]:
    try:
        fit_versions(probe)
        outputs = load_structure(probe, options).outputs_meta
    except Exception as error:  # noqa: BLE001 - onnxruntime's exception classes have no base of their own
        _log.debug(
            "onnxruntime does not resolve the types of %d values: %s",
            len(unknown),
            error,
        )
        return []
    declared = []
    for value in outputs:
        match = _TENSOR.fullmatch(value.type)
        element = (
            _ELEMENTS.get(match.group(1)) if match and value.name in unknown else None
        )
        if element is not None:
            # The shape is [] for a scalar and for an unknown rank.
            declared.append(
                onnx.helper.make_tensor_value_info(
                    value.name, element, value.shape or None
                )
            )
    return declared


def _find_makers_of_unknown(
    graph: GraphProto, versions: Mapping[str, int]
) -> dict[str, NodeProto]:
    """Return the values without a type, with their nodes; also those without a shape
    that are results of foreign nodes or of the graph.
    """
    results = {value.name for value in graph.output}
    values = list(chain(graph.value_info, graph.output))
    typed = {v.name for v in values if _is_typed(v)}
    shaped = {v.name for v in values if v.type.tensor_type.HasField("shape")}
    return {
        name: node
        for node in graph.node
        for name in node.output
        if name
        and (
            name not in typed
            or (name not in shaped and (name in results or _is_foreign(node, versions)))
        )
    }


def _is_foreign(node: NodeProto, versions: Mapping[str, int]) -> bool:
    """Return whether onnx does not know the operator of a node, or of one in its
    subgraphs.
    """
    if not _is_of_onnx(node, versions):
        return True
    return any(
        _is_foreign(inner, versions)
        for subgraph in subgraphs(node)
        for inner in subgraph.node
    )


def _is_of_onnx(node: NodeProto, versions: Mapping[str, int]) -> bool:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return _has_onnx(domain, node.op_type, versions.get(domain, 1))


@cache
def _has_onnx(domain: str, op_type: str, version: int) -> bool:
    try:
        onnx.defs.get_schema(op_type, version, domain)
    except (onnx.defs.SchemaError, TypeError):
        return False
    return True


def _list_values(graph: GraphProto) -> dict[str, _Value]:
    """Return the typed values and the initializers of a graph, which its subgraphs may
    read.
    """
    values = chain(graph.output, graph.value_info, graph.input)
    return {v.name: v for v in values if _is_typed(v)} | {
        t.name: t for t in graph.initializer
    }


def _is_typed(value: ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (
        kind != "tensor_type" or bool(value.type.tensor_type.elem_type)
    )
