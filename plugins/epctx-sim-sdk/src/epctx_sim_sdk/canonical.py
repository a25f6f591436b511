"""The SDK's own form of a graph: an ONNX model without the names and notes of the network it came from.

Graphs of equal structure get equal bytes, whatever their values were called. Knows ONNX, no container.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from epctx_core.kernels.nchwc import MARK, read_mark

if TYPE_CHECKING:
    from collections.abc import Iterator

WEIGHT_LOCATION = "epctx-weight"
"""The location that every weight carries which lies in the container: the one the core's engines know."""


def canonicalise(model: onnx.ModelProto) -> dict[str, str]:
    """Rename every value by its place in the graph and remove all that does not compute.

    Values become `i0..` (inputs), `w0..` (weights, in order of first use) and `v0..` (the rest).
    Weights that nothing reads are dropped. The model is changed in place.

    Returns:
        The old name of each remaining initializer, with its new one.
    """
    graph = model.graph
    names = _number(graph)
    kept = [tensor for tensor in graph.initializer if tensor.name in names]
    weights = {tensor.name: names[tensor.name] for tensor in kept}
    kept.sort(key=lambda tensor: int(names[tensor.name][1:]))
    tensors = [_bare(tensor) for tensor in kept]
    del graph.initializer[:]
    graph.initializer.extend(tensors)
    _rename(graph, names)
    _strip(model)
    return weights


def _number(graph: onnx.GraphProto) -> dict[str, str]:
    weights = {tensor.name for tensor in graph.initializer}
    names = {value.name: f"i{index}" for index, value in enumerate(graph.input)}
    counts = {"w": 0, "v": 0}
    for name in _values(graph):
        if name and name not in names:
            kind = "w" if name in weights else "v"
            names[name] = f"{kind}{counts[kind]}"
            counts[kind] += 1
    return names


def _values(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that nodes read and write and that the graph gives, bodies included."""
    for node in graph.node:
        yield from node.input
        for body in _bodies(node):
            yield from (value.name for value in body.input)
            yield from (tensor.name for tensor in body.initializer)
            yield from _values(body)
        yield from node.output
    yield from (value.name for value in graph.output)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def _bare(tensor: onnx.TensorProto) -> onnx.TensorProto:
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.ClearField("doc_string")
    if copy.data_location == onnx.TensorProto.EXTERNAL:
        del copy.external_data[:]
        copy.external_data.add(key="location", value=WEIGHT_LOCATION)
    return copy


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    graph.name = "graph"
    graph.ClearField("doc_string")
    for notes in (graph.value_info, graph.quantization_annotation, graph.metadata_props):
        del notes[:]
    for value in (*graph.input, *graph.output):
        value.name = names[value.name]
        value.ClearField("doc_string")
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
    for node in graph.node:
        _rename_node(node, names)


def _rename_node(node: onnx.NodeProto, names: dict[str, str]) -> None:
    node.ClearField("name")
    node.ClearField("doc_string")
    del node.metadata_props[:]
    node.input[:] = [names.get(name, "") for name in node.input]
    node.output[:] = [names.get(name, "") for name in node.output]
    for attribute in node.attribute:
        attribute.ClearField("doc_string")
    for body in _bodies(node):
        _rename(body, names)


def _strip(model: onnx.ModelProto) -> None:
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        model.ClearField(field)
    # Says for which CPU the core's engine arranged the weights; nothing else there computes.
    layout = read_mark(model)
    del model.metadata_props[:]
    if layout is not None:
        model.metadata_props.add(key=MARK, value=layout)
    imports = sorted({(opset.domain, opset.version) for opset in model.opset_import})
    del model.opset_import[:]
    for domain, version in imports:
        model.opset_import.add(domain=domain, version=version)
