"""Queries to EPs beside compiling and loading: their declarations, and whether they run
a compiled model.

Also their findings in payloads, dynamic options of a session, and those functions of
module `onnxruntime` that concern the whole process, by its names and arguments.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core._version import __version__
from epctx_core.context.metadata import (
    COMPATIBILITY_PREFIX,
    EARLIER_PREFIX,
    read_compatibility_texts,
)
from epctx_core.context.model_head import read_metadata
from epctx_core.context.weightless import format_weightless_modes
from epctx_core.errors import (
    InvalidArgument,
    NotImplementedByProvider,
    PluginError,
    convert_errors,
    suggestion,
)
from epctx_core.options import SessionOptions, WeightlessMode
from epctx_core.options.choices import CPU_EP, is_whole
from epctx_core.options.strict import log_without_effect
from epctx_core.plugin import CONTAINER_CODES, Compatibility, ExecutionProvider, Finding
from epctx_core.registry import Registry, default_registry
from epctx_core.registry.default import plugins
from epctx_core.registry.guard import blame, call_class_method, contract_error
from epctx_core.registry.records import is_name_of
from epctx_core.sessions.providers import (
    ProviderChoice,
    ProviderSession,
    choose_provider,
)

if TYPE_CHECKING:
    from epctx_core.plugin import ContextNode, ContextReader, ProviderContext


LOOK = "verify_payloads"
_DYNAMIC = "set_dynamic_options"
CompiledModelCompatibility = Compatibility
"""Public name of `Compatibility`."""


def get_ep_metadata(
    ep: str, *, registry: Registry = default_registry
) -> dict[str, str]:
    """Return the declarations of an EP, so that a host can check what it supports.

    Args:
        ep: the EP name, or its short form, also after `<distribution>:`.
        registry: the registry of EPs.

    Returns:
        `weightless_supported_modes`: "none", "external_only", "all" or
        "all_or_external_only"; `weightless_support`: the same for hosts of ONNX Runtime
        before 1.31, "all" for both; `simulated`: "1" for an EP that computes on this
        CPU in place of hardware, else "0".

    Raises:
        InvalidArgument: no such EP.
        PluginError: the EP is broken.

    Example:
        >>> get_ep_metadata("OpenVINO")["weightless_support"]
        'all'
    """
    cls = (
        ExecutionProvider
        if is_name_of(ep, CPU_EP)
        else registry.load(registry.resolve(ep))
    )
    modes = cls.weightless_modes
    most = {WeightlessMode.ALL} if WeightlessMode.ALL in (modes or ()) else modes
    return {
        "weightless_support": format_weightless_modes(most),
        "weightless_supported_modes": format_weightless_modes(modes),
        "simulated": str(int(cls.simulated)),
    }


@convert_errors("asking for the model's compatibility")
def get_model_compatibility(
    path_or_bytes: str | os.PathLike[str] | bytes,
    ep: str,
    provider_options: Mapping[str, object] | None = None,
    *,
    registry: Registry = default_registry,
) -> CompiledModelCompatibility:
    """Ask an EP whether it runs a compiled model, without a session: no payload is
    touched.

    Of a file, only the head is read: the graph is stepped over, however large.

    Args:
        path_or_bytes: the model.
        ep: the EP name, or its short form, also after `<distribution>:`.
        provider_options: the EP's options, as a session would have them.
        registry: the registry of EPs.

    Returns:
        The EP's verdict, the worst one if it compiled parts at different times;
        EP_NOT_APPLICABLE for a model about which this EP wrote nothing, and for the CPU
        EP.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: there is no such model, or it is not
            one.
        InvalidArgument: no such EP, or a wrong option.
        PluginError: the EP is broken, or its validator raised.

    Example:
        >>> get_model_compatibility("model_ctx.onnx", "QNN")
        <Compatibility.EP_SUPPORTED_OPTIMAL: 1>
    """
    _check_ep(ep)
    if is_name_of(ep, CPU_EP):
        read_metadata(path_or_bytes, lambda _key: False)
        return Compatibility.EP_NOT_APPLICABLE
    choice = choose_provider(
        registry.resolve(ep), provider_options or {}, SessionOptions(), registry
    )
    info = get_compatibility_info_from_model(path_or_bytes, choice.name)
    said = read_metadata(path_or_bytes, lambda key: key == EARLIER_PREFIX + choice.name)
    texts = [
        *([] if info is None else [info]),
        *read_compatibility_texts(choice.name, said),
    ]

    # The numbers rise with what speaks against the model.
    return max(
        (choice.validate(text) for text in texts),
        default=Compatibility.EP_NOT_APPLICABLE,
    )


@convert_errors("reading the model's compatibility")
def get_compatibility_info_from_model(
    path_or_bytes: str | os.PathLike[str] | bytes, ep: str
) -> str | None:
    """Return the text that an EP wrote about a compiled model, or None; imports no
    plugin.

    Args:
        path_or_bytes: the model; of a file, only the head is read.
        ep: the EP name, or its short form, also after `<distribution>:`.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: there is no such model, or it is not
            one.
        InvalidArgument: the EP is not named by a text, or the model is not a path or
            bytes.
    """
    _check_ep(ep)
    # Models name EPs, and not the distributions that provide them.
    name = ep.rpartition(":")[2]
    infos = read_metadata(
        path_or_bytes,
        lambda key: (
            key.startswith(COMPATIBILITY_PREFIX)
            and is_name_of(name, key.removeprefix(COMPATIBILITY_PREFIX))
        ),
    )
    # The EP name as written comes before its short name.
    return infos.get(COMPATIBILITY_PREFIX + name, next(iter(infos.values()), None))


def _check_ep(ep: object) -> None:
    if not isinstance(ep, str) or not ep:
        raise InvalidArgument(
            f"an EP is named by a text such as 'QNNExecutionProvider', not {ep!r:.80}."
        )


def look_into(
    choice: ProviderChoice,
    context: ProviderContext,
    nodes: Sequence[ContextNode],
    reader: ContextReader,
) -> Sequence[Finding] | None:
    """Have an EP check its payloads; return its findings, None if it cannot check them.

    Raises:
        PluginError: it raised, or its result breaks the contract.
        EpctxError: it raised this one.
    """
    found: list[Finding] | None = call_class_method(
        choice.record, choice.cls, LOOK, context, nodes, reader
    )
    with blame(choice.record, LOOK):
        for finding in found or ():
            if finding.code not in CONTAINER_CODES:
                raise contract_error(
                    choice.record, LOOK, f"gave the code {finding.code!r:.80}"
                )
    return found


def set_dynamic_options(providers: ProviderSession, options: Mapping[str, str]) -> None:
    """Give each EP the options that it declares; one that declares none gets all, and
    checks them itself.

    Raises:
        NotImplementedByProvider: no EP of the session takes dynamic options.
        InvalidArgument: they are not a mapping of texts; no EP has such an option, or a
            value is not allowed.
        PluginError: an EP failed.
    """
    _check_texts(options)
    takers = [
        ep
        for ep in providers.instances.names
        if providers.instances.implements(ep, _DYNAMIC)
    ]
    if not takers:
        raise NotImplementedByProvider(
            "no EP of this session takes dynamic options.",
            hint="Its EPs: "
            f"{', '.join(providers.instances.names) or 'the CPU EP alone'}.",
        )

    declared = {
        ep: {o.name: o for o in providers.choices[ep].cls.dynamic_options}
        for ep in takers
    }
    known = sorted({name for own in declared.values() for name in own})
    for key in options if all(declared.values()) else ():
        if key not in known:
            raise InvalidArgument(
                "no EP of this session has the dynamic option "
                f"{key!r}.{suggestion(key, known)}",
                hint=f"Those of {', '.join(declared)}: {', '.join(known)}.",
            )

    # All are checked before any EP gets one.
    for ep, own in declared.items():
        for key in own.keys() & options.keys():
            own[key].parse(ep, options[key])
    for ep, own in declared.items():
        part = {key: value for key, value in options.items() if not own or key in own}
        try:
            if part:
                providers.instances.call(ep, _DYNAMIC, options=part)
        except PluginError as error:
            if not isinstance(error.__cause__, ValueError):
                raise
            # The contract has an EP raise this for an option that it does not take.
            raise InvalidArgument(
                f"{ep} refuses the dynamic options: {error.__cause__}",
                ep=ep,
                hint=f"Given were {sorted(part)}.",
            ) from error


def _check_texts(options: object) -> None:
    """Check that dynamic options are a mapping of texts, which is not empty."""
    items = options.items() if isinstance(options, Mapping) else ()

    # Without the values, which may be secret.
    faults = [
        f"{key!r:.80} of type {type(key).__name__} has a value of type "
        f"{type(value).__name__}"
        for key, value in items
        if not (isinstance(key, str) and isinstance(value, str))
    ]
    if faults or not items:
        fault = (
            faults[0]
            if faults
            else f"this is an object of type {type(options).__name__}"
        )
        raise InvalidArgument(
            "dynamic options are a mapping that is not empty, in which key and "
            f"value must be text: {fault}.",
            hint='Give text, such as {"ep.dynamic.workload_type": "Efficient"}.',
        )


_MOST_SEVERE = 4
_NO_TELEMETRY = "epctx collects nothing"


def get_device() -> str:
    """Return "CPU": EPs choose their devices themselves."""
    return "CPU"


def get_all_providers() -> list[str]:
    """Return the EPs of all installed plugins, usable or not, the CPU EP last; imports
    no plugin.
    """
    return [*dict.fromkeys(record.name for record in plugins()), CPU_EP]


def get_version_string() -> str:
    """Return epctx's version."""
    return __version__


def set_default_logger_severity(severity: int) -> None:
    """Set the level of the logger `epctx`.

    Args:
        severity: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.

    Raises:
        InvalidArgument: it is another number.
    """
    if not is_whole(severity) or not 0 <= severity <= _MOST_SEVERE:
        raise InvalidArgument(
            f"a logger's severity is 0 to {_MOST_SEVERE}, not {severity!r:.80}."
        )
    # Levels of Python are the tens from DEBUG to CRITICAL.
    logging.getLogger("epctx").setLevel(logging.DEBUG * (int(severity) + 1))


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accept onnxruntime's finer level of verbose logs, which epctx does not have.

    Raises:
        InvalidArgument: it is not a whole number.
    """
    if not is_whole(verbosity):
        raise InvalidArgument(
            f"a logger's verbosity is a whole number, not {verbosity!r:.80}."
        )
    log_without_effect(
        "set_default_logger_verbosity",
        "the levels of the logger 'epctx' are all there are",
    )


def enable_telemetry_events() -> None:
    """Do nothing; epctx collects nothing."""
    log_without_effect("enable_telemetry_events", _NO_TELEMETRY)


def disable_telemetry_events() -> None:
    """Do nothing; epctx collects nothing."""
    log_without_effect("disable_telemetry_events", _NO_TELEMETRY)


def set_seed(seed: int) -> None:
    """Set the seed from which sessions that are made later draw random numbers on the
    engine.

    Raises:
        InvalidArgument: it is not a whole number.
    """
    if not is_whole(seed):
        raise InvalidArgument(f"a seed is a whole number, not {seed!r:.80}.")
    from epctx_core.engines.cpu_engine import load_engine_class

    engine = load_engine_class()
    if not engine.set_seed(seed):
        log_without_effect("set_seed", f"the engine {engine.name} has no seed")
