"""Small ONNX models, and what a folder holds. Knows nothing of epctx."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SHAPE = (2, 3)
OPSET = 18
IR_VERSION = 8


def chain(operators: Sequence[str], *, seed: int = 0) -> onnx.ModelProto:
    """Return `y = operators(x)`; the second operand of those with two is a weight drawn
    from the seed.
    """
    generator = np.random.default_rng(seed)
    nodes, weights, value = [], [], "x"
    for number, operator in enumerate(operators):
        inputs, output = [value], "y" if number == len(operators) - 1 else f"v{number}"
        if operator in {"Add", "Mul", "Sub"}:
            array = generator.standard_normal(SHAPE, dtype=np.float32)
            weights.append(numpy_helper.from_array(array, f"w{number}"))
            inputs.append(f"w{number}")
        nodes.append(helper.make_node(operator, inputs, [output], name=f"n{number}"))
        value = output
    return finished(nodes, [tensor("x")], [tensor("y")], weights)


def tensor(
    name: str, kind: int = TensorProto.FLOAT, shape: Sequence[int | str] = SHAPE
) -> onnx.ValueInfoProto:
    """Return a value's declaration."""
    return helper.make_tensor_value_info(name, kind, shape)


def finished(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[TensorProto] = (),
) -> onnx.ModelProto:
    """Return a model of these parts."""
    graph = helper.make_graph(nodes, "small", inputs, outputs, weights)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="small",
    )


def saved(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model; return its path."""
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def example(seed: int = 0, shape: Sequence[int] = SHAPE) -> np.ndarray:
    """Return an input."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return everything below a folder, hidden files included: name to content, empty
    for folders and links.
    """
    return {
        str(path.relative_to(folder)): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else b""
        for path in sorted(folder.rglob("*"))
    }
