"""Quantises networks to QDQ INT8 with onnxruntime's static quantiser.

Knows ONNX, knows nothing of epctx.

Scales are powers of two and zero points are 0, as AMD's format XINT8 has them. Then
every sum of products is exact in float32, and no rounding depends on the order in which
a kernel adds: the deep networks with random weights amplify a single changed rounding
to different answers.

    python tests/support/networks/quantise.py resnet50 resnet50_int8.onnx --seed 7
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterator

CALIBRATION_INPUTS = 2
WITH_BIAS = 3
NOT_QUANTISED = frozenset({"Softmax", "Sum"})
"""Softmax is no convolution network's work, and onnxruntime's quantiser does not know
Sum.
"""


def quantise(source: Path, output: Path, seed: int = 0) -> None:
    """Write the QDQ INT8 form of a network with float inputs; the same bytes for the
    same source and seed.
    """
    with _advice_silenced(), tempfile.TemporaryDirectory() as scratch:
        folded, quantised = (
            Path(scratch) / "folded.onnx",
            Path(scratch) / "quantised.onnx",
        )
        _fold(source, folded)
        _quantise(folded, quantised, _inputs(folded, seed))
        model = onnx.load(quantised)
        _Rounding(model.graph, onnx.load(folded).graph).apply()
        onnx.save(model, output)


def steps_of(path: Path) -> list[float | None]:
    """Return the quantisation step of each output of a network; None for one that is
    not dequantised.
    """
    graph = onnx.load(path, load_external_data=False).graph
    values = {tensor.name: tensor for tensor in graph.initializer}
    made_by = {name: node for node in graph.node for name in node.output}
    return [
        float(numpy_helper.to_array(values[made_by[output.name].input[1]]))
        if made_by[output.name].op_type == "DequantizeLinear"
        else None
        for output in graph.output
    ]


@contextmanager
def _advice_silenced() -> Iterator[None]:
    """Drop what onnxruntime's quantiser tells the root logger: it recommends its
    pre-processing.
    """
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _fold(source: Path, output: Path) -> None:
    """Fold BatchNormalization into convolutions: alone it would stay in float."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    )
    options.optimized_model_filepath = str(output)
    onnxruntime.InferenceSession(
        str(source), options, providers=["CPUExecutionProvider"]
    )
    model = onnx.load(output)
    used = {node.domain for node in model.graph.node}
    imports = [opset for opset in model.opset_import if opset.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(imports)
    onnx.save(model, output)


def _inputs(model: Path, seed: int) -> list[dict[str, np.ndarray]]:
    graph = onnx.load(model, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    shapes = {
        value.name: [
            dimension.dim_value for dimension in value.type.tensor_type.shape.dim
        ]
        for value in graph.input
        if value.name not in weights
    }
    generator = np.random.Generator(np.random.PCG64([seed, 1]))
    return [
        {
            name: generator.standard_normal(shape, dtype=np.float32)
            for name, shape in shapes.items()
        }
        for _ in range(CALIBRATION_INPUTS)
    ]


def _quantise(source: Path, output: Path, inputs: list[dict[str, np.ndarray]]) -> None:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Inputs(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left: Iterator[dict[str, np.ndarray]] = iter(inputs)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._left, None)

    operators = {
        node.op_type for node in onnx.load(source, load_external_data=False).graph.node
    }
    quantize_static(
        source,
        output,
        Inputs(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=sorted(operators - NOT_QUANTISED),
        extra_options={"ActivationSymmetric": True},
    )


class _Rounding:
    """Rounds the scales of a quantised network up to powers of two, and its weights and
    biases anew.
    """

    def __init__(self, graph: onnx.GraphProto, source: onnx.GraphProto) -> None:
        self._graph = graph
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._originals = {tensor.name: tensor for tensor in source.initializer}
        self._sources = {
            node.output[0]: node
            for node in graph.node
            if node.op_type == "DequantizeLinear"
        }

    def apply(self) -> None:
        """Change the graph in place."""
        quantizers = [
            *self._sources.values(),
            *(n for n in self._graph.node if n.op_type == "QuantizeLinear"),
        ]
        for name in {node.input[1] for node in quantizers}:
            self._set(name, 2.0 ** np.ceil(np.log2(self._array(name))))
        for node in self._sources.values():
            if (
                node.input[0] in self._tensors
                and self._array(node.input[0]).dtype == np.int8
            ):
                self._requantise(node, self._array(node.input[1]))
        for node in self._graph.node:
            sources = [self._sources.get(name) for name in node.input]
            if len(sources) == WITH_BIAS and None not in sources:
                data, weight, bias = sources
                self._requantise(
                    bias, self._array(data.input[1]) * self._array(weight.input[1])
                )

    def _requantise(self, source: onnx.NodeProto, scale: np.ndarray) -> None:
        original = numpy_helper.to_array(
            self._originals[source.input[0].removesuffix("_quantized")]
        )
        limit = np.iinfo(self._array(source.input[0]).dtype).max
        self._set(source.input[0], np.clip(np.rint(original / scale), -limit, limit))
        self._set(
            source.input[1], np.broadcast_to(scale, self._array(source.input[1]).shape)
        )

    def _array(self, name: str) -> np.ndarray:
        return numpy_helper.to_array(self._tensors[name])

    def _set(self, name: str, values: np.ndarray) -> None:
        stored = np.ascontiguousarray(values, self._array(name).dtype)
        self._tensors[name].CopyFrom(
            numpy_helper.from_array(stored.reshape(self._array(name).shape), name)
        )


def main() -> None:
    """Quantise one network of the catalog."""
    from support.networks.catalog import EXPORTED, EXPORTED_FOLDER
    from support.networks.fill import NETWORKS, fill, save

    parser = argparse.ArgumentParser(
        description="Quantise a network of the tests to QDQ INT8."
    )
    parser.add_argument("network", choices=[*EXPORTED, *NETWORKS])
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source.onnx"
        if arguments.network in EXPORTED:
            source = EXPORTED_FOLDER / arguments.network / "model.onnx"
        else:
            save(fill(arguments.network), source)
        quantise(source, arguments.output, arguments.seed)


if __name__ == "__main__":
    sys.path.insert(
        0, str(Path(__file__).parents[2])
    )  # of itself, a script sees its own folder only
    main()
