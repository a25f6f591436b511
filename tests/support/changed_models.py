"""Changes of a model, right and wrong, as an EP's hook `optimize_model` and a host
plugin's `transform_model` may give them.
"""

from __future__ import annotations


def without_negations(model, _weights, _level):
    """Neg(Neg(x)) is x."""
    kept = [n for n in model.graph.node if n.op_type != "Neg"]
    if len(kept) == len(model.graph.node):
        return None
    kept[0].input[0] = "x"
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def with_a_renamed_output(model, _weights, _level):
    model.graph.node[-1].output[0] = model.graph.output[0].name = "z"
    return model


def with_a_context_node(model, _weights, _level):
    model.opset_import.add(domain="com.microsoft", version=1)
    model.graph.node[-1].op_type, model.graph.node[-1].domain = (
        "EPContext",
        "com.microsoft",
    )
    return model


def circular(model, _weights, _level):
    model.graph.node[0].input[0] = model.graph.node[-1].output[0]
    return model
