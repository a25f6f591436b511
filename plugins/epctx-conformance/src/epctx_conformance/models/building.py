"""How small models are put together: a graph that grows node by node, and a model with inputs for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 9
OPEN_LENGTH = 2
"""What an open dimension is filled with where nothing else is said."""


@dataclass(frozen=True)
class SmallModel:
    """A model with what is needed to run it and to judge its results.

    Args:
        name: says what it is; a plain file name.
        proto: complete in itself.
        step: the quantisation step of its outputs, by which results may differ; 0 for none.
    """

    name: str
    proto: onnx.ModelProto
    _: KW_ONLY
    step: float = 0.0

    @cached_property
    def data(self) -> bytes:
        """The serialised model; the same model gives the same bytes."""
        return bytes(self.proto.SerializeToString(deterministic=True))

    def feeds(self, seed: int = 0, *, length: int = OPEN_LENGTH) -> dict[str, np.ndarray]:
        """Return inputs from a seed; inputs that initializers fill are left out.

        Args:
            seed: other seeds give other numbers.
            length: of open dimensions.
        """
        numbers = np.random.default_rng(seed)
        filled = {weight.name for weight in self.proto.graph.initializer}
        return {
            value.name: _random(numbers, value.type.tensor_type, length)
            for value in self.proto.graph.input
            if value.name not in filled
        }


def _random(numbers: np.random.Generator, kind: onnx.TypeProto.Tensor, length: int) -> np.ndarray:
    shape = [d.dim_value if d.HasField("dim_value") else length for d in kind.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if kind.elem_type == TensorProto.STRING:
        return np.full(shape, "text", dtype=object)
    if dtype.kind in "biu":
        return numbers.integers(0, 2, shape).astype(dtype)
    return numbers.standard_normal(shape).astype(dtype)


class Growing:
    """A graph that grows; names come from counting, weights from a seed.

    Args:
        seed: of the weights.
    """

    def __init__(self, seed: int = 0) -> None:
        self._numbers = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: Sequence[int | str], elem_type: int = TensorProto.FLOAT) -> str:
        """Add a graph input; return its name."""
        self.inputs.append(helper.make_tensor_value_info(name, elem_type, shape))
        return name

    def output(self, value: str, shape: Sequence[int | str], elem_type: int = TensorProto.FLOAT) -> None:
        """Make a value a graph output."""
        self.outputs.append(helper.make_tensor_value_info(value, elem_type, shape))

    def node(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node with one output; return its output's name."""
        number = len(self.nodes)
        output = f"v{number}"
        name = f"{op_type.lower()}_{number}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
        return output

    def weight(self, shape: Sequence[int], dtype: np.typing.DTypeLike = np.float32) -> str:
        """Add a weight of random numbers; return its name. Integers lie between -5 and 5, and are not 0."""
        numbers, signs = self._numbers.uniform(0.2, 1.2, shape), self._numbers.choice([-1, 1], shape)
        if np.dtype(dtype).kind in "iu":
            numbers = np.rint(numbers * 4)
        return self.constant((numbers * signs).astype(dtype))

    def constant(self, array: np.typing.ArrayLike) -> str:
        """Add a weight of given numbers; return its name."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def model(self, name: str, *, step: float = 0.0) -> SmallModel:
        """Return the finished model."""
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.weights)
        proto = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="epctx conformance kit",
        )
        return SmallModel(name, proto, step=step)
