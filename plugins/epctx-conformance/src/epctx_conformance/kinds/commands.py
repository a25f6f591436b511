"""Checks of a command of `epctx`: an entry point of the group `epctx.commands`.

The command runs as users run it, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cached_property
from io import StringIO
from typing import TYPE_CHECKING, Any

from epctx_conformance.kinds.finding import COMMANDS
from epctx_conformance.kinds.kit import Kit
from epctx_conformance.table import CheckFailed, Skipped
from epctx_core.ext import find_entry, import_installed

if TYPE_CHECKING:
    from epctx_cli.command import CommandParser
    from importlib_metadata import EntryPoint

    from epctx_conformance.report import CheckResult, ConformanceReport

KIT = Kit("command", ("import", "arguments", "process"))
_SECONDS = 60
_UNKNOWN = "--no-option-has-this-name"


class CommandSubject:
    """Command under test.

    Attributes:
        entry: its entry point.
        arguments: those with which it runs; None if nobody said.
        cli: the module `epctx_cli.command`, on which commands are written.
    """

    def __init__(self, entry: EntryPoint, arguments: Sequence[str] | None) -> None:
        self.entry = entry
        self.arguments = arguments
        self.cli: Any = import_installed(
            "epctx_cli.command", needed_by="a check of a command"
        )

    @cached_property
    def parser(self) -> CommandParser:
        """Parser in which the command declared its arguments."""
        return self.declare()

    def declare(self) -> CommandParser:
        """Return a new parser in which the command declared its arguments."""
        parser: CommandParser = self.cli.CommandParser(prog=f"epctx {self.entry.name}")
        self.entry.load()(parser)
        return parser

    @property
    def actions(self) -> list[argparse.Action]:
        """Its arguments without `--help`."""
        return [
            action
            for action in self.parser._actions  # noqa: SLF001 - argparse has no public name for it
            if not isinstance(action, argparse._HelpAction)  # noqa: SLF001
        ]

    @property
    def has_json(self) -> bool:
        """True if it declares `--json`, as `add_common` does."""
        return any("--json" in action.option_strings for action in self.actions)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it in a process of its own."""
        return subprocess.run(  # noqa: S603 - this interpreter, and the command under test
            [sys.executable, "-m", "epctx_core", self.entry.name, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )

    def run_as_given(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run it with the arguments that were given; Skipped if it needs some and none
        were.
        """
        if self.arguments is not None:
            return self.run(*self.arguments, *options)
        if needed := [a.dest for a in self.actions if a.required]:
            raise Skipped(
                f"it needs arguments ({', '.join(needed)}); give them with --argument"
            )
        return self.run(*options)


def check_command(
    name: str,
    *,
    arguments: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    progress: Callable[[CheckResult], None] | None = None,
) -> ConformanceReport:
    """Check a command of `epctx` that an installed package has.

    Args:
        name: the command's, or `<distribution>:<name>`.
        arguments: those with which it ends without an error; None for none, and then a
            command that needs some is not run.
        only: groups or names of checks; None for all.
        progress: called with each result.

    Returns:
        One result for each check; an error of the command is a check that failed.

    Raises:
        PackageMissing: no installed package has it, or epctx-cli is missing.
        InvalidArgument: several packages have it.
        ValueError: an unknown name in `only`.
    """
    subject = CommandSubject(find_entry(COMMANDS, name, "command"), arguments)
    return KIT.run(subject, subject.entry.name, only=only, progress=progress)


# -- import
# --------------------------------------------------------------------------------------


@KIT.check("import", "it can be imported, and writes nothing")
def _can_be_imported(subject: CommandSubject) -> None:
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        declare = subject.entry.load()
        if not callable(declare):
            raise CheckFailed(
                f"{subject.entry.value} is a {type(declare).__name__} and not the "
                "function that declares arguments."
            )
        subject.declare()
    if written := out.getvalue() + err.getvalue():
        raise CheckFailed(
            f"it writes {written[:80]!r} before it runs, which would be in the output "
            "of `--help` and of `--json`."
        )


# -- arguments
# --------------------------------------------------------------------------------------


@KIT.check("arguments", "it has a description")
def _has_a_description(subject: CommandSubject) -> None:
    if not (subject.parser.description or "").strip():
        raise CheckFailed(
            "its --help does not say what it does.",
            hint='Set parser.description = "Measure how long a model takes."',
        )


@KIT.check("arguments", "each argument has a help text")
def _describes_arguments(subject: CommandSubject) -> None:
    for action in subject.actions:
        if not (action.help or "").strip():
            name = "/".join(action.option_strings) or action.dest
            raise CheckFailed(
                f"the argument {name} has no help text.",
                hint="add_argument(..., help=...) says what it means.",
            )


@KIT.check("arguments", "it sets the function that runs it")
def _sets_run(subject: CommandSubject) -> None:
    if not callable(subject.parser.get_default("run")):
        raise CheckFailed(
            "it does not set `run`, so that there is nothing to call.",
            hint="parser.set_defaults(run=run), where run(arguments, console) returns "
            "an exit code.",
        )


# -- process
# --------------------------------------------------------------------------------------


@KIT.check("process", "--help prints its arguments")
def _prints_help(subject: CommandSubject) -> None:
    done = subject.run("--help")
    if done.returncode or done.stderr:
        raise CheckFailed(
            f"--help ends with the exit code {done.returncode} and says "
            f"{_find_last_line(done)!r}.",
            hint="A `%` in a help text is written `%%`.",
        )
    options = [option for a in subject.actions for option in a.option_strings]
    if missing := [each for each in options if each not in done.stdout]:
        raise CheckFailed(
            f"--help does not list {', '.join(missing)}: `epctx {subject.entry.name}` "
            "is another command.",
            hint="A command of epctx's own goes before one of its name.",
        )


@KIT.check("process", "an unknown option is wrong usage")
def _refuses_options(subject: CommandSubject) -> None:
    done = subject.run(_UNKNOWN)
    usage = subject.cli.ExitCode.USAGE
    if done.returncode != usage:
        raise CheckFailed(
            f"an option that it does not have ends with the exit code "
            f"{done.returncode} instead of {int(usage)}: "
            f"{_find_last_line(done)!r}."
        )


@KIT.check("process", "it runs, and ends with an exit code of epctx")
def _runs(subject: CommandSubject) -> None:
    done = subject.run_as_given()
    _expect_success(subject, done)
    if not done.stdout.strip():
        raise CheckFailed("it prints no report.", hint="Use console.say or .table.")


@KIT.check("process", "with --json it prints one JSON object")
def _prints_json(subject: CommandSubject) -> None:
    if not subject.has_json:
        raise Skipped("it does not declare --json; add_common does")
    done = subject.run_as_given("--json")
    _expect_success(subject, done)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise CheckFailed(
            f"with --json it prints {done.stdout[:80]!r} and not one JSON object.",
            hint="Print nothing: console.say writes for people, and console.result "
            "makes the object.",
        )
    if not answer.keys() - {"schema"}:
        raise CheckFailed(
            "with --json it prints an object without content.",
            hint="Call console.result({...}) with what the report says.",
        )


def _expect_success(
    subject: CommandSubject, done: subprocess.CompletedProcess[str]
) -> None:
    codes = subject.cli.ExitCode
    # A check that failed is a result, too.
    if done.returncode not in (codes.DONE, codes.FAILED):
        raise CheckFailed(
            f"it ends with the exit code {done.returncode}: {_find_last_line(done)!r}.",
            hint="Give the arguments of a run that succeeds with --argument.",
        )
    if done.returncode == codes.FAILED and "error:" in done.stderr:
        raise CheckFailed(f"it fails: {_find_last_line(done)!r}.")


def _find_last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines: list[Any] = (done.stderr or done.stdout).strip().splitlines() or [""]
    return str(lines[0])
