"""What a model says of itself around its nodes: inputs, imports, notes. Kept when the nodes are exchanged."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import ModelProto

from epctx_core.graph.bodies import all_graphs


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
