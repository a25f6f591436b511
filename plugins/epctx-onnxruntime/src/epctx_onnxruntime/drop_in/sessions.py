"""`InferenceSession` and `ModelCompiler` with every name of onnxruntime's."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import epctx_core
from epctx_core import default_registry
from epctx_core.errors import EpctxError, InvalidArgument, suggestion
from epctx_core.ext import read_request
from epctx_core.plugin import Purpose
from epctx_onnxruntime.drop_in.binding import IOBinding, read_feeds
from epctx_onnxruntime.drop_in.devices import (
    OrtEpDevice,
    describe_cpu,
    get_all_providers,
    make_memory_info,
)
from epctx_onnxruntime.drop_in.errors import adopt_methods, with_native_errors
from epctx_onnxruntime.drop_in.options import SessionOptions, refuse
from epctx_onnxruntime.drop_in.process import log_without_effect
from epctx_onnxruntime.drop_in.values import to_ort_value
from epctx_onnxruntime.real import onnxruntime
from epctx_onnxruntime.versions import CPU_EP

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto

Providers = Sequence[Any]
_NO_FALLBACK = "a session never changes its EPs by itself"
_TUNING = {
    "disabled_optimizers": "the CPU EP's optimisers are chosen as a whole",
    "enable_fallback": _NO_FALLBACK,
}
"""Arguments of onnxruntime's sessions that are accepted, with the reason why they have
no effect.
"""
_OF_OPTIMISED_MODELS = (
    "session.optimized_model_external_initializers_",
    "session.save_model_format",
)
"""Config entries that say how `optimized_model_filepath` is written."""

first_providers: list[str] = []
"""EPs that `install` puts before those of each session."""
free_dimensions: dict[str, int] = {}
"""Lengths that `install` sets for sessions of models whose inputs have them open."""


class InferenceSession(epctx_core.InferenceSession):
    """Runs a model; see `onnxruntime.InferenceSession` and
    `epctx_core.InferenceSession`.

    Args:
        path_or_bytes: the model.
        sess_options: session options.
        providers: EP names in order of priority, each with or without its options. One
            that is not installed, or not available on this machine, is left out with a
            warning, as by onnxruntime.
        provider_options: options for `providers`.
        registry: the registry of EPs.
        tuning: `disabled_optimizers` and `enable_fallback` of onnxruntime, accepted
            without effect.

    Raises:
        EpctxError: as `epctx_core.InferenceSession`; also an instance of the class of
            its code in `onnxruntime.capi.onnxruntime_pybind11_state`.
    """

    @with_native_errors
    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | bytes,
        sess_options: epctx_core.SessionOptions | None = None,
        providers: Providers | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        *,
        registry: epctx_core.Registry = default_registry,
        **tuning: Any,
    ) -> None:
        for name in tuning:
            if name not in _TUNING:
                raise InvalidArgument(
                    "InferenceSession has no argument "
                    f"{name!r}.{suggestion(name, _TUNING)}",
                    hint="See help(epctx_onnxruntime.InferenceSession).",
                )
            log_without_effect(f"InferenceSession({name}=...)", _TUNING[name])
        if providers is not None:
            providers, provider_options = _leave_out(providers, provider_options)
        options = SessionOptions() if sess_options is None else sess_options
        if providers is None:
            options = _choose(options, path_or_bytes)
        if first_providers:
            options, providers, provider_options = _put_first(
                options, providers, provider_options
            )
        if free_dimensions and isinstance(options, epctx_core.SessionOptions):
            options = _fix_lengths(options, path_or_bytes)
        start = time.monotonic_ns()
        super().__init__(
            path_or_bytes, options, providers, provider_options, registry=registry
        )
        self._profiling_start = start if options.enable_profiling else 0
        self.input_names = [argument.name for argument in self._inputs]
        self.output_names = [argument.name for argument in self._outputs]
        if isinstance(options, SessionOptions) and (
            path := options.optimized_model_filepath
        ):
            _write_optimized(path_or_bytes, options, path)

    @with_native_errors
    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: epctx_core.RunOptions | None = None,
        *,
        outputs: Mapping[str, np.ndarray] | None = None,
    ) -> list[Any]:
        """Run the model; inputs may be values of onnxruntime, too; see
        `epctx_core.InferenceSession.run`.
        """
        return super().run(
            output_names, read_feeds(input_feed), run_options, outputs=outputs
        )

    @with_native_errors
    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any,
        run_options: epctx_core.RunOptions | None = None,
    ) -> None:
        """Run the model in a thread of its own; see
        `epctx_core.InferenceSession.run_async`.

        Raises:
            InvalidArgument: also for an input that is missing, at once.
        """
        missing = [
            argument.name
            for argument in self.get_inputs()
            if isinstance(input_feed, Mapping)
            and argument.name not in input_feed
            and not argument.type.startswith("optional")
        ]
        if missing:
            raise InvalidArgument(
                f"the input feed lacks the inputs {', '.join(map(repr, missing))}."
            )
        super().run_async(output_names, input_feed, callback, user_data, run_options)

    @with_native_errors
    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, onnxruntime.OrtValue],
        run_options: epctx_core.RunOptions | None = None,
    ) -> list[onnxruntime.OrtValue]:
        """Run the model on values of onnxruntime; return such values, in memory of
        their own.
        """
        results = self.run(output_names, input_dict_ort_values, run_options)
        types = {output.name: output.type for output in self._outputs}
        names = output_names or self.output_names
        return [
            to_ort_value(result, types[name])
            for name, result in zip(names, results, strict=True)
        ]

    def io_binding(self) -> IOBinding:
        """Return a binding of inputs and outputs to memory."""
        return IOBinding(self)

    @with_native_errors
    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: epctx_core.RunOptions | None = None
    ) -> None:
        """Run the model on what a binding of this session binds.

        Raises:
            InvalidArgument: the binding is another session's, or binds no output; or as
                for `run`.
        """
        if not isinstance(iobinding, IOBinding) or not iobinding.is_of(self):
            raise InvalidArgument(
                "run_with_iobinding takes a binding of this session.",
                hint="Make it with session.io_binding().",
            )
        iobinding.run(run_options)

    def run_with_ortvaluevector(self, *_given: object, **_named: object) -> None:
        """Refuse vectors of onnxruntime's native values.

        Raises:
            NotImplementedByProvider: always.
        """
        refuse("InferenceSession.run_with_ortvaluevector")

    def create_ortvalue_from_shape_and_type(
        self,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> onnxruntime.OrtValue:
        """Return a value with uninitialised memory."""
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            shape, element_type, device_type, device_id, vendor_id
        )

    def get_input_memory_infos(self) -> list[onnxruntime.OrtMemoryInfo]:
        """Return the memory of each input: the CPU's."""
        return [make_memory_info() for _ in self.get_inputs()]

    def get_output_memory_infos(self) -> list[onnxruntime.OrtMemoryInfo]:
        """Return the memory of each output: the CPU's."""
        return [make_memory_info() for _ in self.get_outputs()]

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """Return the device that takes each input: the CPU EP's, as EPs move values to
        their devices themselves.
        """
        return [describe_cpu() for _ in self.get_inputs()]

    def disable_fallback(self) -> None:
        """Do nothing: a session never changes its EPs by itself."""
        log_without_effect("disable_fallback", _NO_FALLBACK)

    def enable_fallback(self) -> None:
        """Do nothing: a session never changes its EPs by itself."""
        log_without_effect("enable_fallback", _NO_FALLBACK)

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing: runs capture no graphs."""

    def get_profiling_start_time_ns(self) -> int:
        """Return when the profile began, in ns of `time.monotonic_ns`; 0 without
        one.
        """
        return self._profiling_start

    def get_tuning_results(self) -> list[Any]:
        """Return nothing: only onnxruntime's GPU EPs have tuning results."""
        return []

    @with_native_errors
    def set_providers(
        self,
        providers: Providers | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        """Accept the EPs and options that the session has; it never gets others.

        Raises:
            InvalidArgument: they are others.
        """
        _, requested = read_request(None, providers, provider_options)
        named = {
            _stem(name): {key: str(value) for key, value in options.items()}
            for name, options in requested or ()
        }
        current = {
            _stem(ep): options for ep, options in self.get_provider_options().items()
        }
        if [*(named | {_stem(CPU_EP): {}})] != [*current] or any(
            named[ep].items() - current[ep].items() for ep in named
        ):
            raise InvalidArgument(
                "a session's EPs are fixed when it is made; these are "
                f"{', '.join(self.get_providers())}.",
                hint="Make a new session with other providers.",
            )

    def set_tuning_results(
        self,
        results: Iterable[Any],
        *,
        error_on_invalid: bool = False,  # noqa: ARG002 - onnxruntime's signature
    ) -> None:
        """Refuse tuning results, unless there are none.

        Raises:
            NotImplementedByProvider: there are some.
        """
        if list(results):
            refuse("InferenceSession.set_tuning_results")


def _stem(ep: str) -> str:
    """Return an EP's name as it may be given, without case."""
    return ep.casefold().removesuffix("executionprovider")


adopt_methods(
    InferenceSession,
    "close",
    "end_profiling",
    "get_provider_graph_assignment_info",
    "get_providers",
    "get_provider_options",
    "get_modelmeta",
    "placement",
    "set_ep_dynamic_options",
)


class ModelCompiler(epctx_core.ModelCompiler):
    """Compiles a model to a context model; see `onnxruntime.ModelCompiler` and
    `epctx_core.ModelCompiler`.
    """

    @with_native_errors
    def __init__(
        self,
        sess_options: epctx_core.SessionOptions,
        input_model_path_or_bytes: str | PathLike[str] | bytes,
        *further: Any,
        **settings: Any,
    ) -> None:
        super().__init__(
            _choose(sess_options, input_model_path_or_bytes),
            input_model_path_or_bytes,
            *further,
            **settings,
        )


adopt_methods(
    ModelCompiler,
    "compile_to_bytes",
    "compile_to_file",
    "compile_to_stream",
    "set_ep_context_binary_information",
    "set_ep_context_data_write_func",
)


def _choose(options: Any, model: str | PathLike[str] | bytes) -> Any:
    """Return session options with the EPs that their policy chooses."""
    if not isinstance(options, SessionOptions):
        return options
    chosen = options.copy()
    chosen.choose_devices(lambda: _read_metadata(model))
    return chosen


def _fix_lengths(
    options: epctx_core.SessionOptions, model: str | PathLike[str] | bytes
) -> epctx_core.SessionOptions:
    """Return session options with those lengths of `install` that a model's inputs have
    open.
    """
    fixed = options.copy()
    open_names = {
        length.dim_param
        for value in _read_proto(model).graph.input
        for length in value.type.tensor_type.shape.dim
    }
    for name in open_names & free_dimensions.keys():
        fixed.add_free_dimension_override_by_name(name, free_dimensions[name])
    return fixed


def _read_proto(model: str | PathLike[str] | bytes) -> ModelProto:
    import onnx

    return (
        onnx.load_from_string(model)
        if isinstance(model, bytes)
        else onnx.load(fspath(model), load_external_data=False)
    )


def _read_metadata(model: str | PathLike[str] | bytes) -> Mapping[str, str]:
    proto = _read_proto(model)
    return {
        "doc_string": proto.doc_string,
        "domain": proto.domain,
        "graph_description": proto.graph.doc_string,
        "graph_name": proto.graph.name,
        "model_version": str(proto.model_version),
        "producer_name": proto.producer_name,
        "producer_version": proto.producer_version,
        **{entry.key: entry.value for entry in proto.metadata_props},
    }


def _leave_out(
    providers: Providers, options: Sequence[Mapping[str, object]] | None
) -> tuple[Providers, Sequence[Mapping[str, object]] | None]:
    """Return the EPs without those of onnxruntime that are not installed or not
    available here, after a warning and before their options are read: hosts list all
    that they know, and run on what is there.
    """
    if (
        not isinstance(providers, Sequence)
        or not all(item and isinstance(item, (str, tuple)) for item in providers)
        or not isinstance(options, Sequence | None)
        or (options is not None and len(options) != len(providers))
    ):
        return providers, options  # The session names what is wrong with them.
    known = get_all_providers()
    names = [item if isinstance(item, str) else item[0] for item in providers]
    missing = {
        name: reason
        for name in names
        if name in known and name != CPU_EP and (reason := _find_absence(name))
    }
    if not missing:
        return providers, options
    told = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
    warnings.warn(
        f"{told}; the session runs without it. Available: "
        f"{', '.join(epctx_core.get_available_providers())}",
        stacklevel=4,
    )
    kept = [index for index, name in enumerate(names) if name not in missing]
    return (
        [providers[index] for index in kept],
        options and [options[index] for index in kept],
    )


def _find_absence(name: str) -> str:
    """Return why an EP cannot be used here; empty where it can, or where it is for the
    session to say.
    """
    records = default_registry.find(name)
    if not records:
        return "not installed"
    try:
        records = [default_registry.resolve(name)]
    except EpctxError:  # several have the name, and none is chosen
        records = [record for record in records if not record.simulated]

    with suppress(EpctxError):  # broken
        found = [
            default_registry.availability(record, purpose)
            for record in records
            for purpose in (Purpose.RUN, Purpose.LOAD)
        ]
        if not any(each.available for each in found):
            reasons = dict.fromkeys((each.reason or "").rstrip(".") for each in found)
            return f"not available ({'; '.join(reasons)})"
    return ""


def _put_first(
    options: epctx_core.SessionOptions,
    providers: Providers | None,
    provider_options: Sequence[Mapping[str, object]] | None,
) -> tuple[
    epctx_core.SessionOptions, Providers | None, Sequence[Mapping[str, object]] | None
]:
    """Return a session's options and EPs with the EPs that `install` was given before
    them, each unless the program names it.

    Raises:
        InvalidArgument: they are not in a form that `InferenceSession` takes.
    """
    read_request(options, providers, provider_options)
    named = [name for name, _ in options.providers] + [
        item if isinstance(item, str) else item[0] for item in providers or ()
    ]
    found = [default_registry.resolve(name).name for name in first_providers]
    # Each may stand behind its distribution.
    plain = {name.rpartition(":")[2] for name in named}
    added = [name for name in found if name not in plain]
    if providers is None and options.providers:
        options = options.copy()
        options.providers[:0] = [(name, {}) for name in added]
        return options, providers, provider_options
    return (
        options,
        [*added, *(providers or ())],
        provider_options and [*({} for _ in added), *provider_options],
    )


def _write_optimized(
    model: str | PathLike[str] | bytes, options: SessionOptions, path: str
) -> None:
    """Write a model as onnxruntime optimises it, by a session of its own.

    Raises:
        InvalidArgument: onnxruntime does not optimise it, such as a context model.
    """
    try:
        real, _values = options.make_native()
        for key, value in options.config_entries.items():
            if key.startswith(_OF_OPTIMISED_MODELS):
                real.add_session_config_entry(key, value)
        real.optimized_model_filepath = fspath(path)
        onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else fspath(model),
            real,
            providers=[CPU_EP],
        )
    except Exception as error:
        text = " ".join(str(error).split())
        raise InvalidArgument(
            f"onnxruntime cannot write the optimised model: {text}.",
            path=path if isinstance(path, str) else None,
            hint="Leave optimized_model_filepath out for models with EPContext nodes."
            if "EPContext" in text
            else "Check optimized_model_filepath.",
        ) from error
