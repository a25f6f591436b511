"""Context models as tools without manifests leave them, and a network for each simulated
EP.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper
from support.small_models import finished, tensor


def from_other_process(path):
    """Leave of a context model what any tool writes: its nodes with their EP's
    attributes.
    """
    model = onnx.load(path, load_external_data=False)
    for field in ("metadata_props", "producer_name", "producer_version"):
        model.ClearField(field)
    onnx.save(model, path)
    return path


def convolution():
    """Return an INT8 convolution between floats, and Erf behind it: something for each
    simulated EP.
    """
    weights = {
        "scale": np.float32(2.0**-4),
        "zero": np.int8(0),
        "w": np.random.default_rng(0).integers(-100, 100, (4, 4, 3, 3), dtype=np.int8),
        "w_scale": np.float32(2.0**-9),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["a"]),
        helper.make_node("DequantizeLinear", ["a", "scale", "zero"], ["b"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "zero"], ["c"]),
        helper.make_node("Conv", ["b", "c"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["d", "scale", "zero"], ["e"]),
        helper.make_node("DequantizeLinear", ["e", "scale", "zero"], ["f"]),
        helper.make_node("Tanh", ["f"], ["g"]),
        helper.make_node("IsInf", ["g"], ["h"]),
        helper.make_node("Where", ["h", "scale", "g"], ["i"]),
        helper.make_node("Erf", ["i"], ["y"]),
    ]
    inner = [
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in weights.items()
    ]
    shape = (1, 4, 8, 8)
    return finished(
        nodes, [tensor("x", shape=shape)], [tensor("y", shape=shape)], inner
    )
