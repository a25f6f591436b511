"""Small networks for the other examples: `python examples/network.py model.onnx`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

_TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
pictures (float[{batch}, 3, 32, 32] image) => (float[{batch}, {classes}] scores) {{
  [conv] a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(image, filters)
  [relu] b = Relu(a)
  [mean] c = GlobalAveragePool(b)
  [flat] d = Flatten(c)
  [hidden] e = Gemm(d, hidden_weights)
  {wrap}
  [head] g = Gemm({last}, head_weights)
  [scores] scores = Softmax(g)
}}
"""


def write_network(
    path: Path, *, batch: int | str = 1, classes: int = 10, wrap: bool = False
) -> Path:
    """Write a network that sorts pictures into classes; return its path.

    Args:
        path: of the file.
        batch: number of pictures; a name leaves the length open.
        classes: width of the last layer. All others have the same weights in each
            network.
        wrap: add an operator on floats that QNN does not take, `Mod`.
    """
    model = onnx.parser.parse_model(
        _TEXT.format(
            batch=batch,
            classes=classes,
            wrap="[wrap] f = Mod<fmod = 1>(e, seven)" if wrap else "",
            last="f" if wrap else "e",
        )
    )
    random = np.random.default_rng(0)
    shapes = {"filters": (512, 3, 3, 3), "hidden_weights": (512, 512)}
    weights = {
        name: random.standard_normal(shape, np.float32) / 16
        for name, shape in shapes.items()
    }
    weights["head_weights"] = random.standard_normal((512, classes), np.float32) / 16
    if wrap:
        weights["seven"] = np.full(1, 7, np.float32)
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    onnx.save(model, path)
    return path


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(f"wrote {write_network(Path(sys.argv[1]))}")
