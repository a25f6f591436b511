"""An EP of kernels alone: it compiles nothing and saves nothing."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from epctx_core.plugin import (
    ComputeCapability,
    ExecutionProvider,
    KernelDef,
    KernelRegistry,
    hookimpl,
)

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


class KernelProvider(ExecutionProvider):
    name = "KernelExecutionProvider"
    vendor = "epctx tests"

    @hookimpl
    def get_kernel_registry(self):
        return REGISTRY

    @hookimpl
    def get_capability(self, graph, kernels):
        return [
            ComputeCapability([n], fuse=False)
            for n in graph.nodes
            if kernels.lookup(n) is not None
        ]

    @hookimpl
    def compile(self, partitions):
        raise NotImplementedError("kernels only")
