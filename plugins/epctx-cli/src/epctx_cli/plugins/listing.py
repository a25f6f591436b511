"""`epctx plugins list`: what is installed and in what state."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_cli.arguments import CommandParser, add_common
from epctx_cli.exit_codes import DONE

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_core.registry.records import PluginRecord, RecordKey


def add_arguments(parser: CommandParser) -> None:
    """Declare the action's options."""
    parser.add_argument(
        "--load", action="store_true", help="try each one in a process of its own, and say what came of it"
    )
    add_common(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """List the plugins."""
    from epctx_core.registry.default import plugins

    records = plugins()
    vendors: dict[RecordKey, str] = {}
    if arguments.load:
        from epctx_cli.plugins.trial import try_all

        trials = try_all(records, tell=console.debug)
        records = [trial.record for trial in trials]
        vendors = {trial.record.key: trial.description["vendor"] for trial in trials if trial.description}
    _tell(records, vendors, loaded=arguments.load, console=console)
    console.result({"plugins": [{**r.as_dict(), "vendor": vendors.get(r.key)} for r in records]})
    return DONE


def _tell(
    records: Sequence[PluginRecord], vendors: Mapping[RecordKey, str], *, loaded: bool, console: Console
) -> None:
    if not records:
        console.say("No plugin is installed. Plugins are pip packages with the entry-point group")
        console.say("epctx.execution_providers; the CPU EP is built in.")
        return
    header = ("EP", "distribution", "version", "state", *(["vendor"] if any(vendors.values()) else []))
    console.table(header, [_row(record, vendors)[: len(header)] for record in records])
    _tell_sources(records, console)
    explained = [r for r in records if r.reason]
    if explained:
        console.say()
    for record in explained:
        console.say(f"{record.label}: {record.reason}")
    if not loaded and any(r.state.value == "discovered" for r in records):
        console.say()
        console.say("discovered: installed, not imported yet; `epctx plugins list --load` tries each one.")


def _row(record: PluginRecord, vendors: Mapping[RecordKey, str]) -> tuple[str, ...]:
    vendor = vendors.get(record.key) or "-"
    state = f"{record.state.value}, simulated" if record.simulated else record.state.value
    return record.name, record.distribution or "-", record.version or "-", state, vendor


def _tell_sources(records: Sequence[PluginRecord], console: Console) -> None:
    """Name the source keys that are no EP types: those are found by their own names anyway."""
    further = [
        (r.name, ", ".join(s for s in r.sources if s != r.name)) for r in records if len(r.sources) > 1
    ]
    if further:
        console.say()
    for name, sources in further:
        console.say(f"{name} also takes nodes whose source is {sources}.")
