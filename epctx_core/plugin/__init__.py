"""The contract between epctx and an Execution Provider: all that an EP author imports.

A load imports what it calls and what it is given; the rest is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epctx_core.options.choices import WeightlessMode
from epctx_core.plugin.hookspecs import PLUGIN_API, hookimpl
from epctx_core.plugin.provider import (
    Cancellation,
    ExecutionProvider,
    ModelIdentity,
    ProviderContext,
    ProviderOption,
)
from epctx_core.plugin.types import (
    UNKNOWN_TYPE,
    Availability,
    BuildInfo,
    Compatibility,
    CompiledPartition,
    ContextNode,
    Extent,
    Purpose,
    TensorType,
    ValueInfo,
)

if TYPE_CHECKING:
    from epctx_core.plugin.blobs import Blobs, write_blobs
    from epctx_core.plugin.kernels import (
        Engine,
        Kernel,
        KernelDef,
        KernelLookup,
        KernelRegistry,
        OperatorTypes,
        OptimizedModel,
        PreparedModel,
    )
    from epctx_core.plugin.storage import (
        CONTAINER_CODES,
        CORE_ATTRIBUTES,
        ContextReader,
        ContextWriter,
        EPContextNode,
        Finding,
        Payload,
        PayloadView,
        Severity,
        Workspace,
    )
    from epctx_core.plugin.views import (
        ComputeCapability,
        GraphView,
        NodeView,
        Partition,
        Refusal,
        TensorView,
        number_nodes,
        supported_partitions,
    )

_HOME = {
    "blobs": ("Blobs", "write_blobs"),
    "kernels": (
        "Engine", "Kernel", "KernelDef", "KernelLookup", "KernelRegistry", "OperatorTypes", "OptimizedModel", "PreparedModel",
    ),
    "storage": (
        "CONTAINER_CODES", "CORE_ATTRIBUTES", "ContextReader", "ContextWriter", "EPContextNode", "Finding", "Payload",
        "PayloadView", "Severity", "Workspace",
    ),
    "views": (
        "ComputeCapability", "GraphView", "NodeView", "Partition", "Refusal", "TensorView", "number_nodes",
        "supported_partitions",
    ),
}  # fmt: skip
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _HOME.items() for name in names}

# Written out, for type checkers read no computed list.
__all__ = [
    "CONTAINER_CODES", "CORE_ATTRIBUTES", "PLUGIN_API", "UNKNOWN_TYPE", "Availability", "Blobs", "BuildInfo",
    "Cancellation", "Compatibility", "CompiledPartition", "ComputeCapability", "ContextNode", "ContextReader",
    "ContextWriter", "EPContextNode", "Engine", "ExecutionProvider", "Extent", "Finding", "GraphView", "Kernel",
    "KernelDef", "KernelLookup", "KernelRegistry", "ModelIdentity", "NodeView", "OperatorTypes", "OptimizedModel",
    "Partition", "Payload", "PayloadView", "PreparedModel", "ProviderContext", "ProviderOption", "Purpose",
    "Refusal", "Severity", "TensorType", "TensorView", "ValueInfo", "WeightlessMode", "Workspace", "hookimpl",
    "number_nodes", "supported_partitions", "write_blobs",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name that no load needs (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return globals().setdefault(name, getattr(import_module(_MODULE_OF[name]), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
