"""Contract between epctx and an Execution Provider; its names are imported on first
use, a container of blobs and kernels from the packages epctx-blobs and epctx-kernels
if they are installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.forwarding import make_forwarders as _make_forwarders

if TYPE_CHECKING:
    from epctx_blobs import *
    from epctx_kernels import *

    from epctx_core.options.choices import *
    from epctx_core.plugin.extensions import *
    from epctx_core.plugin.hookspecs import *
    from epctx_core.plugin.packages import *
    from epctx_core.plugin.provider import *
    from epctx_core.plugin.storage import *
    from epctx_core.plugin.types import *
    from epctx_core.plugin.views import *

_HOME = {
    "epctx_blobs": ("Blobs", "write_blobs"),
    "epctx_core.options.choices": ("WeightlessMode",),
    "epctx_core.plugin.extensions": (
        "BaseEngine",
        "current_options",
        "write_in_place",
    ),
    "epctx_core.plugin.hookspecs": (
        "PLUGIN_API",
        "HookSpecs",
        "hookimpl",
    ),
    "epctx_kernels": (
        "Kernel",
        "KernelDef",
        "KernelLookup",
        "KernelRegistry",
        "OperatorTypes",
    ),
    "epctx_core.plugin.packages": (
        "Engine",
        "OptimizedModel",
        "PreparedModel",
        "RunnableModel",
        "ModelFormat",
        "ProcessIsolation",
    ),
    "epctx_core.plugin.provider": (
        "Cancellation",
        "ExecutionProvider",
        "ModelIdentity",
        "ProviderContext",
        "ProviderOption",
    ),
    "epctx_core.plugin.storage": (
        "CONTAINER_CODES",
        "CORE_ATTRIBUTES",
        "ContextReader",
        "ContextWriter",
        "EPContextNode",
        "Finding",
        "Payload",
        "PayloadView",
        "Severity",
        "Workspace",
    ),
    "epctx_core.plugin.types": (
        "UNKNOWN_TYPE",
        "Availability",
        "BuildInfo",
        "Compatibility",
        "CompiledPartition",
        "ContextNode",
        "EnginePolicy",
        "Extent",
        "HardwareDevice",
        "Purpose",
        "TensorType",
        "ValueInfo",
    ),
    "epctx_core.plugin.views": (
        "ComputeCapability",
        "GraphView",
        "NodeView",
        "Partition",
        "Refusal",
        "TensorView",
        "number_nodes",
        "read_inputs",
        "supported_partitions",
    ),
}
if not TYPE_CHECKING:
    __getattr__, __dir__ = _make_forwarders(__name__, _HOME)
