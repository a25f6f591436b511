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
from epctx_onnxruntime.real import onnxruntime
from epctx_onnxruntime.versions import (
    CPU_EP,
    SURE_IR,
    SURE_OPSETS,
    ort_value,
    quiet_options,
)

CPU = "cpu"
"""Device in whose memory sessions take and give values."""


def view_memory(
    address: int, element_type: Any, shape: Sequence[int], owner: object = None
) -> np.ndarray:
    """Return an array over memory.

    Args:
        address: of the first element.
        element_type: an `onnx.TensorProto.DataType`, or a numpy type.
        shape: the lengths.
        owner: lives as long as the array.

    Raises:
        InvalidArgument: the type has less than a byte an element, or no memory.
    """
    try:
        number = (
            element_type
            if isinstance(element_type, int)
            else helper.np_dtype_to_tensor_dtype(np.dtype(element_type))
        )
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(number))
        name = TensorProto.DataType.Name(number).lower()
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"onnxruntime has no element type {element_type!r}.",
            hint="Give a number of onnx.TensorProto.DataType, or a numpy type.",
        ) from error
    if any(length < 0 for length in shape):
        raise InvalidArgument(
            f"memory has no shape {list(shape)}.", hint="Give lengths from 0 on."
        )
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
        if value.device_name() != CPU:
            raise InvalidArgument(
                f"a value is in memory of the device {value.device_name()!r}; sessions "
                "take values in CPU memory.",
                hint="Copy it: value.numpy().",
            )
        if value.element_type() == TensorProto.STRING:
            return value.numpy()
        # `value.numpy()` would not keep the memory of an array that the value is over.
        return view_memory(value.data_ptr(), value.element_type(), value.shape(), value)

    if value.is_tensor_sequence():
        return _read_sequence(value)
    raise InvalidArgument(
        f"a value of type {value.data_type()} cannot be passed to a session.",
        hint="Give what onnxruntime's `run` takes for it: arrays or a list of arrays.",
    )


def to_ort_value(result: Any, kind: str = "") -> onnxruntime.OrtValue:
    """Return a result of a session as a value of onnxruntime, which owns its memory;
    that of the result itself where numpy can hand it on.

    Args:
        result: an array, or a list for a sequence.
        kind: the output's type, such as `seq(tensor(float))`, for an empty list.

    Raises:
        InvalidArgument: onnxruntime has no such value.
    """
    if isinstance(result, np.ndarray) and not result.dtype.hasobject:
        return _make_tensor(result)
    if isinstance(result, np.ndarray):
        text = onnx.numpy_helper.from_array(result)
        return _compute(
            helper.make_node("Constant", [], ["y"], value=text),
            helper.make_tensor_type_proto(TensorProto.STRING, None),
        )
    if isinstance(result, list) and result and isinstance(result[0], Mapping):
        return _make_maps(result)
    if isinstance(result, list):
        return _make_sequence(result, kind)
    raise InvalidArgument(
        f"onnxruntime has no value for a result of type {type(result).__name__}.",
        hint="Use `run`, which returns it as it is.",
    )


def _make_tensor(array: np.ndarray) -> onnxruntime.OrtValue:
    # A value from `ortvalue_from_numpy` borrows the array's memory, so that what its
    # `numpy()` gives would be freed with the value; one from DLPack owns it.
    # onnxruntime 1.31 takes no truth values by DLPack.
    if array.dtype.isbuiltin == 1 and array.dtype.kind != "b" and array.flags.writeable:
        return onnxruntime.OrtValue.from_dlpack(array)
    element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
        list(array.shape), element_type
    )
    view_memory(value.data_ptr(), element_type, array.shape, value)[...] = array
    return value


def _make_sequence(arrays: Sequence[np.ndarray], kind: str) -> onnxruntime.OrtValue:
    values = [to_ort_value(array) for array in arrays]
    element_type = values[0].element_type() if values else _read_element(kind)
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
    kind = helper.make_sequence_type_proto(
        helper.make_tensor_type_proto(_read_element(value.data_type()), None)
    )
    session = _open(helper.make_node("Identity", ["x"], ["y"]), kind, {"x": kind})
    result: list[np.ndarray] = session.run(None, {"x": value})[0]
    return result


def _read_element(kind: str) -> int:
    """Return the element type of a type such as `seq(tensor(float))`; float for another
    one.
    """
    element = kind.partition("seq(tensor(")[2].rstrip(")") or "float"
    return int(TensorProto.DataType.Value(element.upper()))


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
