"""Exit codes of all commands."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

from epctx_core import errors


class ExitCode(IntEnum):
    """Exit code of a command."""

    DONE = 0
    """The command did what it was asked to."""
    FAILED = 1
    """A check or comparison failed, or a sound model failed while it was compiled or
    run.
    """
    USAGE = 2
    """Wrong usage or bad input: an option, a model, a file, a folder to write to."""
    PLUGIN = 3
    """A plugin or package is missing or broken."""
    INTERRUPTED = 130
    """Ctrl-C: what a shell gives for a process that SIGINT ended."""


_PLUGIN = (
    errors.PackageMissing,
    errors.NotImplementedByProvider,
    errors.PluginError,
    errors.EPFail,
)
_USAGE = (
    errors.InvalidArgument,
    errors.NoSuchFile,
    errors.InvalidProtobuf,
    errors.InvalidGraph,
    errors.ModelRequiresCompilation,
    errors.NotFound,
)


def exit_code(error: errors.EpctxError, *, model: str | None = None) -> ExitCode:
    """Return the exit code for an error.

    Args:
        error: what ended the command.
        model: the command's input. A `Fail` that names another path is about the output
            (it exists, belongs to another model, or is not writable), which the user
            chose.
    """
    named = error.path if isinstance(error, errors.Fail) else None
    if named is not None and (model is None or Path(named) != Path(model)):
        return ExitCode.USAGE
    if isinstance(error, _PLUGIN):
        return ExitCode.PLUGIN
    return ExitCode.USAGE if isinstance(error, _USAGE) else ExitCode.FAILED
