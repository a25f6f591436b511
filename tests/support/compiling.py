"""A compiler with EPs of one's own, and what it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
from support.validating_eps import options_with, registry_with

import epctx_core as epctx

if TYPE_CHECKING:
    from collections.abc import Mapping


def compiler(
    model: Any, *eps: Any, entries: Mapping[str, Any] | None = None, **arguments: Any
) -> epctx.ModelCompiler:
    """Return a compiler with these EPs and session options (`__` for a point)."""
    return epctx.ModelCompiler(
        options_with(*eps, **(entries or {})),
        model,
        registry=registry_with(*eps),
        **arguments,
    )


def proto_of(model: Any) -> onnx.ModelProto:
    """Return a model from a path or bytes, without what lies in other files."""
    if isinstance(model, bytes):
        return onnx.load_from_string(model)
    return onnx.load(model, load_external_data=False)


def context_nodes(model: Any) -> list[onnx.NodeProto]:
    """Return the EPContext nodes of the main graph."""
    return [n for n in proto_of(model).graph.node if n.op_type == "EPContext"]


def attribute(node: onnx.NodeProto, name: str) -> Any:
    """Return the value of a node's attribute."""
    return onnx.helper.get_node_attr_value(node, name)
