"""`epctx plugins`: what is installed and in what state."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from epctx_core.cli.arguments import CommandParser, add_common
from epctx_core.cli.exit_codes import DONE

if TYPE_CHECKING:
    from epctx_core.cli.console import Console
    from epctx_core.registry.records import PluginRecord


def add_arguments(parser: CommandParser) -> None:
    """Declare the actions and their options."""
    parser.set_defaults(parser=parser)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list",
        help="list installed plugins",
        description="List installed plugins. Without --load none is imported.",
    )
    listing.add_argument(
        "--load", action="store_true", help="try each one in a process of its own, and say what came of it"
    )
    add_common(listing)
    listing.set_defaults(run=run_list, parser=listing)


def run_list(arguments: argparse.Namespace, console: Console) -> int:
    """List the plugins."""
    from epctx_core.registry.default import plugins

    records = plugins()
    if arguments.load:
        from epctx_core.cli.trial import try_all

        records = try_all(records, tell=console.debug)
    _tell(records, loaded=arguments.load, console=console)
    console.result({"plugins": [record.as_dict() for record in records]})
    return DONE


def _tell(records: list[PluginRecord], *, loaded: bool, console: Console) -> None:
    if not records:
        console.say("No plugin is installed. Plugins are pip packages with the entry-point group")
        console.say("epctx.execution_providers; the CPU EP is built in.")
        return
    console.table(
        ("EP", "sources", "distribution", "version", "state"),
        [
            (r.name, ", ".join(r.sources), r.distribution or "-", r.version or "-", r.state.value)
            for r in records
        ],
    )
    explained = [r for r in records if r.reason]
    if explained:
        console.say()
    for record in explained:
        console.say(f"{record.label}: {record.reason}")
    if not loaded and any(r.state.value == "discovered" for r in records):
        console.say()
        console.say("discovered: installed, not imported yet; `epctx plugins list --load` tries each one.")
