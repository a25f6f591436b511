"""An EP of kernels alone: it compiles nothing and saves nothing."""

from __future__ import annotations

import epctx_kernels
import numpy as np
from epctx_kernels import KernelDef, KernelRegistry
from onnx import TensorProto

FLOATS = {"T": frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})}
FUNCTIONS = {
    "Add": np.add,
    "Mul": np.multiply,
    "Sub": np.subtract,
    "Tanh": np.tanh,
    "Neg": np.negative,
}


def kernel(function):
    """Return what makes a kernel of a function of arrays."""
    return lambda _node: lambda inputs: [np.asarray(function(*inputs))]


REGISTRY = KernelRegistry(
    [
        KernelDef(
            op_type=op_type,
            since_version=14 if op_type in {"Add", "Mul", "Sub"} else 13,
            type_constraints=FLOATS,
            create=kernel(function),
        )
        for op_type, function in FUNCTIONS.items()
    ]
)


class KernelProvider(epctx_kernels.KernelProvider):
    name = "KernelExecutionProvider"
    vendor = "epctx tests"

    def get_kernel_registry(self):
        return REGISTRY
