"""ONNX's messages without the rest of onnx.

`import onnx` brings schemas, a checker, text and JSON formats, and `ml_dtypes`, and
takes as long as numpy; a load needs none of them. The messages are defined in a module
that onnx's build generates, which is executed here by itself. Protobuf has one class
for each message of a process, so these are the classes that `import onnx` finds, before
or afterwards, and `isinstance` and pickle hold.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import suppress
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from onnx import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        SparseTensorProto,
        TensorProto,
        TensorShapeProto,
        TypeProto,
        ValueInfoProto,
    )


__all__ = [
    "ELEMENT_TYPES",
    "AttributeProto",
    "FunctionProto",
    "GraphProto",
    "ModelProto",
    "NodeProto",
    "SparseTensorProto",
    "TensorProto",
    "TensorShapeProto",
    "TypeProto",
    "ValueInfoProto",
    "make_tensor_type_proto",
    "make_tensor_value_info",
    "tensor_dtype_to_np_dtype",
]


def _find_messages() -> ModuleType:
    """Return a module that has the message classes: onnx itself where it is imported,
    or where its modules are no files.
    """
    spec = None if "onnx" in sys.modules else importlib.util.find_spec("onnx")
    if spec is not None and spec.origin is not None:
        generated = Path(spec.origin).with_name("onnx_ml_pb2.py")
        module = ModuleType(f"{__name__}_onnx")
        with suppress(OSError):
            SourceFileLoader(module.__name__, str(generated)).exec_module(module)
            return module

    import onnx

    return onnx


_messages = _find_messages()
ELEMENT_TYPES: Final[Mapping[int, str]] = {
    number: name.lower() for name, number in _messages.TensorProto.DataType.items()
}
"""The element types of ONNX, and 0 for one that is left open, with their names in lower
case.
"""
_NUMPY_NAMES: Final = {"float": "float32", "string": "object"}
"""The element types that numpy has by another name."""


def __getattr__(name: str) -> Any:
    if name.endswith("Proto"):
        return getattr(_messages, name)
    raise AttributeError(name)


@cache
def tensor_dtype_to_np_dtype(elem_type: int) -> np.dtype[Any]:
    """Return the numpy or ml_dtypes type of an element; as `onnx.helper` does.

    Args:
        elem_type: an `onnx.TensorProto.DataType`.

    Raises:
        KeyError: ONNX has no such type.
    """
    import numpy as np

    name = ELEMENT_TYPES[elem_type]
    scalar = np.sctypeDict.get(_NUMPY_NAMES.get(name, name))
    if scalar is not None:
        return np.dtype(scalar)

    from onnx import helper

    return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))


def make_tensor_type_proto(
    elem_type: int, shape: Sequence[int | str | None]
) -> TypeProto:
    """Return the type of a dense tensor; as `onnx.helper` does.

    Args:
        elem_type: an `onnx.TensorProto.DataType`.
        shape: for each dimension its length, its symbolic name, or None.

    Raises:
        TypeError: a dimension is none of these.
    """
    made: TypeProto = _messages.TypeProto()
    made.tensor_type.elem_type = elem_type
    # A scalar has a shape, too.
    made.tensor_type.shape.SetInParent()
    for dimension in shape:
        dim = made.tensor_type.shape.dim.add()
        if isinstance(dimension, int):
            dim.dim_value = dimension
        elif dimension is not None:
            dim.dim_param = dimension
    return made


def make_tensor_value_info(
    name: str, elem_type: int, shape: Sequence[int | str | None]
) -> ValueInfoProto:
    """Return the declaration of a dense tensor; as `onnx.helper` does."""
    made: ValueInfoProto = _messages.ValueInfoProto(
        name=name, type=make_tensor_type_proto(elem_type, shape)
    )
    return made
