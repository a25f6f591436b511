# /// script
# dependencies = ["onnx==1.23.2", "numpy==2.4.6", "onnxruntime==1.32.0"]
# [tool.zoo]
# models = ["paddle_*_minus_one"]
# ///
"""Make the zoo's PaddlePaddle models in the form of older releases of paddle2onnx: open
lengths are written as -1.

Those releases do not install beside a current Python, so their form is written by this
script.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from saving import read_runs, save

MODELS = Path(__file__).parent.parent / "models"

for name in ("paddle_recogniser", "paddle_detector"):
    model = onnx.load(MODELS / f"{name}.onnx")
    for value in [*model.graph.input, *model.graph.output]:
        for length in value.type.tensor_type.shape.dim:
            if length.dim_param:
                length.dim_value = -1
    runs = read_runs(MODELS / f"{name}.npz")
    save(f"{name}_minus_one", model, *(run.inputs for run in runs))
