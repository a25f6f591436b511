"""Functions of onnxruntime about the log and telemetry of a process that `epctx_core`
has, too.
"""

from __future__ import annotations

import logging
from functools import cache

from epctx_core.errors import InvalidArgument

_MOST_SEVERE = 4
_log = logging.getLogger("epctx.options")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@cache
def log_without_effect(setting: str, reason: str) -> None:
    """Log, once in a process, that a setting is accepted and has no effect."""
    _log.info("%s is accepted and has no effect: %s.", setting, reason)


def set_default_logger_severity(severity: int) -> None:
    """Set the level of the logger `epctx`.

    Args:
        severity: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.

    Raises:
        InvalidArgument: it is another number.
    """
    if not _is_whole(severity) or not 0 <= severity <= _MOST_SEVERE:
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
    if not _is_whole(verbosity):
        raise InvalidArgument(
            f"a logger's verbosity is a whole number, not {verbosity!r:.80}."
        )
    log_without_effect(
        "set_default_logger_verbosity",
        "the levels of the logger 'epctx' are all there are",
    )


def enable_telemetry_events() -> None:
    """Have onnxruntime send its events again; epctx itself collects nothing.

    Where epctx has imported onnxruntime, its telemetry stays off: only the environment
    variable `ORT_DISABLE_TELEMETRY=0` turns that on.
    """
    from epctx_onnxruntime.real import onnxruntime

    onnxruntime.enable_telemetry_events()


def disable_telemetry_events() -> None:
    """Have onnxruntime send no more events; epctx itself collects nothing."""
    from epctx_onnxruntime.real import onnxruntime

    onnxruntime.disable_telemetry_events()
