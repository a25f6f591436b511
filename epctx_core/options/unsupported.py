"""Names of ONNX Runtime's Python API that epctx does not have, each with a sentence that says so and why.

A host that moves over from onnxruntime hears of each on its first use: nothing is swallowed.
`docs/differences-from-onnxruntime.md` shows the table; a test holds both against the installed onnxruntime.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from epctx_core.errors import InvalidArgument, suggestion

_MEMORY = "memory of runs belongs to onnxruntime and to the EPs; there is no arena or pattern to switch"
_THREADS = "each prepared piece has the threads that intra_op_num_threads and its size call for"
_PROFILE = "steps are not profiled"
_LOG = "logging is Python's: the logger 'epctx' and its levels"
_DEVICES = "EPs are chosen by name and not by device; use add_provider"
_BINDING = "values are numpy arrays in the memory of this process; use run"
_CAPTURE = "there are no captured graphs"
_TUNING = "no EP tunes itself through the core"
_PROVIDERS = "EPs are fixed when a session is made; make a new session"
_ADAPTER = "LoRA adapters are not applied to what an EP compiled"

UNSUPPORTED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "SessionOptions": MappingProxyType(
            {
                "add_external_initializers_from_files_in_memory": "files of weights are mapped from a folder"
                " ('session.model_external_initializers_file_folder_path'); use add_external_initializers for values",
                "add_provider_for_devices": _DEVICES,
                "enable_cpu_mem_arena": _MEMORY,
                "enable_mem_pattern": _MEMORY,
                "enable_mem_reuse": _MEMORY,
                "enable_profiling": _PROFILE,
                "execution_order": "steps run in the model's order of dependence",
                "log_verbosity_level": _LOG,
                "logid": _LOG,
                "optimized_model_filepath": "use ModelCompiler with a graph_optimization_level to write a model",
                "profile_file_prefix": _PROFILE,
                "register_custom_ops_library": "operators of a library's own are an EP's business: write a plugin",
                "set_provider_selection_policy": _DEVICES,
                "set_provider_selection_policy_delegate": _DEVICES,
                "use_deterministic_compute": "engines are not switched; the CPU EP computes as onnxruntime does",
                "use_per_session_threads": _THREADS,
            }
        ),
        "RunOptions": MappingProxyType(
            {
                "add_active_adapter": _ADAPTER,
                "add_run_config_entry": "no run option but terminate and tag has an effect here",
                "get_run_config_entry": "no run option but terminate and tag has an effect here",
                "log_severity_level": _LOG,
                "log_verbosity_level": _LOG,
                "only_execute_path_to_fetches": "a run computes all outputs; leave out those that are not wanted",
            }
        ),
        "InferenceSession": MappingProxyType(
            {
                "create_ortvalue_from_shape_and_type": _BINDING,
                "disable_fallback": "a session never changes its EPs by itself",
                "enable_fallback": "a session never changes its EPs by itself",
                "end_profiling": _PROFILE,
                "get_input_epdevices": _DEVICES,
                "get_input_memory_infos": _BINDING,
                "get_output_memory_infos": _BINDING,
                "get_profiling_start_time_ns": _PROFILE,
                "get_tuning_results": _TUNING,
                "io_binding": _BINDING,
                "release_captured_graph": _CAPTURE,
                "run_async": "run may be called from any thread: give it to an executor",
                "run_with_iobinding": _BINDING,
                "run_with_ort_values": _BINDING,
                "run_with_ortvaluevector": _BINDING,
                "set_providers": _PROVIDERS,
                "set_tuning_results": _TUNING,
            }
        ),
    }
)
"""Class to name to why epctx does not have it."""


class UnsupportedNameError(InvalidArgument, AttributeError):
    """A name that epctx does not have; an AttributeError too, so that `hasattr` answers."""


class Strict:
    """Base of a host's objects: a name that they do not have is said when it is used, also when it is set."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _no_such_name(type(self), name)

    def __setattr__(self, name: str, value: object) -> None:
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            raise _no_such_name(type(self), name) from None


def _no_such_name(cls: type, name: str) -> UnsupportedNameError:
    """Return the error for a name that a class does not have."""
    tables = [(c.__name__, UNSUPPORTED[c.__name__]) for c in cls.__mro__ if c.__name__ in UNSUPPORTED]
    for owner, table in tables:
        if name in table:
            return UnsupportedNameError(
                f"{owner}.{name} is not supported by epctx: {table[name]}.",
                hint="docs/differences-from-onnxruntime.md lists what else is not.",
            )
    known = [n for n in dir(cls) if not n.startswith("_")]
    return UnsupportedNameError(
        f"{cls.__name__} has no attribute {name!r}.{suggestion(name, known)}",
        hint=f"It has: {', '.join(known)}.",
    )
