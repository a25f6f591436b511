"""Runs of a compiled model: from any number of threads, on the caller's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from onnx import TensorProto

from epctx_openvino.native import import_openvino

if TYPE_CHECKING:
    import openvino

    from epctx_core.plugin import ValueInfo

Arrays: TypeAlias = Sequence[np.ndarray]

ELEMENT_TYPES: dict[int, str] = {
    TensorProto.FLOAT: "f32",
    TensorProto.FLOAT16: "f16",
    TensorProto.BFLOAT16: "bf16",
    TensorProto.DOUBLE: "f64",
    TensorProto.INT8: "i8",
    TensorProto.INT16: "i16",
    TensorProto.INT32: "i32",
    TensorProto.INT64: "i64",
    TensorProto.UINT8: "u8",
    TensorProto.UINT16: "u16",
    TensorProto.UINT32: "u32",
    TensorProto.UINT64: "u64",
    TensorProto.BOOL: "boolean",
}
"""OpenVINO's names of the types that a partition's inputs and outputs may have."""


class _Port(NamedTuple):
    """An input or output of a compiled model.

    Attributes:
        place: its index in the compiled model.
        element_type: OpenVINO's type.
        dtype: numpy's.
        shape: None where a dimension is open.
        rank: the number of dimensions.
    """

    place: int
    element_type: Any
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None
    rank: int


class _Request(NamedTuple):
    """A request with the tensors that it was made with, which replace the caller's
    after each run.
    """

    native: openvino.InferRequest
    inputs: list[openvino.Tensor]
    outputs: list[openvino.Tensor]


class RunnableModel:
    """A compiled model behind the inputs and outputs of a partition, in their order.

    Each run takes an idle request or makes one: there are as many as runs have been in
    progress at once. OpenVINO reads inputs from the caller's arrays and writes results
    into the caller's; between runs no request refers to them.

    Args:
        model: the compiled model.
        inputs: of the partition or the EPContext node.
        outputs: of the same.
        keep: memory that the model reads and does not own, such as weights or the
            payload.

    Raises:
        ValueError: the model has other inputs or outputs.
    """

    def __init__(
        self,
        model: openvino.CompiledModel,
        inputs: Sequence[ValueInfo],
        outputs: Sequence[ValueInfo],
        keep: object,
    ) -> None:
        self._tensor = import_openvino().Tensor
        self._model: openvino.CompiledModel | None = model
        self._keep: object = keep
        self._inputs = _match_ports(model.inputs, inputs, "inputs")
        self._outputs = [
            port for port in _match_ports(model.outputs, outputs, "outputs") if port
        ]
        if len(self._outputs) != len(outputs):
            raise ValueError(
                f"it has {len(self._outputs)} outputs, and the node {len(outputs)}"
            )
        self._passed = self._find_passed(model)
        self._idle: list[_Request] = []

    def run(self, inputs: Arrays, outputs: Arrays | None = None) -> Arrays:
        """Run the model.

        Args:
            inputs: C-contiguous arrays in the partition's order.
            outputs: arrays that the results are written into; None for new ones.

        Raises:
            RuntimeError: OpenVINO fails, or a result has another shape than its array.
        """
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._make_request()
        native = request.native
        results = []
        try:
            for port, array in zip(self._inputs, inputs, strict=True):
                if port is not None:
                    native.set_input_tensor(port.place, self._wrap(port, array))
            for position, port in enumerate(self._outputs):
                target = (
                    self._make_array(port) if outputs is None else outputs[position]
                )
                made = self._wrap(port, target)
                if port.place not in self._passed:
                    native.set_output_tensor(port.place, made)
                results.append((made, target))
            native.infer(share_inputs=True, share_outputs=True)
        finally:
            for index, tensor in enumerate(request.inputs):
                native.set_input_tensor(index, tensor)
            for index, tensor in enumerate(request.outputs):
                if index not in self._passed:
                    native.set_output_tensor(index, tensor)
        self._idle.append(request)
        return [
            self._unwrap(port, *result)
            if port.place not in self._passed
            else _copy(inputs[self._passed[port.place]], result[1])
            for port, result in zip(self._outputs, results, strict=True)
        ]

    def close(self) -> None:
        """Let go of the model and of what it reads."""
        self._idle.clear()
        self._model = self._keep = None

    def _make_request(self) -> _Request:
        if self._model is None:
            raise RuntimeError("the model was closed")
        native = self._model.create_infer_request()
        return _Request(
            native,
            [
                native.get_input_tensor(index)
                for index in range(len(self._model.inputs))
            ],
            [native.get_output_tensor(index) for index in range(len(self._outputs))],
        )

    def _find_passed(self, model: openvino.CompiledModel) -> dict[int, int]:
        """Return the outputs that are inputs, such as behind a Dropout that does
        nothing, by their indices.

        Such an output is no tensor of its own in OpenVINO: setting it would set the
        input.
        """
        inputs = {
            name: position
            for position, port in enumerate(self._inputs)
            if port is not None
            for name in model.inputs[port.place].get_names()
        }
        inputs_of_outputs = {
            place: [inputs[name] for name in output.get_names() if name in inputs]
            for place, output in enumerate(model.outputs)
        }
        return {
            place: positions[0]
            for place, positions in inputs_of_outputs.items()
            if positions
        }

    @staticmethod
    def _make_array(port: _Port) -> np.ndarray | None:
        return None if port.shape is None else np.empty(port.shape, port.dtype)

    def _wrap(self, port: _Port, array: np.ndarray | None) -> openvino.Tensor:
        """Return a tensor over an array, or one that OpenVINO gives memory in the
        run.
        """
        if array is None:
            return self._tensor(port.element_type, [0] * port.rank)
        # As plain numbers of the same size: OpenVINO does not know numpy's bfloat16.
        return self._tensor(
            array.view(f"u{array.itemsize}"), array.shape, port.element_type
        )

    @staticmethod
    def _unwrap(
        port: _Port, made: openvino.Tensor, array: np.ndarray | None
    ) -> np.ndarray:
        if array is None:
            data: np.ndarray = made.data
            return data.view(port.dtype)
        # For an open dimension OpenVINO writes a smaller result into the first bytes of
        # a larger array.
        if port.shape is None and tuple(made.shape) != array.shape:
            raise RuntimeError(
                f"a result has the shape {tuple(made.shape)}, and its array "
                f"{array.shape}"
            )
        return array


def _copy(source: np.ndarray, array: np.ndarray | None) -> np.ndarray:
    if array is None:
        return source.copy()
    array[...] = source
    return array


def _match_ports(
    ports: Sequence[Any], values: Sequence[ValueInfo], side: str
) -> list[_Port | None]:
    """Return the port of each value: by position, or by name where there are fewer
    ports or others come first.

    None for a value that the model does not need: OpenVINO drops inputs that make no
    difference, such as empty axes.
    """
    names = [port.get_names() for port in ports]
    order: list[int | None] = list(range(len(ports)))
    if len(ports) != len(values) or any(
        v.name not in names[i] for i, v in enumerate(values)
    ):
        positions = {
            name: index for index, port_names in enumerate(names) for name in port_names
        }
        by_name = [positions.get(value.name) for value in values]
        if sorted(index for index in by_name if index is not None) == order:
            order = by_name
    if len(order) != len(values):
        raise ValueError(f"it has {len(ports)} {side}, and the node {len(values)}")
    return [
        None if index is None else _describe(index, ports[index], value)
        for index, value in zip(order, values, strict=True)
    ]


def _describe(index: int, port: Any, value: ValueInfo) -> _Port:
    expected = ELEMENT_TYPES.get(value.elem_type or 0)
    port_type = port.element_type.get_type_name()
    if expected != port_type:
        raise ValueError(
            f"{value.name!r} has the type {port_type} in it, and {expected} in the node"
        )
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        raise ValueError(f"{value.name!r} has no known rank in it")
    lengths = tuple(shape.to_shape()) if shape.is_static else None
    return _Port(index, port.element_type, np.dtype(value.dtype), lengths, len(shape))
