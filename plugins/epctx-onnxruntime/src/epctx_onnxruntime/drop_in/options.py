"""Session and run options with every name of onnxruntime's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

import epctx_core
from epctx_core.errors import InvalidArgument, NotImplementedByProvider
from epctx_onnxruntime.custom_operators import register_libraries
from epctx_onnxruntime.drop_in import devices
from epctx_onnxruntime.drop_in.errors import adopt, adopt_methods, with_native_errors
from epctx_onnxruntime.drop_in.names import REASONS
from epctx_onnxruntime.real import native, onnxruntime
from epctx_onnxruntime.versions import make_options, ort_value

_UNSUPPORTED: Mapping[str, object] = {
    "execution_order": onnxruntime.ExecutionOrder.DEFAULT,
}
"""Attributes whose default alone is allowed, with it."""


def refuse(name: str) -> NoReturn:
    """Raise the error for a name of onnxruntime that does nothing here.

    Raises:
        NotImplementedByProvider: always, with the reason.
    """
    error = NotImplementedByProvider(
        f"{name} is not supported by epctx: {REASONS[name.rpartition('.')[2]]}."
    )
    adopt(error)
    raise error


class SessionOptions(epctx_core.SessionOptions):
    """Options of a session; see `onnxruntime.SessionOptions` and
    `epctx_core.SessionOptions`.

    Attributes:
        optimized_model_filepath: file for the model as onnxruntime optimises it for the
            CPU EP; empty for none.
    """

    __slots__ = ("_delegate", "_policy", "optimized_model_filepath", *_UNSUPPORTED)

    def __init__(self) -> None:
        super().__init__()
        self._policy: native.OrtExecutionProviderDevicePolicy | None = None
        self._delegate: devices.Delegate | None = None
        self.optimized_model_filepath = ""
        self.log_severity_level = -1  # That of the module, as in onnxruntime.
        for name, default in _UNSUPPORTED.items():
            setattr(self, name, default)

    @with_native_errors
    def __setattr__(self, name: str, value: Any) -> None:
        if name in _UNSUPPORTED and value != _UNSUPPORTED[name]:
            refuse(f"SessionOptions.{name}")
        if isinstance(
            value, (native.GraphOptimizationLevel, native.ExecutionMode)
        ) and not isinstance(value, int):
            # Those of `capi` are classes of their own.
            value = getattr(epctx_core, type(value).__name__)(int(value))
        super().__setattr__(name, value)

    def has_providers(self) -> bool:
        """Return whether an EP was added, or is chosen by a policy or a function."""
        return bool(self.providers) or not (self._policy is self._delegate is None)

    @with_native_errors
    def add_provider_for_devices(
        self,
        ep_devices: Sequence[devices.OrtEpDevice],
        provider_options: Mapping[str, str],
    ) -> None:
        """Append the EP of devices, with the options that choose these.

        Args:
            ep_devices: of one EP, from `get_ep_devices`.
            provider_options: further options of the EP.

        Raises:
            InvalidArgument: no device, devices of several EPs, or several that cannot
                be used together.
        """
        ep, options = devices.join_devices(ep_devices)
        self.add_provider(ep, {**options, **provider_options})

    @with_native_errors
    def set_provider_selection_policy(
        self, policy: native.OrtExecutionProviderDevicePolicy
    ) -> None:
        """Choose EPs by their devices when a session is made, if none was added.

        PREFER_NPU, MAX_EFFICIENCY and MIN_OVERALL_POWER take the first NPU, PREFER_GPU
        and MAX_PERFORMANCE the first GPU, DEFAULT and PREFER_CPU the first CPU of an EP
        beside the CPU EP. Devices of real EPs go before simulated ones. The logger
        `epctx.devices` has the choice and its reason.

        Raises:
            InvalidArgument: it is not a policy.
        """
        if not isinstance(policy, native.OrtExecutionProviderDevicePolicy):
            raise InvalidArgument(
                f"{policy!r:.80} is not a policy.",
                hint="Give one of onnxruntime.OrtExecutionProviderDevicePolicy.",
            )
        self._policy, self._delegate = policy, None

    @with_native_errors
    def set_provider_selection_policy_delegate(
        self, delegate: devices.Delegate
    ) -> None:
        """Choose EPs by a function when a session is made, if none was added.

        Args:
            delegate: `f(ep_devices, model_metadata, runtime_metadata, max_selections)`
                returns the devices to use.

        Raises:
            InvalidArgument: it cannot be called.
        """
        if not callable(delegate):
            raise InvalidArgument(
                "set_provider_selection_policy_delegate takes a function, not "
                f"{delegate!r:.80}."
            )
        self._policy, self._delegate = None, delegate

    def add_external_initializers_from_files_in_memory(
        self, *_given: object, **_named: object
    ) -> None:
        """Refuse files of weights in memory.

        Raises:
            NotImplementedByProvider: always.
        """
        refuse("SessionOptions.add_external_initializers_from_files_in_memory")

    def make_native(
        self,
    ) -> tuple[onnxruntime.SessionOptions, list[onnxruntime.OrtValue]]:
        """Return onnxruntime's options of a session that optimises a model as one with
        these does (level, free dimensions, initializers, custom operators), and the
        values that have to live as long as that session is made.
        """
        options = make_options()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(
            int(self.graph_optimization_level)
        )
        register_libraries(options, self._libraries)
        for name, length in self._dimensions.items():
            options.add_free_dimension_override_by_name(name, length)
        for denotation, length in self._denotations.items():
            options.add_free_dimension_override_by_denotation(denotation, length)
        values = [ort_value(array) for array in self._initializers.values()]
        for name, value in zip(self._initializers, values, strict=True):
            options.add_initializer(name, value)
        return options, values

    def choose_devices(self, read_metadata: Callable[[], Mapping[str, str]]) -> None:
        """Add the EPs that the policy chooses, unless some were added; for sessions and
        compilers.

        Args:
            read_metadata: gives the model's metadata, for a delegate.
        """
        if self.providers or (self._policy is None and self._delegate is None):
            return
        chosen = (
            devices.choose_by_policy(self._policy)
            if self._delegate is None
            else devices.choose_by_delegate(self._delegate, read_metadata())
        )
        for ep, group in chosen.items():
            _, options = devices.join_devices(group)
            self.add_provider(ep, options)


class RunOptions(epctx_core.RunOptions):
    """Options of runs; see `onnxruntime.RunOptions` and `epctx_core.RunOptions`."""

    __slots__ = ()

    @with_native_errors
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "terminate" and not isinstance(value, (bool, np.bool_)):
            raise InvalidArgument(f"terminate is True or False, not {value!r:.80}.")
        super().__setattr__(name, value)

    def add_active_adapter(self, _adapter: object) -> None:
        """Refuse a LoRA adapter.

        Raises:
            NotImplementedByProvider: always.
        """
        refuse("RunOptions.add_active_adapter")


adopt_methods(
    SessionOptions,
    "add_external_initializers",
    "add_free_dimension_override_by_denotation",
    "add_free_dimension_override_by_name",
    "add_initializer",
    "add_provider",
    "add_session_config_entry",
    "get_session_config_entry",
    "register_custom_ops_library",
    "set_ep_context_data_read_func",
    "set_load_cancellation_flag",
)
adopt_methods(RunOptions, "add_run_config_entry", "get_run_config_entry")
