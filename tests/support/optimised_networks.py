"""Networks of which onnxruntime's optimiser makes something else."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper
from support.graph_models import model, node, tensor, value

WIDE = 64


def drawn(name, *shape, seed=0):
    generator = np.random.default_rng([seed, len(name), *map(ord, name)])
    return numpy_helper.from_array(
        generator.standard_normal(shape, np.float32) / 4, name
    )


def convolution_and_normalisation(ir_version=10):
    """y = BatchNormalization(Conv(x)) @ dense: the first two become one."""
    names = ["w", "scale", "bias", "mean", "variance", "dense"]
    weights = [drawn("w", 32, 3, 3, 3), *(drawn(n, 32) for n in names[1:4])]
    weights += [tensor("variance", np.full(32, 2.0)), drawn("dense", 14, WIDE)]
    inputs = [value("x", shape=[1, 3, 16, 16])]
    if ir_version < 4:
        inputs += [value(t.name, shape=list(t.dims)) for t in weights]
    made = model(
        [
            node("Conv", ["x", "w"], ["c"], name="first"),
            node(
                "BatchNormalization", ["c", "scale", "bias", "mean", "variance"], ["n"]
            ),
            node("MatMul", ["n", "dense"], ["y"]),
        ],
        inputs,
        [value("y", shape=[1, 32, 14, WIDE])],
        weights,
        opsets=[("", 15)],
        ir_version=ir_version,
    )
    made.doc_string, made.graph.doc_string = "about the model", "about the graph"
    made.metadata_props.add(key="author", value="someone")
    return made


def gelu():
    constants = [tensor("root", np.sqrt(2.0)), tensor("one", 1.0), tensor("half", 0.5)]
    return model(
        [
            node("Div", ["x", "root"], ["d"]),
            node("Erf", ["d"], ["e"]),
            node("Add", ["e", "one"], ["a"]),
            node("Mul", ["x", "a"], ["m"]),
            node("Mul", ["m", "half"], ["y"]),
        ],
        [value("x", shape=[4, 8])],
        [value("y", shape=[4, 8])],
        constants,
        opsets=[("", 13)],
    )
