# /// script
# dependencies = [
#     "onnxruntime==1.32.0", "onnx==1.23.2", "onnxsim==0.8.1", "onnxslim==0.1.98", "sympy", "onnx-ir", "coloredlogs",
# ]
# [tool.zoo]
# models = [
#     "derived_programs_unet_quantised_dynamic", "derived_transformers_bert_fixed_quantised_qdq",
#     "derived_transformers_bert_fused", "derived_transformers_bert_optimised_basic",
#     "derived_transformers_convnext_fixed_quantised_qoperator", "derived_transformers_gpt2_cached_optimised_extended",
#     "derived_transformers_llama_half", "derived_transformers_llama_quantised_four_bits_*",
#     "derived_transformers_qwen3_onnxsim", "derived_transformers_vit_fixed_quantised_qdq_wide",
#     "derived_transformers_whisper_onnxslim",
# ]
# reads = true
# ///
"""Make models out of others of the zoo, with the tools that people put between an exporter
and a device: onnxruntime's optimiser and its one for transformers, its quantisation,
half precision, simplifiers.

The others are read from the folder that this script writes to.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnxruntime
import onnxsim
import onnxslim
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model
from saving import Inputs, read_runs, save

if TYPE_CHECKING:
    from collections.abc import Callable

logging.disable(logging.WARNING)
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
LEVELS = onnxruntime.GraphOptimizationLevel
OPTIMISED = (
    "transformers_bert", "transformers_convnext_fixed", "transformers_gpt2_cached", "transformers_llama", "programs_lstm",
)  # fmt: skip
TRANSFORMERS = {
    "transformers_bert_opset17": "bert",
    "transformers_gpt2_opset17": "gpt2",
    "transformers_vit": "vit",
    "transformers_bert": "bert",
}
QUANTISED = (
    "transformers_bert_fixed",
    "transformers_vit_fixed",
    "transformers_convnext_fixed",
    "programs_unet",
)
HALVES = "transformers_llama", "transformers_vit", "programs_unet", "transformers_t5"
SIMPLIFIED = (
    "transformers_qwen3",
    "transformers_swinv2",
    "transformers_whisper",
    "transformers_segformer",
)
FOUR_BITS = "transformers_llama", "transformers_gpt2_fixed"


def inputs_of(name: str) -> list[Inputs]:
    """Return the inputs of the runs of a model."""
    return [run.inputs for run in read_runs(FOLDER / f"{name}.npz")]


def derive(name: str, how: str, write: Callable[[Path, Path], object]) -> None:
    """Save what a tool writes for a model."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "m.onnx"
        write(FOLDER / f"{name}.onnx", written)
        save(f"derived_{name}_{how}", written.read_bytes(), *inputs_of(name))


class Drawn(CalibrationDataReader):
    """The inputs of a model's runs, for calibration."""

    def __init__(self, name: str) -> None:
        """Read them."""
        self.left = iter(inputs_of(name))

    def get_next(self) -> Inputs | None:
        """Return the next inputs."""
        return next(self.left, None)


def optimised() -> None:
    """Save models at each of onnxruntime's levels, and as its optimiser for
    transformers writes them.
    """
    for name in OPTIMISED:
        for how in ("basic", "extended", "all"):

            def write(source: Path, target: Path, how: str = how) -> None:
                options = onnxruntime.SessionOptions()
                options.log_severity_level = 4
                options.graph_optimization_level = getattr(
                    LEVELS, f"ORT_ENABLE_{how.upper()}"
                )
                options.optimized_model_filepath = str(target)
                onnxruntime.InferenceSession(
                    source, options, providers=["CPUExecutionProvider"]
                )

            derive(name, f"optimised_{how}", write)
    for name, kind in TRANSFORMERS.items():

        def fuse(source: Path, target: Path, kind: str = kind) -> None:
            optimize_model(
                str(source), kind, num_heads=4, hidden_size=16,
                optimization_options=FusionOptions(kind), only_onnxruntime=False,
            ).save_model_to_file(str(target))  # fmt: skip

        derive(name, "fused", fuse)


def quantised() -> None:
    """Save quantised models: static in each form, dynamic, with weights of four bits."""
    narrow = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    wide = {"activation_type": QuantType.QUInt16, "weight_type": QuantType.QInt8}
    signed = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
    forms = {
        "qdq": {"quant_format": QuantFormat.QDQ, "per_channel": True, **narrow},
        "qdq_signed": {"quant_format": QuantFormat.QDQ, **signed},
        "qdq_wide": {"quant_format": QuantFormat.QDQ, **wide},
        "qoperator": {"quant_format": QuantFormat.QOperator, **narrow},
    }
    for name in QUANTISED:
        for how, form in forms.items():
            if (name, how) == ("transformers_bert_fixed", "qoperator"):
                # onnxruntime 1.32 refuses what its quantiser makes: a QGemm with uint8
                # for a bias.
                continue

            def write(
                source: Path, target: Path, form: dict = form, name: str = name
            ) -> None:
                quant_pre_process(source, target, skip_symbolic_shape=True)
                quantize_static(target, target, Drawn(name), **form)

            derive(name, f"quantised_{how}", write)
        derive(
            name,
            "quantised_dynamic",
            lambda source, target: quantize_dynamic(
                source, target, weight_type=QuantType.QInt8
            ),
        )
    for name in FOUR_BITS:
        for form in (QuantFormat.QDQ, QuantFormat.QOperator):

            def few_bits(source: Path, target: Path, form: QuantFormat = form) -> None:
                config = DefaultWeightOnlyQuantConfig(block_size=16, quant_format=form)
                quantizer = MatMulNBitsQuantizer(onnx.load(source), algo_config=config)
                quantizer.process()
                onnx.save(quantizer.model.model, target)

            derive(name, f"quantised_four_bits_{form.name.lower()}", few_bits)


def halved_and_simplified() -> None:
    """Save models in half precision, and simplified ones."""
    for name in HALVES:
        derive(
            name,
            "half",
            lambda source, target: onnx.save(
                convert_float_to_float16(onnx.load(source), keep_io_types=True), target
            ),
        )
    for name in SIMPLIFIED:
        derive(
            name,
            "onnxsim",
            lambda source, target: onnx.save(
                onnxsim.simplify(onnx.load(source))[0], target
            ),
        )
        derive(
            name,
            "onnxslim",
            lambda source, target: onnx.save(onnxslim.slim(onnx.load(source)), target),
        )


if __name__ == "__main__":
    optimised()
    quantised()
    halved_and_simplified()
