"""Networks that real vendors' EPs take: exported ones, two of the zoo, and two made
from a seed. Knows nothing of epctx.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from support.folders import CAMPAIGNS, MODELS
from support.networks.fill import fill
from support.networks.quantise import quantise
from zoo.exporters.saving import read_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

EXPORTED = ("bert", "resnet")
OF_THE_ZOO = {"attention": "torch_attention_fixed", "quantised": "quantised_qdq_fixed"}
"""By name, a model of the zoo whose shapes are fixed, as an NPU needs them."""
HIDDEN, STEPS, WIDTH = 32, 6, 32


class Network(NamedTuple):
    """A model as bytes, and arrays by input name."""

    model: bytes
    inputs: dict[str, np.ndarray]


@cache
def network(name: str) -> Network:
    """Return one of `NETWORKS` or `MORE_NETWORKS`."""
    if name in EXPORTED:
        folder = MODELS / name
        with np.load(folder / "input.npz") as stored:
            return Network((folder / "model.onnx").read_bytes(), dict(stored))
    if name in {*FILLED, *QUANTISED}:
        model = fill(name.removesuffix(INT8))
        generator = np.random.Generator(np.random.PCG64(0))
        shapes = {
            v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in model.graph.input
        }
        inputs = {
            name: generator.standard_normal(shape, np.float32)
            for name, shape in shapes.items()
        }
        if name in QUANTISED:
            return Network(_quantised(model.SerializeToString()), inputs)
        return Network(model.SerializeToString(), inputs)
    if name in {*OF_THE_ZOO, *MORE_OF_THE_ZOO}:
        path = CAMPAIGNS / "zoo" / "models" / f"{OF_THE_ZOO.get(name, name)}.onnx"
        return Network(path.read_bytes(), read_inputs(path.with_suffix(".npz")))
    return SEEDED[name](np.random.Generator(np.random.PCG64(12)))


def _lstm(generator: np.random.Generator) -> Network:
    """Return an LSTM over a fixed number of steps: with an open one, QNN refuses the
    whole model.
    """
    shapes = {
        "w": (1, 4 * HIDDEN, WIDTH),
        "r": (1, 4 * HIDDEN, HIDDEN),
        "b": (1, 8 * HIDDEN),
    }
    nodes = [
        helper.make_node(
            "LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=HIDDEN
        )
    ]
    outputs = {"y": [STEPS, 1, 1, HIDDEN], "h": [1, 1, HIDDEN], "c": [1, 1, HIDDEN]}
    return _made(generator, nodes, {"x": [STEPS, 1, WIDTH]}, outputs, shapes)


def _two_parts(generator: np.random.Generator) -> Network:
    """Return a perceptron whose middle, a Softsign, QNN does not take: two partitions
    with a node between them.
    """
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["summed"], name="before"),
        helper.make_node("Relu", ["summed"], ["kept"], name="kept"),
        helper.make_node("Softsign", ["kept"], ["bent"], name="middle"),
        helper.make_node("MatMul", ["bent", "second"], ["y"], name="after"),
    ]
    weights = {"first": (WIDTH, WIDTH), "second": (WIDTH, WIDTH)}
    return _made(generator, nodes, {"x": [4, WIDTH]}, {"y": [4, WIDTH]}, weights)


def _three_parts(generator: np.random.Generator) -> Network:
    """Return matrices that are inverted twice, which neither QNN nor OpenVINO takes:
    three partitions of one binary.
    """
    shape = [2, WIDTH // 2, WIDTH // 2]
    nodes = [
        helper.make_node("Add", ["x", "eye"], ["a0"], name="add_0"),
        helper.make_node(
            "Inverse", ["a0"], ["b0"], name="inverse_0", domain="com.microsoft"
        ),
        helper.make_node("MatMul", ["b0", "w"], ["c1"], name="product_1"),
        helper.make_node("Add", ["c1", "eye"], ["a1"], name="add_1"),
        helper.make_node(
            "Inverse", ["a1"], ["b1"], name="inverse_1", domain="com.microsoft"
        ),
        helper.make_node("MatMul", ["b1", "w"], ["y"], name="product_2"),
    ]
    eye = helper.make_node(
        "Constant",
        [],
        ["eye"],
        value=numpy_helper.from_array(2 * np.eye(shape[1], dtype=np.float32)),
    )
    return _made(
        generator, [eye, *nodes], {"x": shape}, {"y": shape}, {"w": tuple(shape[1:])}
    )


def _islands(generator: np.random.Generator) -> Network:
    """Return convolutions with three Softsigns between them, and a value that goes
    around the first: two ways, behind the convolutions, that QNN does not take.
    """
    nodes = [
        _convolution("x", "w0", "a0"),
        helper.make_node("Relu", ["a0"], ["b0"], name="relu_0"),
        helper.make_node("Softsign", ["b0"], ["c0"], name="island_0"),
        helper.make_node("Add", ["c0", "b0"], ["d0"], name="sum_0"),
        _convolution("d0", "w1", "a1"),
        helper.make_node("Relu", ["a1"], ["b1"], name="relu_1"),
        helper.make_node("MaxPool", ["b1"], ["m1"], kernel_shape=[2, 2], name="pool_1"),
        helper.make_node("Softsign", ["m1"], ["c1"], name="island_1"),
        _convolution("c1", "w2", "a2"),
        helper.make_node("Relu", ["a2"], ["b2"], name="relu_2"),
        helper.make_node("Concat", ["b2", "a2"], ["d2"], axis=1, name="both"),
        _convolution("d2", "w3", "a3"),
        helper.make_node("Mul", ["a3", "a3"], ["b3"], name="square"),
        helper.make_node("Softsign", ["b3"], ["y"], name="island_2"),
    ]
    shapes = {"w0": (4, 4, 3, 3), "w1": (4, 4, 3, 3), "w2": (4, 4, 3, 3)}
    shapes["w3"] = (4, 8, 3, 3)
    # As many channels as rows: no shape tells the layout.
    return _made(generator, nodes, {"x": [1, 4, 4, 4]}, {"y": [1, 4, 3, 3]}, shapes)


def _convolution(x: str, weights: str, y: str) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, weights], [y], pads=[1, 1, 1, 1], name=y)


OPERATORS = (
    "Conv",
    "Conv",
    "Relu",
    "Sigmoid",
    "Softsign",
    "Softsign",
    "Add",
    "Mul",
    "MaxPool",
)
"""Of drawn networks; QNN takes all but Softsign."""


def drawn_network(seed: int) -> Network:
    """Return a network of convolutions, with Softsigns and values that go around them
    anywhere; all values have one shape, in which rows and channels are as many.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    nodes: list[onnx.NodeProto] = []
    weights = {}
    values = ["x"]
    for number in range(int(generator.integers(4, 14))):
        operator = str(generator.choice(OPERATORS))
        source, other = values[-1], str(generator.choice(values))
        attributes = {}
        inputs = [source]
        if operator == "Conv":
            weights[f"w{number}"] = (4, 4, 3, 3)
            inputs = [source, f"w{number}"]
            attributes = {"pads": [1, 1, 1, 1]}
        elif operator in ("Add", "Mul"):
            inputs = [source, other]
        elif operator == "MaxPool":
            attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        name = f"v{number}"
        nodes.append(
            helper.make_node(operator, inputs, [name], name=name, **attributes)
        )
        values.append(name)
    shape = [1, 4, 4, 4]
    read = {name for node in nodes for name in node.input}
    outputs = {name: shape for name in values[1:] if name not in read}
    return _made(generator, nodes, {"x": shape}, outputs, weights)


def _quantised_islands(generator: np.random.Generator) -> Network:
    """Return the QDQ form of `_islands`."""
    source = _islands(generator)
    return source._replace(model=_quantised(source.model))


def _quantised(model: bytes) -> bytes:
    with TemporaryDirectory() as folder:
        paths = Path(folder, "float.onnx"), Path(folder, "quantised.onnx")
        paths[0].write_bytes(model)
        quantise(*paths)
        return paths[1].read_bytes()


SEEDED: dict[str, Callable[[np.random.Generator], Network]] = {
    "lstm": _lstm,
    "two_parts": _two_parts,
    "three_parts": _three_parts,
    "islands": _islands,
    "quantised_islands": _quantised_islands,
}
NETWORKS = (*EXPORTED, *OF_THE_ZOO, *SEEDED)
MORE_OF_THE_ZOO = (
    "onnxscript_branches",
    "paddle_recogniser",
    "quantised_dynamic_convolutions",
    "tensorflow_images_opset15",
    "tensorflow_images_opset9",
    "tensorflow_sequences_opset13",
    "torch_attention",
    "torch_convolutions_fixed",
    "torch_convolutions_opset10",
)
"""Models of the zoo of which Qualcomm's EP takes a part, and that it runs itself."""
FILLED = ("squeezenet", "shufflenet", "resnet50")
INT8 = "_int8"
QUANTISED = tuple(f"{name}{INT8}" for name in FILLED)
"""QDQ forms of them."""
MORE_NETWORKS = (*MORE_OF_THE_ZOO, *FILLED, *QUANTISED)
"""For `make stress`."""


def _made(generator, nodes, inputs, outputs, weights) -> Network:
    def declared(shapes):
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
        ]

    def drawn(shape):
        return (generator.standard_normal(shape) / 5).astype(np.float32)

    tensors = [
        numpy_helper.from_array(drawn(shape), name) for name, shape in weights.items()
    ]
    graph = helper.make_graph(
        nodes, "seeded", declared(inputs), declared(outputs), tensors
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    return Network(
        model.SerializeToString(),
        {name: drawn(shape) for name, shape in inputs.items()},
    )
