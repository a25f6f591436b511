# /// script
# dependencies = ["onnxruntime==1.32.0", "onnx==1.23.2", "sympy", "onnx-ir"]
# [tool.zoo]
# models = ["quantised_*"]
# ///
"""Make quantised networks by onnxruntime.quantization, out of two of the zoo's own
networks.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from saving import ROWS, drawn, save

if TYPE_CHECKING:
    import numpy as np

MODELS = Path(__file__).parent.parent / "models"
IMAGES, TOKENS = (
    MODELS / "torch_convolutions.onnx",
    MODELS / "torch_attention_opset17.onnx",
)
FIXED = MODELS / "torch_convolutions_fixed.onnx"
IMAGE, TOKEN = {"x": drawn(ROWS, 3, 8, 8)}, {"x": drawn(ROWS, 5, 8)}
NARROW = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
WIDE = {"activation_type": QuantType.QUInt16, "weight_type": QuantType.QInt8}


class Images(CalibrationDataReader):
    """Eight batches of drawn images."""

    def __init__(self) -> None:
        """Draw them."""
        self.batches = iter(
            [{"x": drawn(ROWS, 3, 8, 8, seed=seed)} for seed in range(8)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next batch."""
        return next(self.batches, None)


def static(
    name: str, form: QuantFormat, source: Path = IMAGES, **options: object
) -> None:
    """Save the convolutions, quantised with drawn images for calibration."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "m.onnx"
        quantize_static(source, written, Images(), quant_format=form, **options)
        save(f"quantised_{name}", written.read_bytes(), IMAGE)


def dynamic() -> None:
    """Save both networks with whole-number weights, activations quantised as they
    come.
    """
    for name, path, inputs in [
        ("convolutions", IMAGES, IMAGE),
        ("attention", TOKENS, TOKEN),
    ]:
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "m.onnx"
            quantize_dynamic(path, written, weight_type=QuantType.QUInt8)
            save(f"quantised_dynamic_{name}", written.read_bytes(), inputs)


def four_bits() -> None:
    """Save the transformer layer with weights of four bits, which only com.microsoft
    multiplies.
    """
    quantizer = MatMulNBitsQuantizer(
        onnx.load(TOKENS), block_size=16, is_symmetric=True
    )
    quantizer.process()
    save("quantised_four_bits", quantizer.model.model, TOKEN)


static("qdq", QuantFormat.QDQ, per_channel=True, **NARROW)
static("qdq_16_bits", QuantFormat.QDQ, **WIDE)
static("qoperator", QuantFormat.QOperator, **NARROW)
static("qdq_fixed", QuantFormat.QDQ, FIXED, per_channel=True, **NARROW)
static("qoperator_fixed", QuantFormat.QOperator, FIXED, **NARROW)
dynamic()
four_bits()
