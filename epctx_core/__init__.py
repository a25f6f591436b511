"""epctx: compile ONNX models into context models, load them anywhere, run both.

Everything here is imported on first use: `import epctx_core` loads no other module.
"""

from __future__ import annotations

from epctx_core._version import __version__

# What `typing` calls so; importing that module alone would double the time of importing this one.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from epctx_core.cache.caching import compile_cached, load_or_compile
    from epctx_core.compiling.compiler import ModelCompiler
    from epctx_core.compiling.initializers import InitializerValue, OrtExternalInitializerInfo
    from epctx_core.compiling.report import CompileReport
    from epctx_core.compiling.share_group import ShareGroup, ShareReport
    from epctx_core.context.callbacks import OrtEpContextData, OrtEpContextDataBuffer
    from epctx_core.errors import (
        EpctxError,
        EPFail,
        ErrorCode,
        Fail,
        InternalError,
        InvalidArgument,
        InvalidGraph,
        InvalidProtobuf,
        ModelLoadCanceled,
        ModelRequiresCompilation,
        NoSuchFile,
        NotFound,
        NotImplementedByProvider,
        PluginError,
        RuntimeException,
    )
    from epctx_core.options import (
        ExecutionMode,
        GraphOptimizationLevel,
        InputBudget,
        OrtCompileApiFlags,
        SessionOptions,
    )
    from epctx_core.options.run import RunOptions
    from epctx_core.registry import PluginRecord, PluginState, Registry
    from epctx_core.registry.default import (
        add_plugin_path,
        get_available_providers,
        plugins,
        refresh_plugins,
        register_execution_provider,
        temporary_execution_provider,
        unregister_execution_provider,
    )
    from epctx_core.session import InferenceSession
    from epctx_core.sessions.boundary import ModelMetadata, NodeArg
    from epctx_core.sessions.conversion import convert_model
    from epctx_core.sessions.ep_queries import (
        CompiledModelCompatibility,
        get_compatibility_info_from_model,
        get_ep_metadata,
        get_model_compatibility,
    )
    from epctx_core.sessions.explanation import (
        Explanation,
        NodeExplanation,
        OrtEpAssignedNode,
        OrtEpAssignedSubgraph,
        explain_model,
    )
    from epctx_core.sessions.inspection import ContextNodeInfo, ModelInfo, inspect_model
    from epctx_core.sessions.process_settings import (
        disable_telemetry_events,
        enable_telemetry_events,
        get_all_providers,
        get_device,
        get_version_string,
        set_default_logger_severity,
        set_default_logger_verbosity,
        set_seed,
    )
    from epctx_core.verify.findings import VerifyReport
    from epctx_core.verify.verification import verify_model

_HOME = {
    "epctx_core.cache.caching": ("compile_cached", "load_or_compile"),
    "epctx_core.compiling.compiler": ("ModelCompiler",),
    "epctx_core.compiling.report": ("CompileReport",),
    "epctx_core.compiling.share_group": ("ShareGroup", "ShareReport"),
    "epctx_core.compiling.initializers": ("InitializerValue", "OrtExternalInitializerInfo"),
    "epctx_core.context.callbacks": ("OrtEpContextData", "OrtEpContextDataBuffer"),
    "epctx_core.errors": (
        "EPFail", "EpctxError", "ErrorCode", "Fail", "InternalError", "InvalidArgument", "InvalidGraph",
        "InvalidProtobuf", "ModelLoadCanceled", "ModelRequiresCompilation", "NoSuchFile", "NotFound", "NotImplementedByProvider",
        "PluginError", "RuntimeException",
    ),
    "epctx_core.sessions.boundary": ("ModelMetadata", "NodeArg"),
    "epctx_core.sessions.conversion": ("convert_model",),
    "epctx_core.sessions.ep_queries": (
        "CompiledModelCompatibility", "get_compatibility_info_from_model", "get_ep_metadata", "get_model_compatibility",
    ),
    "epctx_core.sessions.explanation": (
        "Explanation", "NodeExplanation", "OrtEpAssignedNode", "OrtEpAssignedSubgraph", "explain_model",
    ),
    "epctx_core.sessions.inspection": ("ContextNodeInfo", "ModelInfo", "inspect_model"),
    "epctx_core.options": (
        "ExecutionMode", "GraphOptimizationLevel", "InputBudget", "OrtCompileApiFlags", "SessionOptions",
    ),
    "epctx_core.options.run": ("RunOptions",),
    "epctx_core.registry": ("PluginRecord", "PluginState", "Registry"),
    "epctx_core.registry.default": (
        "add_plugin_path", "get_available_providers", "plugins", "refresh_plugins",
        "register_execution_provider", "temporary_execution_provider", "unregister_execution_provider",
    ),
    "epctx_core.sessions.process_settings": (
        "disable_telemetry_events", "enable_telemetry_events", "get_all_providers", "get_device",
        "get_version_string", "set_default_logger_severity", "set_default_logger_verbosity", "set_seed",
    ),
    "epctx_core.session": ("InferenceSession",),
    "epctx_core.verify.findings": ("VerifyReport",),
    "epctx_core.verify.verification": ("verify_model",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

# Written out, for type checkers read no computed list; a test compares it with the table.
__all__ = [
    "CompileReport", "CompiledModelCompatibility", "ContextNodeInfo", "EPFail", "EpctxError", "ErrorCode",
    "ExecutionMode", "Explanation", "Fail", "GraphOptimizationLevel", "InferenceSession",
    "InitializerValue", "InputBudget", "InternalError", "InvalidArgument", "InvalidGraph",
    "InvalidProtobuf", "ModelCompiler", "ModelInfo", "ModelLoadCanceled", "ModelMetadata",
    "ModelRequiresCompilation", "NoSuchFile", "NodeArg", "NodeExplanation", "NotFound",
    "NotImplementedByProvider", "OrtCompileApiFlags", "OrtEpAssignedNode", "OrtEpAssignedSubgraph",
    "OrtEpContextData", "OrtEpContextDataBuffer", "OrtExternalInitializerInfo", "PluginError",
    "PluginRecord", "PluginState", "Registry", "RunOptions", "RuntimeException", "SessionOptions",
    "ShareGroup", "ShareReport", "VerifyReport", "__version__", "add_plugin_path", "compile_cached",
    "convert_model", "disable_telemetry_events", "enable_telemetry_events", "explain_model",
    "get_all_providers", "get_available_providers", "get_compatibility_info_from_model", "get_device",
    "get_ep_metadata", "get_model_compatibility", "get_version_string", "inspect_model", "load_or_compile",
    "plugins", "refresh_plugins", "register_execution_provider", "set_default_logger_severity",
    "set_default_logger_verbosity", "set_seed", "temporary_execution_provider",
    "unregister_execution_provider", "verify_model",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name from its home (PEP 562)."""
    module = _MODULE_OF.get(name)
    if module is None:
        from epctx_core.options.unsupported import unsupported_name

        if (error := unsupported_name(name)) is not None:
            raise error
        raise AttributeError(f"module 'epctx_core' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
