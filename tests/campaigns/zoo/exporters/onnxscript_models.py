# /// script
# dependencies = ["onnxscript==0.7.2", "onnx==1.23.2", "onnxruntime==1.32.0"]
# [tool.zoo]
# models = ["onnxscript_*"]
# ///
"""Make models that onnxscript writes from Python: functions in functions, loops with
carried values, branches.
"""

from __future__ import annotations

import numpy as np
from onnxscript import FLOAT, INT64, script
from onnxscript import opset15 as op15
from onnxscript import opset18 as op
from onnxscript.values import Opset
from saving import ROWS, drawn, save

mine = Opset("zoo.functions", 1)
X = {"x": drawn(ROWS, 4)}


@script(mine, default_opset=op)
def centred(x):
    """Subtract each row's mean."""
    return x - op.ReduceMean(x, [1])


@script(mine, default_opset=op)
def normalised(x, epsilon: float = 1e-5):
    """Divide a centred row by its deviation."""
    difference = centred(x)
    return difference / op.Sqrt(op.ReduceMean(difference * difference, [1]) + epsilon)


@script(default_opset=op)
def functions(x: FLOAT[None, 4]) -> FLOAT[None, 4]:
    """Call a function that calls another, with and without its attribute."""
    return op.Relu(normalised(x)) + normalised(x, epsilon=0.1)


@script(default_opset=op)
def counted_loop(x: FLOAT[None, 4]) -> FLOAT[None, 4]:
    """Carry two values around a loop whose length is fixed."""
    total = op.Identity(x)
    factor = op.Constant(value_float=1.0)
    for i in range(5):
        factor = factor * 0.5
        total = total + op.Sin(total) * factor + op.Cast(i, to=1)
    return total


@script(default_opset=op)
def loop_as_long_as_the_input_says(x: FLOAT[None, 4], count: INT64) -> FLOAT[None, 4]:
    """Go round a loop as often as an input says, and out of it early."""
    total = op.Identity(x)
    for _i in range(count):
        total = total * 0.5 + 1.0
        stop = op.ReduceMax(op.Abs(total), keepdims=0) < 1.01
        if stop:
            break
    return total


@script(default_opset=op)
def while_loop(x: FLOAT[None, 4]) -> FLOAT[None, 4]:
    """Halve while anything is large."""
    total = op.Identity(x)
    large = op.ReduceMax(op.Abs(total), keepdims=0) > 0.1
    while large:
        total = total / 2.0
        large = op.ReduceMax(op.Abs(total), keepdims=0) > 0.1
    return total


@script(default_opset=op)
def branches(x: FLOAT[None, 4]) -> FLOAT[None, 4]:
    """Take one of two branches that use what lies outside."""
    mean = op.ReduceMean(x, keepdims=0)
    if mean > 0.0:  # noqa: SIM108 - onnxscript takes statements
        result = op.Softmax(x - mean)
    else:
        result = op.Sigmoid(x) * mean
    return result


@script(mine, default_opset=op15)
def older(x):
    """Do what opset 18 does otherwise: axes as an attribute."""
    return op15.ReduceMean(x, axes=[1])


@script(default_opset=op15)
def functions_of_opset_15(x: FLOAT[None, 4]) -> FLOAT[None, 4]:
    """Call a function of an older operator set."""
    return op15.Tanh(x) - older(x)


save("onnxscript_functions", functions.to_model_proto(), X)
save("onnxscript_counted_loop", counted_loop.to_model_proto(), X)
count = {"count": np.array(7)}
save(
    "onnxscript_loop_with_break",
    loop_as_long_as_the_input_says.to_model_proto(),
    X | count,
)
save("onnxscript_while", while_loop.to_model_proto(), X)
save("onnxscript_branches", branches.to_model_proto(), X)
save("onnxscript_functions_opset15", functions_of_opset_15.to_model_proto(), X)
