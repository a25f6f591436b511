"""epctx: compile ONNX models into context models, load them anywhere, run both.

Everything here is imported on first use: `import epctx_core` loads no other module.
"""

from __future__ import annotations

from epctx_core._version import __version__ as __version__

# As in `typing`; importing that module would double the time of importing this one.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from epctx_cache import *
    from epctx_conformance.explanation import *
    from epctx_files import *
    from epctx_onnxruntime.conversion import *
    from epctx_onnxruntime.drop_in.process import *

    from epctx_core.compiling.compiler import *
    from epctx_core.compiling.initializers import *
    from epctx_core.compiling.report import *
    from epctx_core.context.callbacks import *
    from epctx_core.engines.cpu_engine import *
    from epctx_core.errors import *
    from epctx_core.options import *
    from epctx_core.options.run import *
    from epctx_core.registry import *
    from epctx_core.session import *
    from epctx_core.sessions.assigned_nodes import *
    from epctx_core.sessions.compatibility import *
    from epctx_core.sessions.inspection import *
    from epctx_core.sessions.placement import *
    from epctx_core.sessions.signature import *
    from epctx_core.verify.findings import *
    from epctx_core.verify.verification import *

_HOME = {
    "epctx_cache": ("compile_cached", "load_or_compile"),
    "epctx_conformance.explanation": (
        "Explanation",
        "NodeExplanation",
        "explain_model",
    ),
    "epctx_core.compiling.compiler": ("ModelCompiler", "ShareGroup", "ShareReport"),
    "epctx_core.compiling.report": ("CompileReport",),
    "epctx_core.compiling.initializers": (
        "InitializerValue",
        "OrtExternalInitializerInfo",
    ),
    "epctx_core.context.callbacks": ("OrtEpContextData", "OrtEpContextDataBuffer"),
    "epctx_core.engines.cpu_engine": ("set_seed",),
    "epctx_core.errors": (
        "EPFail",
        "EpctxError",
        "ErrorCode",
        "Fail",
        "InternalError",
        "InvalidArgument",
        "InvalidGraph",
        "InvalidProtobuf",
        "ModelLoadCanceled",
        "ModelRequiresCompilation",
        "NoSuchFile",
        "NotFound",
        "NotImplementedByProvider",
        "PluginError",
        "RuntimeException",
    ),
    "epctx_core.sessions.compatibility": (
        "CompiledModelCompatibility",
        "get_compatibility_info_from_model",
        "get_ep_metadata",
        "get_model_compatibility",
    ),
    "epctx_core.sessions.assigned_nodes": (
        "OrtEpAssignedNode",
        "OrtEpAssignedSubgraph",
    ),
    "epctx_core.sessions.inspection": (
        "ContextNodeInfo",
        "ModelInfo",
        "inspect_model",
    ),
    "epctx_core.sessions.placement": ("Placement",),
    "epctx_core.sessions.signature": ("ModelMetadata", "NodeArg"),
    "epctx_core.options": (
        "ExecutionMode",
        "GraphOptimizationLevel",
        "InputBudget",
        "OrtCompileApiFlags",
        "SessionOptions",
    ),
    "epctx_core.options.run": ("RunOptions",),
    "epctx_core.registry": (
        "PluginRecord",
        "PluginState",
        "Registry",
        "add_plugin_path",
        "default_registry",
        "get_all_providers",
        "get_available_providers",
        "get_device",
        "get_version_string",
        "plugins",
        "refresh_plugins",
        "register_execution_provider",
        "temporary_execution_provider",
        "unregister_execution_provider",
    ),
    "epctx_core.session": ("InferenceSession",),
    "epctx_core.verify.findings": ("VerifyReport",),
    "epctx_core.verify.verification": ("verify_model",),
    "epctx_files": ("seal_model",),
    "epctx_onnxruntime.conversion": ("convert_model",),
    "epctx_onnxruntime.drop_in.process": (
        "disable_telemetry_events",
        "enable_telemetry_events",
        "set_default_logger_severity",
        "set_default_logger_verbosity",
    ),
}
_NAMES = ["__version__", *(name for names in _HOME.values() for name in names)]


def __getattr__(name: str) -> Any:
    from epctx_core.forwarding import forward, list_installed_names

    if name == "__all__":
        return ["__version__", *list_installed_names(_HOME)]
    if name not in _NAMES and not name.startswith("_"):
        from epctx_core.options.strict import missing_attribute_error

        raise missing_attribute_error(f"module {__name__!r}", name, _NAMES)
    return forward(__name__, _HOME, name)


def __dir__() -> list[str]:
    from epctx_core.forwarding import list_installed_names

    return sorted({*globals(), *list_installed_names(_HOME)})
