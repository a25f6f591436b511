"""Values of onnxruntime (`OrtValue`) as what sessions of epctx take and give: arrays,
and lists for sequences.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from epctx_core.errors import InvalidArgument
from epctx_onnxruntime.engine import ort_value
from epctx_onnxruntime.real import onnxruntime
from epctx_onnxruntime.versions import CPU_EP, SURE_IR, SURE_OPSETS, quiet_options

_CPU = "cpu"


def view_memory(
    address: int, element_type: int, shape: Sequence[int], owner: object = None
) -> np.ndarray:
    """Return an array over memory.

    Args:
        address: of the first element.
        element_type: an `onnx.TensorProto.DataType`.
        shape: the lengths.
        owner: lives as long as the array.

    Raises:
        InvalidArgument: the type has less than a byte an element, or no memory.
    """
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(element_type))
    name = TensorProto.DataType.Name(element_type).lower()
    if dtype.hasobject or name.endswith(("int4", "int2", "float4e2m1")):
        raise InvalidArgument(
            f"a value of type tensor({name}) cannot be used in place: its elements "
            "have no addresses.",
            hint="Give an array.",
        )
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * size).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]
    array: np.ndarray = np.frombuffer(memory, dtype)  # type: ignore[call-overload]
    return array.reshape(shape)


def to_array(value: Any) -> Any:
    """Return a value of onnxruntime as a session takes it: an array over its memory;
    for text a copy; a list for a sequence. Anything else is returned as it is.

    Raises:
        InvalidArgument: it is in memory of a device, or of a type that is passed to no
            session.
    """
    if not isinstance(value, onnxruntime.OrtValue):
        return value
    if value.is_tensor():
        if value.device_name() != _CPU:
            raise InvalidArgument(
                f"a value is in memory of the device {value.device_name()!r}; sessions "
                "take values in CPU memory.",
                hint="Copy it: value.numpy().",
            )
        element_type = value.element_type()
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(element_type))
        if dtype.isbuiltin == 1:
            return value.numpy()
        return view_memory(value.data_ptr(), element_type, value.shape(), value)

    if value.is_tensor_sequence():
        return _read_sequence(value)
    raise InvalidArgument(
        f"a value of type {value.data_type()} cannot be passed to a session.",
        hint="Give what onnxruntime's `run` takes for it: arrays or a list of arrays.",
    )


def to_ort_value(result: Any) -> onnxruntime.OrtValue:
    """Return a result of a session as a value of onnxruntime, over the same memory
    where it is an array of numbers.

    Raises:
        InvalidArgument: onnxruntime has no such value.
    """
    if isinstance(result, np.ndarray) and not result.dtype.hasobject:
        return ort_value(result)
    if isinstance(result, np.ndarray):
        text = onnx.numpy_helper.from_array(result)
        return _compute(
            helper.make_node("Constant", [], ["y"], value=text),
            helper.make_tensor_type_proto(TensorProto.STRING, None),
        )
    if isinstance(result, list) and result and isinstance(result[0], Mapping):
        return _make_maps(result)
    if isinstance(result, list):
        return _make_sequence(result)
    raise InvalidArgument(
        f"a result of type {type(result).__name__} is no value of onnxruntime.",
        hint="Use `run`, which returns it as it is.",
    )


def _make_sequence(arrays: Sequence[np.ndarray]) -> onnxruntime.OrtValue:
    values = [to_ort_value(array) for array in arrays]
    element_type = values[0].element_type() if values else TensorProto.FLOAT
    names = [f"x{index}" for index in range(len(values))]
    tensor = helper.make_tensor_type_proto(element_type, None)
    node = (
        helper.make_node("SequenceConstruct", names, ["y"])
        if names
        else helper.make_node("SequenceEmpty", [], ["y"], dtype=element_type)
    )
    return _compute(
        node,
        helper.make_sequence_type_proto(tensor),
        {name: (value, tensor) for name, value in zip(names, values, strict=True)},
    )


def _make_maps(maps: Sequence[Mapping[Any, float]]) -> onnxruntime.OrtValue:
    """Return a sequence of maps with equal keys, as ZipMap makes them, from their
    values.
    """
    keys = list(maps[0])
    is_text = isinstance(keys[0], str)
    rows = np.array([[row[key] for key in keys] for row in maps], np.float32)
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml")
    labels = "classlabels_strings" if is_text else "classlabels_int64s"
    node.attribute.append(helper.make_attribute(labels, keys))
    kind = helper.make_sequence_type_proto(
        helper.make_map_type_proto(
            TensorProto.STRING if is_text else TensorProto.INT64,
            helper.make_tensor_type_proto(TensorProto.FLOAT, []),
        )
    )
    return _compute(node, kind, {"x": (ort_value(rows), tensor)})


def _read_sequence(value: onnxruntime.OrtValue) -> list[np.ndarray]:
    """Return the elements of a sequence by onnxruntime's `run`, which alone gives
    them.
    """
    element = value.data_type().partition("seq(tensor(")[2].rstrip(")")
    kind = helper.make_sequence_type_proto(
        helper.make_tensor_type_proto(TensorProto.DataType.Value(element.upper()), None)
    )
    session = _open(helper.make_node("Identity", ["x"], ["y"]), kind, {"x": kind})
    result: list[np.ndarray] = session.run(None, {"x": value})[0]
    return result


def _compute(
    node: onnx.NodeProto,
    kind: onnx.TypeProto,
    inputs: Mapping[str, tuple[onnxruntime.OrtValue, onnx.TypeProto]] | None = None,
) -> onnxruntime.OrtValue:
    """Return what one operator makes: values of these types have no constructor."""
    inputs = inputs or {}
    session = _open(node, kind, {name: given for name, (_, given) in inputs.items()})
    values = {name: value for name, (value, _) in inputs.items()}
    return session.run_with_ort_values(["y"], values)[0]


def _open(
    node: onnx.NodeProto, kind: onnx.TypeProto, inputs: Mapping[str, onnx.TypeProto]
) -> onnxruntime.InferenceSession:
    graph = helper.make_graph(
        [node],
        "value",
        [helper.make_value_info(name, given) for name, given in inputs.items()],
        [helper.make_value_info("y", kind)],
    )
    model = helper.make_model(
        graph,
        ir_version=SURE_IR,
        opset_imports=[
            helper.make_opsetid(*item)
            for item in SURE_OPSETS.items()
            if item[0] != "ai.onnx"
        ],
    )
    return onnxruntime.InferenceSession(
        model.SerializeToString(), quiet_options(), providers=[CPU_EP]
    )
