# /// script
# dependencies = ["paddle2onnx==1.3.1", "paddlepaddle==2.6.2", "setuptools", "packaging", "onnx==1.17.0", "onnxruntime==1.22.1"]
# [tool.zoo]
# apart = true
# models = ["paddle_detector", "paddle_recogniser"]
# ///
"""Make small networks of PaddlePaddle, exported by paddle2onnx, which writes -1 for
lengths that are open.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import paddle
import paddle2onnx
from paddle import nn
from saving import ROWS, Inputs, drawn, save

paddle.set_device("cpu")
paddle.seed(0)


class Recogniser(nn.Layer):
    """Lines of text, as an OCR recogniser reads them: convolutions, columns as time, an
    LSTM.
    """

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2D(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2D(8),
            nn.Hardswish(),
            nn.MaxPool2D((4, 1)),
        )
        self.lstm = nn.LSTM(8, 6, direction="bidirectional")
        self.end = nn.Linear(12, 5)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return scores by column."""
        columns = self.body(x).squeeze(2).transpose([0, 2, 1])
        return nn.functional.softmax(self.end(self.lstm(columns)[0]), axis=2)


class Detector(nn.Layer):
    """A small detector: convolutions, one of them transposed, a sum of scales."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.first = nn.Conv2D(3, 6, 3, padding=1, bias_attr=False)
        self.norm = nn.BatchNorm2D(6)
        self.second = nn.Conv2D(6, 6, 3, stride=2, padding=1)
        self.larger = nn.Conv2DTranspose(6, 6, 2, stride=2)
        self.end = nn.Conv2D(6, 1, 1)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return a map of probabilities."""
        fine = nn.functional.relu(self.norm(self.first(x)))
        return nn.functional.sigmoid(self.end(fine + self.larger(self.second(fine))))


def exported(name: str, network: nn.Layer, shape: list[int], *runs: Inputs) -> None:
    """Save a network whose input has lengths of -1, with inputs of several sizes."""
    network.eval()
    with tempfile.TemporaryDirectory() as folder:
        given = [paddle.static.InputSpec(shape, "float32", "x")]
        paddle.jit.save(network, f"{folder}/m", input_spec=given)
        (program,) = [*Path(folder).glob("m.pdmodel"), *Path(folder).glob("m.json")]
        paddle2onnx.export(
            str(program), f"{folder}/m.pdiparams", f"{folder}/m.onnx", opset_version=11
        )
        save(name, Path(f"{folder}/m.onnx").read_bytes(), *runs)


exported(
    "paddle_recogniser",
    Recogniser(),
    [-1, 3, 8, -1],
    *({"x": drawn(*shape)} for shape in ((ROWS, 3, 8, 20), (1, 3, 8, 28))),
)
exported(
    "paddle_detector",
    Detector(),
    [-1, 3, -1, -1],
    *({"x": drawn(*shape)} for shape in ((ROWS, 3, 8, 12), (1, 3, 12, 8))),
)
