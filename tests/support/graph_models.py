"""Small models."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64
BOOL = TensorProto.BOOL


def value(name, elem_type=FLOAT, shape=(2,)):
    return helper.make_tensor_value_info(name, elem_type, shape)


def node(op_type, inputs, outputs, name="", **attributes):
    return helper.make_node(op_type, inputs, outputs, name=name, **attributes)


def tensor(name, values, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def model(
    nodes,
    inputs,
    outputs,
    initializers=(),
    *,
    opsets=(("", 21),),
    ir_version=10,
    functions=(),
    **graph,
):
    """A model; plain names stand for float values of shape [2]."""
    made = helper.make_graph(
        nodes,
        "made",
        [value(v) if isinstance(v, str) else v for v in inputs],
        [value(v) if isinstance(v, str) else v for v in outputs],
        list(initializers),
        **graph,
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    return helper.make_model(
        made,
        opset_imports=imports,
        ir_version=ir_version,
        functions=functions,
        producer_name="tests",
    )


def conditional(condition, then_reads, else_reads, output, *, local="t", name=""):
    """If: both subgraphs negate or keep a value of the enclosing scope under a local
    name.
    """

    def body(op_type, reads):
        return helper.make_graph(
            [node(op_type, [reads], [local], name=f"{local}_{op_type}")],
            op_type,
            [],
            [value(local)],
        )

    return helper.make_node(
        "If",
        [condition],
        [output],
        name=name,
        then_branch=body("Neg", then_reads),
        else_branch=body("Identity", else_reads),
    )
