"""Run a command line: find the command, load it, and print its error as one block.

Knows no command: they are in `command_table`.
"""

from __future__ import annotations

import argparse
import logging
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from operator import index
from typing import Any

from epctx_cli.arguments import CommandParser, add_verbosity
from epctx_cli.command_table import (
    OWN,
    Command,
    add_commands,
    added_commands,
)
from epctx_cli.console import Console
from epctx_cli.exit_codes import ExitCode, exit_code
from epctx_cli.results import ErrorFacts, ErrorResult
from epctx_cli.streams import UnwritableError, reserved_stdout
from epctx_core import __version__
from epctx_core.errors import (
    EpctxError,
    InternalError,
    InvalidArgument,
    PluginError,
    concealed,
    internal_error,
    one_line,
    suggestion,
)

_DESCRIPTION = (
    "Compile ONNX models into context models; inspect, verify, run and compare them."
)
_OWN = {command.name: command for command in OWN if " " not in command.name}


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code; raises nothing."""
    # Before the arguments are parsed, a flag anywhere counts.
    console = Console(
        as_json="--json" in argv,
        verbose="-v" in argv or "--verbose" in argv,
        quiet="-q" in argv or "--quiet" in argv,
        tracebacks="--traceback" in argv,
    )
    code: int = ExitCode.DONE
    try:
        with reserved_stdout() if console.as_json else nullcontext():
            code = _run_command(argv, console)
        console.finish()
    except UnwritableError as error:
        console.error(f"standard output could not be written: {error}.")
        return code or ExitCode.USAGE
    return code


def _run_command(argv: list[str], console: Console) -> int:
    arguments = argparse.Namespace()
    try:
        with _logging_to(console):
            parsed = _parse(argv, console)
            if isinstance(parsed, int):
                return parsed
            arguments = parsed
            with arguments.parser.blame():
                return index(arguments.run(arguments, console))
    except EpctxError as error:
        _show(error, console)
        return exit_code(error, model=getattr(arguments, "model", None))
    except KeyboardInterrupt:
        console.error("interrupted.")
        facts = ErrorFacts(code="INTERRUPTED", message="interrupted.", hint=None)
        console.result(ErrorResult(error=facts))
        return ExitCode.INTERRUPTED
    except UnwritableError:
        raise
    except Exception as error:  # noqa: BLE001 - a user sees a traceback only with --traceback
        unexpected = internal_error("the command", error)
        if isinstance(error, MemoryError):
            unexpected = InternalError("out of memory.")
        unexpected.__cause__ = error
        _show(unexpected, console)
        return exit_code(unexpected)


def _parse(argv: list[str], console: Console) -> argparse.Namespace | int:
    """Return the parsed arguments, or an exit code if there is nothing to run."""
    if argv[:2] in (["cache", "export"], ["cache", "import"]):
        raise InvalidArgument(
            f"there is no command {' '.join(argv[:2])!r} any more.",
            hint="Machines exchange entries through a shared cache, also one in a "
            "folder: set EPCTX_CACHE_SHARED. See `epctx docs shared-cache`.",
        )
    commands = _OWN.copy()
    name = next((word for word in argv if not word.startswith("-")), None)
    if name not in commands:
        added = [command for command in added_commands() if command.can_be_typed]
        rivals = [f"{c.package} {c.version}" for c in added if c.name == name]
        if len(rivals) > 1:
            raise PluginError(
                f"the command {name!r} is ambiguous: {' and '.join(rivals)} have it.",
                hint="Uninstall all but one of them.",
            )
        commands |= {command.name: command for command in added} | commands
    if name is not None and name not in commands:
        raise InvalidArgument(
            f"unknown command {name!r}.{suggestion(name, commands)}",
            hint=f"Commands: {', '.join(commands)}.",
        )
    parser = _make_parser(commands.values())
    try:
        arguments: argparse.Namespace
        arguments, extras = parser.parse_known_args(argv)
    except SystemExit as stop:  # --help and --version have printed
        return stop.code if isinstance(stop.code, int) else ExitCode.DONE
    chosen: CommandParser = getattr(arguments, "parser", parser)
    chosen.take_rest(arguments, extras)
    if arguments.verbose and arguments.quiet:
        chosen.error("-v and -q exclude each other")
    if not hasattr(arguments, "run"):
        if name is not None and commands[name].version is not None:
            raise commands[name].broken(
                "cannot be run", AttributeError("it set no default `run`")
            )
        _print_start(console)
        return ExitCode.DONE
    return arguments


def _print_start(console: Console) -> None:
    """Print a few commands to start with."""
    from epctx_cli.examples import choose_example

    ep = choose_example() or "QNN"
    lines = {
        "doctor": "",
        "plugins list": "",
        "explain": f" model.onnx --ep {ep}",
        "compile": f" model.onnx --ep {ep}",
        "run": " model_ctx.onnx",
    }
    summaries = {command.name: command.summary for command in OWN}
    console.say(f"epctx {__version__}. {_DESCRIPTION}")
    console.table(
        ("", ""),
        [(f"epctx {name}{rest}", summaries[name]) for name, rest in lines.items()],
        title="To start with:",
    )
    console.say(
        "\n`epctx --help` lists all commands, `epctx COMMAND --help` the options of "
        "one."
    )
    console.say("`epctx docs` lists the pages of the documentation.")


def make_parser() -> CommandParser:
    """Return the parser of all commands, those of other packages too."""
    added = {each.name: each for each in added_commands() if each.can_be_typed}
    return _make_parser((_OWN | added | _OWN).values())


def _make_parser(commands: Iterable[Command]) -> CommandParser:
    parser = CommandParser(
        prog="epctx",
        description=_DESCRIPTION,
        epilog=(
            "Exit codes: 0 done; 1 a check failed; 2 wrong usage or bad input; 3 a "
            "plugin is missing or broken."
        ),
    )
    parser.add_argument("--version", action="version", version=f"epctx {__version__}")
    add_verbosity(parser, default=False)
    add_commands(
        parser,
        commands,
        title="commands",
        metavar="COMMAND",
        required=False,
        help="one of these; `epctx COMMAND --help` lists its options",
    )
    return parser


def _show(error: EpctxError, console: Console) -> None:
    """Print an error as one block, and make it the result."""
    subjects: dict[str, Any] = {
        "node": error.node,
        "EP": error.ep,
        "file": error.path,
    }
    if isinstance(error, PluginError):
        subjects["plugin"] = error.distribution
    lines = [error.message.rstrip()]
    lines += [
        f"{label}: {one_line(str(value))}"
        for label, value in subjects.items()
        if value and str(value) not in lines[0]
    ]
    if error.hint:
        lines.append(error.hint)
    trace = ""
    if console.tracebacks:
        trace = concealed("".join(traceback.format_exception(error)).rstrip())
    console.error("\n".join(lines), traceback=trace)
    subjects = {
        key: str(value)
        for key in ("node", "ep", "path")
        if (value := getattr(error, key)) is not None
    }
    facts = ErrorFacts(
        code=error.code.name, message=error.message, hint=error.hint, **subjects
    )
    console.result(ErrorResult(error=facts))


class _ToConsole(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as a warning, or below that level with `-v` only."""
        say = (
            self._console.warn
            if record.levelno >= logging.WARNING
            else self._console.debug
        )
        say(record.getMessage())


@contextmanager
def _logging_to(console: Console) -> Iterator[None]:
    """Show the log of the core and the EPs while the command runs."""
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
