"""From arguments to an exit code: finds the command, loads it, and turns what it raises into one block.

A command is a module of `epctx_cli.commands` with `add_arguments(parser)` and
`run(arguments, console)`; only the one that was asked for is imported.
"""

from __future__ import annotations

import argparse
import logging
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from types import MappingProxyType
from typing import Any

from epctx_cli.arguments import CommandParser, add_verbose
from epctx_cli.console import Console
from epctx_cli.exit_codes import DONE, FAILED, INTERRUPTED, USAGE, exit_code
from epctx_cli.streams import UnwritableError
from epctx_core._version import __version__
from epctx_core.errors import EpctxError, InvalidArgument, PluginError, concealed, internal_error, suggestion

COMMANDS = MappingProxyType(
    {
        "compile": "write a context model that carries compiled work",
        "share": "compile several models that share weights into context models with one binary",
        "run": "run a model, plain or compiled, and describe its outputs",
        "inspect": "show what is in a context model, without loading it",
        "verify": "check a context model and its payloads in full, without a device",
        "explain": "show which EP would take which node, and why the others are refused",
        "compare": "run two models on the same inputs and say where they differ",
        "convert": "write a model in ONNX Runtime's own format (.ort), or such a one as ONNX",
        "cache": "list, check and clear what load_or_compile keeps",
        "plugins": "list, describe and check the installed Execution Providers, or begin a new one",
        "doctor": "look at the environment and the plugins, and say what to fix",
    }
)
"""Name to summary; the module has the same name."""


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code; raises nothing."""
    # Until the arguments are understood, a flag anywhere counts.
    console = Console(as_json="--json" in argv, verbose="-v" in argv or "--verbose" in argv)
    code = DONE
    try:
        with _stdout_for(console):
            code = _guarded(argv, console)
        console.finish()
    except UnwritableError as error:
        console.error(f"standard output could not be written: {error}.")
        return code or USAGE
    return code


def _stdout_for(console: Console) -> AbstractContextManager[None]:
    if not console.as_json:
        return nullcontext()
    from epctx_cli.stdout_guard import reserved_stdout

    return reserved_stdout()


def _guarded(argv: list[str], console: Console) -> int:
    model: str | None = None
    try:
        with _logged(console):
            arguments = _parse(argv)
            if isinstance(arguments, int):
                return arguments
            model = getattr(arguments, "model", None)
            code: int = arguments.run(arguments, console)
            return code
    except EpctxError as error:
        _show(error, console)
        return exit_code(error, model=model)
    except KeyboardInterrupt:
        console.error("interrupted.")
        return INTERRUPTED
    except UnwritableError:
        raise
    except MemoryError as error:
        return _out_of_memory(error, console)
    except Exception as error:  # noqa: BLE001 - a user must never meet a traceback that was not asked for
        unforeseen = internal_error("the command", error)
        unforeseen.__cause__ = error
        _show(unforeseen, console)
        return exit_code(unforeseen)


def _parse(argv: list[str]) -> argparse.Namespace | int:
    """Return the parsed arguments, or an exit code if there is nothing to run."""
    name = next((argument for argument in argv if not argument.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        raise InvalidArgument(
            f"there is no command {name!r}.{suggestion(name, COMMANDS)}",
            hint=f"Commands: {', '.join(COMMANDS)}.",
        )
    parser = _parser(name)
    try:
        arguments, extras = parser.parse_known_args(argv)
    except SystemExit as stop:  # --help and --version have printed
        return stop.code if isinstance(stop.code, int) else DONE
    chosen: CommandParser = getattr(arguments, "parser", parser)
    chosen.take_rest(arguments, extras)
    if not hasattr(arguments, "run"):
        raise InvalidArgument("a command is missing.", hint=f"{chosen.format_help().rstrip()}")
    return arguments


def _parser(name: str | None) -> CommandParser:
    """Return the parser; of the commands only the one asked for has its options."""
    parser = CommandParser(
        prog="epctx",
        description="Compile ONNX models into context models, inspect, run and compare them.",
        epilog="Exit codes: 0 done; 1 a check failed; 2 wrong usage or bad input; 3 a plugin is missing or broken.",
    )
    parser.add_argument("--version", action="version", version=f"epctx {__version__}")
    add_verbose(parser, default=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=False)
    for command, summary in COMMANDS.items():
        own = commands.add_parser(command, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if command == name:
            import_module(f"epctx_cli.commands.{command}").add_arguments(own)
    return parser


def _show(error: EpctxError, console: Console) -> None:
    """Print an error as one block, and keep it as the result."""
    lines = [error.message.rstrip(), *_where(error)]
    if error.hint:
        lines.append(error.hint)
    if console.verbose:
        lines += ["", concealed("".join(traceback.format_exception(error)).rstrip())]
    console.error("\n".join(lines))
    fields = {
        name: str(value) for name in ("node", "ep", "path") if (value := getattr(error, name)) is not None
    }
    console.result(
        {"error": {"code": error.code.name, "message": error.message, "hint": error.hint, **fields}}
    )


def _where(error: EpctxError) -> Iterator[str]:
    """Yield where it happened, as far as the message does not say so itself."""
    known: dict[str, Any] = {"node": error.node, "EP": error.ep, "file": error.path}
    if isinstance(error, PluginError):
        known["plugin"] = error.distribution
    for label, value in known.items():
        if value and str(value) not in error.message:
            yield f"{label}: {value}"


def _out_of_memory(error: MemoryError, console: Console) -> int:
    message = "there is not enough memory for this."
    if console.verbose:
        message += "\n\n" + "".join(traceback.format_exception(error)).rstrip()
    console.error(message)
    console.result({"error": {"code": "INTERNAL", "message": str(error), "hint": None}})
    return FAILED


class _ToConsole(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as a warning, or as what only `-v` shows."""
        say = self._console.warn if record.levelno >= logging.WARNING else self._console.debug
        say(record.getMessage())


@contextmanager
def _logged(console: Console) -> Iterator[None]:
    """Show what the core and the EPs log while the command runs."""
    logger = logging.getLogger("epctx")
    handler = _ToConsole(console)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if console.verbose else logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
