"""The contract between epctx and an Execution Provider: all that an EP author imports."""

from __future__ import annotations

from epctx_core.options import WeightlessMode
from epctx_core.plugin.blobs import Blobs, write_blobs
from epctx_core.plugin.engine import Engine, OptimizedModel, PreparedModel
from epctx_core.plugin.findings import CONTAINER_CODES, Finding, Severity
from epctx_core.plugin.grouping import number_nodes, supported_partitions
from epctx_core.plugin.hookspecs import PLUGIN_API, hookimpl
from epctx_core.plugin.kernels import Kernel, KernelDef, KernelLookup, KernelRegistry, OperatorTypes
from epctx_core.plugin.partition import CompiledPartition, Partition
from epctx_core.plugin.provider import Cancellation, ExecutionProvider, ModelIdentity, ProviderContext
from epctx_core.plugin.schema import ProviderOption
from epctx_core.plugin.storage import ContextReader, ContextWriter, Payload, PayloadView, Workspace
from epctx_core.plugin.types import (
    CORE_ATTRIBUTES,
    Availability,
    BuildInfo,
    Compatibility,
    ComputeCapability,
    ContextNode,
    EPContextNode,
    Purpose,
    Refusal,
)
from epctx_core.plugin.views import (
    UNKNOWN_TYPE,
    Extent,
    GraphView,
    NodeView,
    TensorType,
    TensorView,
    ValueInfo,
)

__all__ = [
    "CONTAINER_CODES",
    "CORE_ATTRIBUTES",
    "PLUGIN_API",
    "UNKNOWN_TYPE",
    "Availability",
    "Blobs",
    "BuildInfo",
    "Cancellation",
    "Compatibility",
    "CompiledPartition",
    "ComputeCapability",
    "ContextNode",
    "ContextReader",
    "ContextWriter",
    "EPContextNode",
    "Engine",
    "ExecutionProvider",
    "Extent",
    "Finding",
    "GraphView",
    "Kernel",
    "KernelDef",
    "KernelLookup",
    "KernelRegistry",
    "ModelIdentity",
    "NodeView",
    "OperatorTypes",
    "OptimizedModel",
    "Partition",
    "Payload",
    "PayloadView",
    "PreparedModel",
    "ProviderContext",
    "ProviderOption",
    "Purpose",
    "Refusal",
    "Severity",
    "TensorType",
    "TensorView",
    "ValueInfo",
    "WeightlessMode",
    "Workspace",
    "hookimpl",
    "number_nodes",
    "supported_partitions",
    "write_blobs",
]
