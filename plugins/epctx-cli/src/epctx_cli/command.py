"""Names for commands of other packages.

A package adds a command to `epctx` by an entry point of the group `epctx.commands`: its
name is the command's, its value `module:function`. The function gets the command's
`CommandParser`, declares arguments, and sets `run`:

    def add_arguments(parser: CommandParser) -> None:
        parser.description = "Measure how long a model takes."
        parser.add_argument("model", metavar="MODEL", help="the model to measure")
        add_common(parser)
        parser.set_defaults(run=run)

    def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
        console.table(("model", "size"), [(arguments.model, byte_size(1 << 20))])
        console.result({"model": arguments.model, "bytes": 1 << 20})
        return ExitCode.DONE

An error of `epctx_core.errors` becomes a message and the exit code that `epctx docs
errors` lists; any other exception is reported as a fault of the package, with exit code
3.
"""

from __future__ import annotations

from epctx_cli.arguments import (
    CommandParser,
    add_common,
    add_config,
    add_providers,
    provider_options,
    require_plugin,
    session_options,
    whole_number,
)
from epctx_cli.console import Console
from epctx_cli.exit_codes import ExitCode
from epctx_cli.text import byte_size, count_nodes, counted

__all__ = [
    "CommandParser", "Console", "ExitCode", "add_common", "add_config", "add_providers",
    "byte_size", "count_nodes", "counted", "provider_options", "require_plugin",
    "session_options", "whole_number",
]  # fmt: skip
