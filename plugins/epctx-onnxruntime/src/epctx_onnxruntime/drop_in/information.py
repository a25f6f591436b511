"""Facts of the installation, and the log and threads of all sessions, by onnxruntime's
names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from epctx_core import __version__, plugins
from epctx_core.errors import InvalidArgument
from epctx_onnxruntime.drop_in import process
from epctx_onnxruntime.drop_in.errors import with_native_errors
from epctx_onnxruntime.real import onnxruntime
from epctx_onnxruntime.versions import share_threads

_LEVELS = (
    logging.DEBUG,
    logging.INFO,
    logging.WARNING,
    logging.ERROR,
    logging.CRITICAL,
)
"""Python's level of each severity of onnxruntime, from verbose to fatal."""
_log = logging.getLogger("epctx")

set_default_logger_severity = with_native_errors(process.set_default_logger_severity)
set_default_logger_verbosity = with_native_errors(process.set_default_logger_verbosity)


def get_build_info() -> str:
    """Return the versions of epctx and of the EPs, and onnxruntime's build."""
    eps = ", ".join(f"{record.name} {record.version}" for record in plugins())
    return f"epctx {__version__} (EPs: {eps or 'none'}), {onnxruntime.get_build_info()}"


def print_debug_info() -> None:
    """Print what onnxruntime prints, and the EPs; `epctx doctor` checks them."""
    onnxruntime.print_debug_info()
    lines = (
        f"  {record.label}: {record.state.value} {record.reason}".rstrip()
        for record in plugins()
    )
    print(f"\nepctx {__version__}", *lines, sep="\n")  # noqa: T201 - it is its purpose


class _CallbackHandler(logging.Handler):
    """Handler that gives records of the logger `epctx` to a host's function."""

    def __init__(self, callback: Callable[[int, str, str, str, str], object]) -> None:
        super().__init__()
        self._callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        severity = max(
            index for index, level in enumerate(_LEVELS) if record.levelno >= level
        )
        place = f"{record.filename}:{record.lineno} {record.funcName}"
        self._callback(severity, record.name, "", place, record.getMessage())


@with_native_errors
def set_default_logger_callback(
    callback: Callable[[int, str, str, str, str], object] | None, severity: int = 2
) -> None:
    """Have a function get the messages of epctx and of onnxruntime.

    Args:
        callback: `f(severity, category, log_id, code_location, message)`; None for no
            function. `category` is the logger's name for messages of epctx.
        severity: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal: the least that it
            gets.

    Raises:
        InvalidArgument: it cannot be called, or the severity is another number.
    """
    if callback is not None and not callable(callback):
        raise InvalidArgument(
            "set_default_logger_callback takes a function or None, not "
            f"{callback!r:.80}."
        )
    if severity not in range(len(_LEVELS)):
        raise InvalidArgument(f"severity must be 0 to 4, not {severity!r:.40}.")
    onnxruntime.set_default_logger_callback(callback, severity)
    for handler in [h for h in _log.handlers if isinstance(h, _CallbackHandler)]:
        _log.removeHandler(handler)
    if callback is not None:
        caller = _CallbackHandler(callback)
        caller.setLevel(_LEVELS[severity])
        _log.addHandler(caller)


def set_global_thread_pool_sizes(
    intra_op_num_threads: int = 0, inter_op_num_threads: int = 0
) -> None:
    """Have the CPU EP run its groups of nodes on threads that all sessions share.

    Args:
        intra_op_num_threads, inter_op_num_threads: their numbers; 0 for one per core.
    """
    share_threads(intra_op_num_threads, inter_op_num_threads)
