"""ONNX's messages as EPs get them without `import onnx`."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from epctx_core.plugin import protos

SAME_CLASSES = """
import pickle, sys
if sys.argv[1] == "onnx first":
    import onnx
from epctx_core.plugin import protos
if sys.argv[1] == "onnx later":
    assert "onnx" not in sys.modules
    model = protos.ModelProto(ir_version=8)
    import onnx
else:
    model = protos.ModelProto(ir_version=8)

for name in protos.__all__:
    if name.endswith("Proto"):
        assert getattr(protos, name) is getattr(onnx, name), name
assert isinstance(model, onnx.ModelProto)
copy = pickle.loads(pickle.dumps(model))
assert type(copy) is onnx.ModelProto and copy == model
onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))
"""


@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("order", ["onnx first", "onnx later"])
def test_the_messages_are_those_of_onnx_whichever_is_imported_first(
    order, implementation
):
    done = subprocess.run(
        [sys.executable, "-c", SAME_CLASSES, order],
        capture_output=True,
        text=True,
        env=os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", sorted(TensorProto.DataType.keys()))
def test_an_element_type_is_the_numpy_type_that_onnx_says(name):
    number = TensorProto.DataType.Value(name)
    try:
        expected = helper.tensor_dtype_to_np_dtype(number)
    except KeyError:
        with pytest.raises(KeyError):
            protos.tensor_dtype_to_np_dtype(number)
    else:
        assert protos.tensor_dtype_to_np_dtype(number) == expected
        assert isinstance(protos.tensor_dtype_to_np_dtype(number), np.dtype)


@pytest.mark.parametrize("shape", [[], [0], [2, "batch", None], (3, 4)])
def test_a_declaration_is_the_one_that_onnx_makes(shape):
    assert protos.make_tensor_value_info(
        "x", TensorProto.FLOAT16, shape
    ) == helper.make_tensor_value_info("x", TensorProto.FLOAT16, shape)
    assert protos.make_tensor_type_proto(
        TensorProto.INT64, shape
    ) == helper.make_tensor_type_proto(TensorProto.INT64, shape)


def test_a_dimension_that_is_neither_length_nor_name_is_refused():
    with pytest.raises(TypeError):
        protos.make_tensor_type_proto(TensorProto.FLOAT, [1.5])


def test_there_is_nothing_else_of_onnx_in_the_module():
    with pytest.raises(AttributeError, match="helper"):
        _ = protos.helper
    assert protos.TensorProto is onnx.TensorProto
