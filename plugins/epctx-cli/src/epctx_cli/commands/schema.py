"""`epctx schema`: print the JSON Schemas of what commands print with `--json`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING

from epctx_cli.arguments import CommandParser, add_common
from epctx_cli.command_table import OWN
from epctx_cli.exit_codes import ExitCode
from epctx_cli.results import SchemaResult
from epctx_core.errors import InvalidArgument, suggestion
from epctx_core.ext import import_installed

if TYPE_CHECKING:
    from epctx_cli.console import Console

ERROR = "error"
"""Name of the schema of what any command prints if it fails."""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx schema`."""
    parser.epilog = (
        f"`{ERROR}` is what any command prints if it fails. `epctx docs json` lists "
        "the keys of all."
    )
    parser.add_argument(
        "words",
        metavar="COMMAND",
        nargs="*",
        help="the command, such as compile or cache ls (default: list all)",
    )
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print one schema, or the list."""
    if not arguments.words:
        commands = list(_list_commands())
        for command in commands:
            console.say(command)
        console.result(SchemaResult(commands=commands))
        return ExitCode.DONE

    command = " ".join(arguments.words)
    schema = json.loads(_find_text(command))
    console.say(json.dumps(schema, indent=2), wrap=False)
    console.result(SchemaResult(commands=[command], definition=schema))
    return ExitCode.DONE


def _list_commands() -> Iterator[str]:
    """Yield the commands of installed packages that have a schema."""
    yield ERROR
    for command in OWN:
        if command.target and find_spec(_find_module(command.target)):
            yield command.name


def _find_module(target: str) -> str:
    return target.partition(".")[0]


def _find_text(command: str) -> str:
    """Return the text of a command's schema.

    Raises:
        InvalidArgument: there is no such command, or it is a group of commands.
        PackageMissing: its package is not installed.
    """
    targets = {each.name: each.target for each in OWN if each.target}
    targets[ERROR] = __name__
    if command not in targets:
        actions = [name for name in targets if name.startswith(f"{command} ")]
        raise InvalidArgument(
            f"there is no schema of {command!r}.{suggestion(command, targets)}",
            hint=f"Name one of {', '.join(actions)}."
            if actions
            else "`epctx schema` lists the commands that have one.",
        )
    module = _find_module(targets[command])
    import_installed(module, needed_by=f"`epctx {command}`")
    name = f"{command.replace(' ', '-')}.schema.json"
    return files(module).joinpath("schemas", name).read_text("utf-8")
