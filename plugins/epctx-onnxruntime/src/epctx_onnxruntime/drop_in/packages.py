"""Packages of several models, which are onnxruntime's, with options of this module."""

from __future__ import annotations

from typing import Any

import epctx_core
from epctx_core.errors import InvalidArgument
from epctx_onnxruntime.drop_in.errors import with_native_errors
from epctx_onnxruntime.real import native, onnxruntime
from epctx_onnxruntime.versions import make_options

_TUNING = (
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "logid",
    "use_deterministic_compute",
)


def _to_native(options: Any) -> Any:
    """Return session options as onnxruntime's own sessions take them.

    Raises:
        InvalidArgument: they name an EP that onnxruntime does not have.
    """
    if not isinstance(options, epctx_core.SessionOptions):
        return options
    made = make_options()
    for name in _TUNING:
        setattr(made, name, getattr(options, name))
    made.execution_mode = native.ExecutionMode(int(options.execution_mode))
    made.graph_optimization_level = native.GraphOptimizationLevel(
        int(options.graph_optimization_level)
    )
    for key, value in options.config_entries.items():
        made.add_session_config_entry(key, value)
    for ep, settings in options.providers:
        if ep not in native.get_available_providers():
            raise InvalidArgument(
                f"sessions of a model package are onnxruntime's, which has no {ep}.",
                hint="Give the model of a variant to InferenceSession.",
            )
        made.add_provider(ep, settings)
    return made


class ModelPackageOptions(onnxruntime.ModelPackageOptions):  # type: ignore[misc]
    """Options by which a variant is selected; see `onnxruntime.ModelPackageOptions`."""

    @with_native_errors
    def __init__(self, sess_options: epctx_core.SessionOptions) -> None:
        super().__init__(_to_native(sess_options))


class ModelPackageContext(onnxruntime.ModelPackageContext):  # type: ignore[misc]
    """Package that is open; see `onnxruntime.ModelPackageContext`."""

    def select_component(
        self, component_name: str, options: Any
    ) -> ModelPackageComponentContext:
        """Return a component in the variant that fits the options."""
        return ModelPackageComponentContext(
            super().select_component(component_name, options)
        )


class ModelPackageComponentContext:
    """Component in its selected variant; see
    `onnxruntime.ModelPackageComponentContext`.
    """

    def __init__(self, selected: onnxruntime.ModelPackageComponentContext) -> None:
        self._selected = selected

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selected, name)

    @with_native_errors
    def create_session(self, sess_options: Any = None) -> onnxruntime.InferenceSession:
        """Return a session of onnxruntime's own."""
        return self._selected.create_session(_to_native(sess_options))
