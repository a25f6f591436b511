"""`epctx plugins new`: begins a plugin from the template."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from epctx_cli.arguments import CommandParser, add_common
from epctx_cli.exit_codes import DONE

if TYPE_CHECKING:
    from epctx_cli.console import Console


def add_arguments(parser: CommandParser) -> None:
    """Declare the action's options."""
    parser.add_argument("name", metavar="NAME", help="what it is called: acme gives the package epctx-acme")
    parser.add_argument(
        "-o", "--output", metavar="DIR", default=".", help="the folder to make it in (default: this one)"
    )
    add_common(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Write the package, and say how to go on."""
    from epctx_cli.templates import create_plugin

    plugin = create_plugin(arguments.name, arguments.output)
    names = plugin.names
    console.say(f"{names.distribution}: {names.ep}, which works as it is, on the core's CPU kernels.")
    console.say()
    console.tree(f"{plugin.folder}/", [(name,) for name in plugin.files])
    console.say()
    console.say("Next:")
    folder = shlex.quote(str(plugin.folder))
    console.say(f"  python -m pip install --editable {shlex.quote(f'{plugin.folder}[test]')}")
    console.say(f"  epctx plugins check {names.camel}")
    console.say(f"  python -m pytest {folder}")
    console.say(f"{plugin.folder / 'README.md'} says how to get from there to your device.")
    console.result(
        {
            "folder": str(plugin.folder),
            "distribution": names.distribution,
            "module": names.module,
            "ep": names.ep,
            "files": list(plugin.files),
        }
    )
    return DONE
