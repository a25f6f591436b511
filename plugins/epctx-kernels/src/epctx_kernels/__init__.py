"""Kernels for Execution Providers of epctx that run single nodes: registered by
operator, version and types, matched by ONNX Runtime's rules.
"""

from epctx_kernels.definitions import (
    Kernel,
    KernelDef,
    KernelRegistry,
    OperatorTypes,
)
from epctx_kernels.matching import KernelLookup
from epctx_kernels.provider import KernelProvider
from epctx_kernels.tables import (
    OPERATOR_TYPES,
    dump_operator_types,
    read_operator_types,
)

__all__ = [
    "OPERATOR_TYPES",
    "Kernel",
    "KernelDef",
    "KernelLookup",
    "KernelProvider",
    "KernelRegistry",
    "OperatorTypes",
    "dump_operator_types",
    "read_operator_types",
]
