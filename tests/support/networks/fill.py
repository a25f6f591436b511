"""Turns the light networks of the `onnx` package into filled ones.

Knows ONNX, knows nothing of epctx.

The package ships nine image networks whose weights are `ConstantOfShape` nodes of one
constant, so they answer every input alike. Here each weight becomes a random
initializer, sized so that a signal keeps its strength on the way through: errors in any
layer then show in the output.

    python tests/support/networks/fill.py resnet50 resnet50.onnx --seed 7
    python tests/support/networks/fill.py vgg19 vgg19.onnx --external
"""

from __future__ import annotations

import argparse
import math
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message

NETWORKS = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
LOGIT_DEVIATION = 2.0
"""Wanted standard deviation of what goes into the last Softmax: neither flat nor a
single peak.
"""
RESHAPERS = ("Reshape", "Unsqueeze")
SMALL = 0.02
"""Standard deviation of biases and means; larger ones add up to a pattern that hides
the input.
"""
FEWEST_CHANNELS = 16
WITH_BIAS = 3
WHOLE_IMAGE = 10
"""Number of independent values that the mean over an image counts as."""


def fill(name: str, seed: int = 0) -> onnx.ModelProto:
    """Return the light network `name` with random weights; the same model for the same
    seed.

    Raises:
        ValueError: the onnx package has no light network of this name.
    """
    if name not in NETWORKS:
        message = f"no light network {name!r}; there are {', '.join(NETWORKS)}"
        raise ValueError(message)
    light = (
        Path(onnx.__file__).parent
        / "backend"
        / "test"
        / "data"
        / "light"
        / f"light_{name}.onnx"
    )
    model = onnx.load(light)
    _Filling(model.graph, seed).apply()
    # From IR version 4 on an initializer need not be a graph input.
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def save(model: onnx.ModelProto, path: Path, *, external: bool = False) -> None:
    """Write the model; with `external` its weights go to `<path>.data` beside it."""
    if not external:
        onnx.save(model, path)
        return
    Path(f"{path}.data").unlink(missing_ok=True)  # onnx would append to an older one
    onnx.save(
        model,
        path,
        save_as_external_data=True,
        location=f"{path.name}.data",
        size_threshold=1024,
    )


class _Signal(NamedTuple):
    """Statistics of a value: its mean and two variances, which a pool treats
    differently.
    """

    mean: float
    variance: float
    """Of an element over inputs of the network."""
    pattern: float
    """Of the mean of a channel over the channels: the same for every input."""


class _Filling:
    """One pass over a graph in execution order that draws weights and follows the
    signal's strength.
    """

    def __init__(self, graph: onnx.GraphProto, seed: int) -> None:
        self.graph = graph
        self.seed = seed
        self.given = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer
        }
        self.weights: dict[str, np.ndarray] = {}
        self.signals = {
            v.name: _Signal(0.0, 1.0, 0.0)
            for v in graph.input
            if v.name not in self.given
        }
        self.shapes = {
            node.output[0]: _dimensions(self.given[node.input[0]])
            for node in graph.node
            if node.op_type == "ConstantOfShape"
        }
        self.shapes |= {
            name: array.shape
            for name, array in self.given.items()
            if array.dtype == np.float32
        }
        self.origin = self._origins()
        self.last_layer: tuple[str, ...] = ()

    def apply(self) -> None:
        """Replace the graph's weights in place; nodes other than ConstantOfShape stay
        as they are.
        """
        for node in self.graph.node:
            if node.output[0] not in self.origin:
                self._visit(node)
        self._scale_logits()
        kept = [
            _copy(node) for node in self.graph.node if node.op_type != "ConstantOfShape"
        ]
        inputs = [
            _copy(value) for value in self.graph.input if value.name not in self.given
        ]
        used = {name for node in kept for name in node.input}
        for field in ("node", "initializer", "input"):
            self.graph.ClearField(field)
        self.graph.node.extend(kept)
        self.graph.input.extend(inputs)
        for name, array in (self.given | self.weights).items():
            if name in used:
                tensor = self.graph.initializer.add(
                    name=name, dims=array.shape, raw_data=array.tobytes()
                )
                tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)

    def _origins(self) -> dict[str, str]:
        """Map what merely reshapes a weight to that weight, and note the new shape
        where a layer needs it.
        """
        origin: dict[str, str] = {name: name for name in self.shapes}
        for node in self.graph.node:
            if node.op_type in RESHAPERS and node.input[0] in origin:
                origin[node.output[0]] = origin[node.input[0]]
                if node.op_type == "Reshape":
                    self.shapes[node.output[0]] = _dimensions(self.given[node.input[1]])
        return origin

    def _generator(self, weight: str) -> np.random.Generator:
        # One stream for each weight: the values do not depend on the order of the
        # nodes.
        return np.random.Generator(
            np.random.PCG64([self.seed, zlib.crc32(weight.encode())])
        )

    def _visit(self, node: onnx.NodeProto) -> None:
        data = [self.signals[name] for name in node.input if name in self.signals]
        result = data[0]
        if node.op_type in ("Conv", "Gemm"):
            result = self._layer(node, data[0])
        elif node.op_type == "BatchNormalization":
            self._batch_norm(node)
            mean, variance, pattern = data[0]
            result = _Signal(mean, variance, pattern + 2 * SMALL**2)
        elif node.op_type in ("Mul", "Add"):
            weight = next(
                self.origin[name] for name in node.input if name in self.origin
            )
            self._draw(weight, centre=float(node.op_type == "Mul"))
        else:
            result = _signal_after(node, data)
        self.signals |= dict.fromkeys(node.output, result)

    def _layer(self, node: onnx.NodeProto, signal: _Signal) -> _Signal:
        """Draw the weight and bias of a Conv or Gemm so that its result has variances
        that add up to 1.
        """
        weight, shape = self.origin[node.input[1]], self.shapes[node.input[1]]
        array = self._generator(weight).standard_normal(shape, dtype=np.float32)
        # What enters is never negative after a ReLU, and its mean is the same for every
        # input. Filters that sum to zero leave that common part behind, or it would
        # drown what tells two inputs apart. Summing to zero over channels alone also
        # holds where a filter hangs over the border of the image.
        total = signal.variance + signal.pattern
        filter_axes = tuple(range(1, len(shape)))
        array -= array.mean(
            axis=1 if shape[1] >= FEWEST_CHANNELS else filter_axes, keepdims=True
        )
        norm = np.sqrt(np.square(array).sum(axis=filter_axes, keepdims=True))
        array /= norm * np.float32(math.sqrt(total))
        self.weights[weight] = array.reshape(self.shapes[weight])
        self.last_layer = (weight,)
        if len(node.input) == WITH_BIAS:
            bias = self.origin[node.input[2]]
            self._draw(bias, centre=0.0)
            self.last_layer = (weight, bias)
        return _Signal(0.0, signal.variance / total, signal.pattern / total + SMALL**2)

    def _batch_norm(self, node: onnx.NodeProto) -> None:
        scale, bias, mean, variance = (self.origin[name] for name in node.input[1:])
        self._draw(scale, centre=1.0)
        self._draw(bias, centre=0.0)
        self._draw(mean, centre=0.0)
        drawn = self._generator(variance).uniform(0.5, 1.5, self.shapes[variance])
        self.weights[variance] = drawn.astype(np.float32)
        # Channels of different strength would leave a ReLU with different means: again
        # a pattern.
        self.weights[scale] *= np.sqrt(self.weights[variance])

    def _draw(self, weight: str, *, centre: float) -> None:
        normal = self._generator(weight).standard_normal(
            self.shapes[weight], dtype=np.float32
        )
        self.weights[weight] = normal * np.float32(SMALL) + np.float32(centre)

    def _scale_logits(self) -> None:
        """Give the values that enter the last Softmax their expected spread; ReLU and
        pools scale along.
        """
        last = self.graph.node[-1]
        logits = self.signals[
            last.input[0] if last.op_type == "Softmax" else last.output[0]
        ]
        for weight in self.last_layer:
            self.weights[weight] *= np.float32(
                LOGIT_DEVIATION / math.sqrt(logits.variance + logits.pattern)
            )


def _dimensions(shape: np.ndarray) -> tuple[int, ...]:
    return tuple(int(n) for n in shape)


def _copy(message: Message) -> Message:
    # What a field holds dies when the field is cleared.
    twin = type(message)()
    twin.CopyFrom(message)
    return twin


def _signal_after(node: onnx.NodeProto, data: Sequence[_Signal]) -> _Signal:
    """Return what a node without weights leaves of normally distributed signals."""
    mean, variance, pattern = data[0]
    if node.op_type == "Relu":
        return _rectified(data[0])
    if node.op_type == "Sum":
        return _Signal(*(sum(parts) for parts in zip(*data, strict=True)))
    if node.op_type == "Concat":
        mean, variance, pattern = (
            sum(parts) / len(data) for parts in zip(*data, strict=True)
        )
        return _Signal(
            mean,
            variance,
            pattern + sum((s.mean - mean) ** 2 for s in data) / len(data),
        )
    if node.op_type == "MaxPool":
        return _Signal(mean + math.sqrt(variance), variance, pattern)
    if node.op_type == "AveragePool":
        # Neighbours in an image resemble each other: a mean of k*k counts as one of k.
        window = next(
            attribute.ints
            for attribute in node.attribute
            if attribute.name == "kernel_shape"
        )
        return _Signal(mean, variance / math.sqrt(math.prod(window)), pattern)
    return (
        _Signal(mean, variance / WHOLE_IMAGE, pattern)
        if node.op_type == "GlobalAveragePool"
        else data[0]
    )


def _rectified(signal: _Signal) -> _Signal:
    """Return what max(x, 0) leaves."""
    deviation = math.sqrt(signal.variance)
    ratio = signal.mean / deviation
    positive = 0.5 * (1 + math.erf(ratio / math.sqrt(2)))
    density = math.exp(-0.5 * ratio * ratio) / math.sqrt(2 * math.pi)
    mean = signal.mean * positive + deviation * density
    square = (
        signal.mean**2 + signal.variance
    ) * positive + signal.mean * deviation * density
    return _Signal(mean, square - mean * mean, signal.pattern * positive * positive)


def main() -> None:
    """Write one filled network."""
    parser = argparse.ArgumentParser(
        description="Give a light network of the onnx package random weights."
    )
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--external", action="store_true", help="store the weights in OUTPUT.data"
    )
    arguments = parser.parse_args()
    save(
        fill(arguments.network, arguments.seed),
        arguments.output,
        external=arguments.external,
    )


if __name__ == "__main__":
    main()
