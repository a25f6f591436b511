"""The exit codes: the one table of what a script may rely on.

Knows the errors, and nothing of commands.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

from epctx_core import errors


class ExitCode(IntEnum):
    """Exit code of a command."""

    DONE = 0
    """The command did what it was asked to."""
    FAILED = 1
    """A check or comparison failed, or a sound model failed while it was compiled or run."""
    USAGE = 2
    """Wrong usage or bad input: an option, a model, a file, a folder to write to."""
    PLUGIN = 3
    """A plugin or package is missing or broken."""
    INTERRUPTED = 130
    """Ctrl-C: what a shell gives for a process that SIGINT ended."""


CODES: dict[type[errors.EpctxError], ExitCode] = {
    errors.InvalidArgument: ExitCode.USAGE,
    errors.NoSuchFile: ExitCode.USAGE,
    errors.InvalidProtobuf: ExitCode.USAGE,
    errors.InvalidGraph: ExitCode.USAGE,
    errors.ModelRequiresCompilation: ExitCode.USAGE,
    errors.PackageMissing: ExitCode.PLUGIN,
    errors.NotFound: ExitCode.USAGE,
    errors.NotImplementedByProvider: ExitCode.PLUGIN,
    errors.PluginError: ExitCode.PLUGIN,
    errors.EPFail: ExitCode.PLUGIN,
    errors.RuntimeException: ExitCode.FAILED,
    errors.ModelLoadCanceled: ExitCode.FAILED,
    errors.InternalError: ExitCode.FAILED,
    errors.Fail: ExitCode.FAILED,
}
"""A `Fail` about a place to write to is USAGE: see `exit_code`."""


def exit_code(error: errors.EpctxError, *, model: str | None = None) -> ExitCode:
    """Return the exit code for an error.

    Args:
        error: what ended the command.
        model: the command's input. A `Fail` that names another path is about the output (it exists,
            belongs to another model, or is not writable), which the user chose.
    """
    named = error.path if isinstance(error, errors.Fail) else None
    if named is not None and (model is None or Path(named) != Path(model)):
        return ExitCode.USAGE
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), ExitCode.FAILED)
