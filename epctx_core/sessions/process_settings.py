"""Functions of module `onnxruntime` that concern the whole process, by its names and arguments."""

from __future__ import annotations

import logging

from epctx_core._version import __version__
from epctx_core.errors import InvalidArgument
from epctx_core.options.choices import CPU_EP, is_whole
from epctx_core.options.strict import tell_without_effect
from epctx_core.registry.default import plugins

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_NO_TELEMETRY = "epctx collects nothing"


def get_device() -> str:
    """Return "CPU": EPs choose their devices themselves."""
    return "CPU"


def get_all_providers() -> list[str]:
    """Return the EPs of all installed plugins, usable or not, the CPU EP last; imports no plugin."""
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
    if not is_whole(severity) or not 0 <= severity < len(_LEVELS):
        raise InvalidArgument(f"a logger's severity is 0 to {len(_LEVELS) - 1}, not {severity!r:.80}.")
    logging.getLogger("epctx").setLevel(_LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accept onnxruntime's finer level of verbose logs, which epctx does not have.

    Raises:
        InvalidArgument: it is not a whole number.
    """
    if not is_whole(verbosity):
        raise InvalidArgument(f"a logger's verbosity is a whole number, not {verbosity!r:.80}.")
    tell_without_effect("set_default_logger_verbosity", "the levels of the logger 'epctx' are all there are")


def enable_telemetry_events() -> None:
    """Accept the wish; epctx collects nothing."""
    tell_without_effect("enable_telemetry_events", _NO_TELEMETRY)


def disable_telemetry_events() -> None:
    """Accept the wish; epctx collects nothing."""
    tell_without_effect("disable_telemetry_events", _NO_TELEMETRY)


def set_seed(seed: int) -> None:
    """Set the seed from which sessions that are made later draw random numbers on the engine.

    Raises:
        InvalidArgument: it is not a whole number.
    """
    if not is_whole(seed):
        raise InvalidArgument(f"a seed is a whole number, not {seed!r:.80}.")
    from epctx_core.engines.cpu_engine import engine_class

    engine = engine_class()
    if not engine.set_seed(seed):
        tell_without_effect("set_seed", f"the engine {engine.name} has no seed")
