"""Uses of `OrtValue`, `SparseTensor` and `OrtDevice`."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from onnx import TensorProto
from uses import models
from uses.recording import caught, plain, uses
from uses.sessions import session

X = models.X


def value() -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(X.copy())


@uses("OrtValue", "OrtValue.ortvalue_from_numpy", "OrtValue.numpy")
def from_numpy():
    made = [
        value(),
        ort.OrtValue.ortvalue_from_numpy(X, "cpu", 0),
    ]
    return [[type(each).__name__, plain(each.numpy())] for each in made]


@uses("OrtValue.numpy", case="as an array")
def as_array():
    return plain([np.asarray(value()), np.array(value(), dtype=np.float64)])


@uses("OrtValue.ortvalue_from_numpy", case="wrong uses")
def wrong_values():
    return [
        caught(ort.OrtValue.ortvalue_from_numpy, X, "toaster"),
        caught(ort.OrtValue.ortvalue_from_numpy, [1, 2]),
        caught(ort.OrtValue.ortvalue_from_numpy, np.array(["a"], dtype=object)),
        caught(ort.OrtValue, X),
    ]


@uses("OrtValue.ortvalue_from_shape_and_type")
def from_shape():
    made = [
        ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.int64),
        ort.OrtValue.ortvalue_from_shape_and_type(
            shape=[2], element_type=TensorProto.BFLOAT16, device_type="cpu", device_id=0
        ),
    ]
    return [[each.shape(), each.data_type()] for each in made]


@uses("OrtValue.ortvalue_from_numpy_with_onnx_type", "OrtValue.element_type")
def with_onnx_type():
    bits = np.array([0x3F80, 0x4000], np.uint16)
    made = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    return [made.element_type(), made.data_type(), value().element_type()]


@uses("OrtValue.shape", "OrtValue.data_type", "OrtValue.device_name")
def description():
    return [value().shape(), value().data_type(), value().device_name()]


@uses("OrtValue.data_ptr")
def address():
    given = X.copy()
    made = ort.OrtValue.ortvalue_from_numpy(given)
    return made.data_ptr() == given.ctypes.data


@uses("OrtValue.tensor_size_in_bytes", "OrtValue.has_value")
def size():
    return [value().tensor_size_in_bytes(), value().has_value()]


@uses("OrtValue.is_tensor", "OrtValue.is_sparse_tensor", "OrtValue.is_tensor_sequence")
def kinds():
    x = ort.OrtValue.ortvalue_from_numpy(X[:, :3])
    (rows,) = session(models.splits()).run_with_ort_values(None, {"x": x})
    made = [value(), rows, ort.OrtValue.ort_value_from_sparse_tensor(coo())]
    return [
        [each.is_tensor(), each.is_sparse_tensor(), each.is_tensor_sequence()]
        for each in made
    ]


@uses("OrtValue.update_inplace")
def updated():
    made = value()
    made.update_inplace(np.ones((2, 4), np.float32))
    first = made.numpy().copy()
    made.update_inplace(value())
    return [
        plain(first),
        plain(made.numpy()),
        caught(made.update_inplace, [1, 2]),
        caught(made.update_inplace, np.ones(3, np.float32)),
    ]


@uses("OrtValue.from_dlpack")
def dlpack():
    made = ort.OrtValue.from_dlpack(X.copy())
    back = np.from_dlpack(made)
    return [made.data_type(), plain(made.numpy()), plain(back)]


@uses("copy_tensors")
def copied():
    source, target = value(), ort.OrtValue.ortvalue_from_numpy(np.zeros_like(X))
    # There is a copy between devices alone.
    return [
        caught(ort.copy_tensors, [source], [target]),
        caught(ort.copy_tensors, src=[source], dst=[target], stream=None),
    ]


def cpu() -> ort.OrtDevice:
    return ort.OrtDevice.make("cpu", 0)


def coo() -> ort.SparseTensor:
    return ort.SparseTensor.sparse_coo_from_numpy(
        np.array([3, 3], np.int64),
        np.array([1, 2, 3], np.float32),
        np.array([[0, 0], [1, 1], [2, 2]], np.int64),
        cpu(),
    )


def csr() -> ort.SparseTensor:
    return ort.SparseTensor.sparse_csr_from_numpy(
        np.array([3, 3], np.int64),
        np.array([1, 2, 3], np.float32),
        np.array([0, 1, 2], np.int64),
        np.array([0, 1, 2, 3], np.int64),
        cpu(),
    )


@uses(
    "SparseTensor",
    "SparseTensor.sparse_coo_from_numpy",
    "SparseTensor.as_coo_view",
    "SparseTensor.values",
    "SparseTensor.dense_shape",
    "SparseTensor.data_type",
    "SparseTensor.device_name",
    "SparseTensor.format",
)
def sparse_by_coordinates():
    made = coo()
    return plain(
        [
            type(made).__name__,
            made.values(),
            made.as_coo_view().indices(),
            made.dense_shape(),
            made.data_type(),
            made.device_name(),
            made.format(),
        ]
    )


@uses("SparseTensor.sparse_csr_from_numpy", "SparseTensor.as_csrc_view")
def sparse_by_rows():
    view = csr().as_csrc_view()
    return plain([view.inner(), view.outer(), csr().format()])


@uses("SparseTensor.as_blocksparse_view", "SparseTensor.to_cuda")
def sparse_otherwise():
    return [
        caught(coo().as_blocksparse_view),
        caught(coo().to_cuda, cpu()),
        caught(coo().as_csrc_view),
    ]


@uses("OrtValue.ort_value_from_sparse_tensor", "OrtValue.as_sparse_tensor")
def sparse_value():
    made = ort.OrtValue.ort_value_from_sparse_tensor(coo())
    back = made.as_sparse_tensor()
    return [made.data_type(), made.shape(), plain(back.values())]


@uses("SparseTensor", case="as an input")
def sparse_input():
    b = np.arange(6, dtype=np.float32).reshape(3, 2)
    opened = session(models.sparse())
    given = ort.OrtValue.ort_value_from_sparse_tensor(coo())
    (y,) = opened.run_with_ort_values(
        ["y"], {"a": given, "b": ort.OrtValue.ortvalue_from_numpy(b)}
    )
    return plain(y.numpy())


@uses(
    "OrtDevice",
    "OrtDevice.make",
    "OrtDevice.device_id",
    "OrtDevice.device_type",
    "OrtDevice.device_mem_type",
    "OrtDevice.device_vendor_id",
)
def devices_of_values():
    made = [
        cpu(),
        ort.OrtDevice.make("cuda", 1),
        ort.OrtDevice.make("gpu", 0, ort.OrtDeviceVendorId.NVIDIA),
        ort.OrtDevice.make("npu", 0, 0x5143),
    ]
    return [
        [
            each.device_id(),
            each.device_type(),
            each.device_mem_type(),
            each.device_vendor_id(),
        ]
        for each in made
    ] + [caught(ort.OrtDevice.make, "toaster", 0)]
