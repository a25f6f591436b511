"""Names whose use gives another result under the drop-in, with the reason."""

from __future__ import annotations

from epctx_onnxruntime.drop_in.names import REASONS

_BY_NAME = (
    "InferenceSession.run_with_ortvaluevector",
    "IOBinding.get_outputs_as_ortvaluevector",
    "RunOptions.add_active_adapter",
    "SessionOptions.add_external_initializers_from_files_in_memory",
    "SessionOptions.execution_order",
)
"""Those whose reason the drop-in gives itself."""

_PAYLOADS = "no EP in onnxruntime's wheel compiles; installed EPs of epctx do"
_EPS = "installed plugins are found, simulated ones too"

DIFFERENCES: dict[str, str] = {
    **{name: REASONS[name.rpartition(".")[2]] for name in _BY_NAME},
    **dict.fromkeys(
        (
            "OrtEpContextData",
            "OrtEpContextData.read",
            "OrtEpContextData.size",
            "OrtEpContextDataBuffer",
            "OrtEpContextDataBuffer.allocate",
            "OrtEpContextDataBuffer.is_allocated",
            "OrtEpContextDataBuffer.max_size",
            "OrtEpContextDataBuffer.size",
            "OrtEpContextDataBuffer.write",
        ),
        _PAYLOADS,
    ),
    "InferenceSession: an EP that nobody knows": (
        "a typo is an `InvalidArgument` that names the installed EPs, no warning"
    ),
    "InferenceSession.get_provider_graph_assignment_info: not recorded": (
        "it is the caller's option: `InvalidArgument` that names it"
    ),
    "InferenceSession.run: a kernel that fails": (
        "what happens in a run is a `RuntimeException`, also a `Fail`, whatever the "
        "kernel's own code is"
    ),
    "InferenceSession.set_ep_dynamic_options: for the CPU EP": (
        "options that no EP takes are an error"
    ),
    "IOBinding.bind_output: a device that is not here": (
        "an error where it is bound; onnxruntime silently computes on the CPU"
    ),
    "ModelCompiler: a source that is missing": (
        "`NoSuchFile`, as for sessions, also a `FileNotFoundError`"
    ),
    "SessionOptions.graph_optimization_level: a text": (
        "names of levels are taken, as in option files"
    ),
    "SparseTensor: as an input": "sessions take no sparse values as inputs",
    "get_available_providers": _EPS,
    "get_build_info": "it begins with the versions of epctx and of the EPs",
    "get_ep_devices": _EPS,
    "unregister_execution_provider_library: one that is not registered": (
        "`NotFound`, the class for names that are not there"
    ),
}
"""Use, as `every_name.py` names it, to the reason."""
