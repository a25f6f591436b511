"""Context models by QNN, and changes of their EPContext nodes."""

from __future__ import annotations

import onnx
from onnx import helper
from support.routes import with_qnn
from support.small_models import saved

import epctx_core as epctx


def by_qnn(source, *, embed=False, bare=False):
    """Compile with QNN; `bare` takes off all that the core knows about the payload."""
    path = source.with_name(f"{source.stem}_ctx.onnx")
    epctx.ModelCompiler(with_qnn(), source, embed).compile_to_file(path)
    if bare:
        edit(path, lambda model: model.metadata_props.__delitem__(slice(None)))
    return path


def edit(path, change):
    model = onnx.load(path)
    change(model)
    saved(model, path)


def context_nodes(model):
    return [node for node in model.graph.node if node.op_type == "EPContext"]


def set_attributes(node, **values):
    """Set attributes of a node; None takes one away."""
    kept = [a for a in node.attribute if a.name not in values]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(
        helper.make_attribute(k, v) for k, v in values.items() if v is not None
    )
