"""`epctx plugins`: list and describe plugins, and start a new one; `check` is in
epctx-conformance.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from epctx_cli import text
from epctx_cli.arguments import CommandParser, add_common, require_plugin
from epctx_cli.entry_points import (
    EP_GROUP,
    KINDS,
    describe,
    explain_finder,
    find_entries,
    group_by_reason,
)
from epctx_cli.exit_codes import ExitCode
from epctx_cli.plugin_results import (
    EntryDetails,
    EntryFacts,
    LeftOut,
    PluginDetails,
    PluginFacts,
    PluginsInfoResult,
    PluginsListResult,
    PluginsNewResult,
)
from epctx_core import default_registry, plugins
from epctx_core.errors import PluginError
from epctx_core.ext import install_command

if TYPE_CHECKING:
    from importlib_metadata import EntryPoint, IDistribution

    from epctx_cli.console import Console
    from epctx_cli.entry_trial import EntryTrial
    from epctx_cli.plugin_trial import Trial
    from epctx_core import PluginRecord
    from epctx_core.plugin import Availability

_DEEPER = " " * 6
_TYPES = {"bool": "0 or 1", "int": "a whole number", "float": "a number", "str": "text"}


# -- list
# --------------------------------------------------------------------------------------


def add_list_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx plugins list`."""
    parser.epilog = (
        "Without --load, no plugin is imported. Exits with 0 whatever the states are; "
        "see `epctx doctor`."
    )
    parser.add_flag(
        "--load", "load each plugin in a process of its own, and show the result"
    )
    add_common(parser)
    parser.set_defaults(run=list_plugins)


def list_plugins(arguments: argparse.Namespace, console: Console) -> int:
    """List the plugins."""
    records = plugins()
    if arguments.load:
        from epctx_cli.plugin_trial import try_all

        with console.progress("loading each plugin"):
            records = [trial.record for trial in try_all(records, log=console.debug)]
    entries = list(find_entries(EP_GROUP, *(kind.group for kind in KINDS)))
    left_out = _find_left_out(records, entries)
    _print_list(records, console, loaded=arguments.load)
    others = {
        kind.key: [EntryFacts(**each) for each in describe(entries, kind.group)]
        for kind in KINDS
    }
    for kind in KINDS:
        rows = [
            (each.name, each.distribution, each.version) for each in others[kind.key]
        ]
        console.table((kind.label, "distribution", "version"), rows)
    if left_out:
        console.say("\nNot listed, because a package that they need is not installed:")
    for each in left_out:
        console.say(f"  {each.name}:")
        console.say(f"    {each.install}", wrap=False)
    console.result(
        PluginsListResult(
            plugins=[PluginFacts(**record.as_dict()) for record in records],
            left_out=left_out,
            **others,
        )
    )
    return ExitCode.DONE


def _print_list(
    records: Sequence[PluginRecord], console: Console, *, loaded: bool
) -> None:
    if not records:
        console.say(
            "No plugin is installed. Plugins are pip packages with the entry-point "
            "group"
        )
        console.say("epctx.execution_providers; the CPU EP is built in.")
        return
    vendor = ["vendor"] if any(r.vendor for r in records) else []
    header = ("EP", "distribution", "version", "state", *vendor)
    rows = []
    for record in records:
        state = record.state.value
        row = (
            record.name,
            record.distribution or "-",
            record.version or "-",
            f"{state}, simulated" if record.simulated else state,
            record.vendor or "-",
        )
        rows.append(row[: len(header)])
    console.table(header, rows)

    sentences = []
    for record in records:
        # Source keys that are EP names are in the table already.
        more = [source for source in record.sources if source != record.name]
        if len(record.sources) > 1:
            sentences.append(
                f"{record.name} also takes nodes whose source is {', '.join(more)}."
            )
    finders = [*filter(None, map(explain_finder, records))]
    reasons = [
        f"{label}: {group[0].reason}" for label, group in group_by_reason(records)
    ]
    for lines in (sentences, finders, reasons):
        if lines:
            console.say("\n" + "\n".join(lines))
    if not loaded and any(r.state.value == "discovered" for r in records):
        console.say(
            "\ndiscovered: installed, not imported yet; `epctx plugins list --load` "
            "loads each one."
        )


def _find_left_out(
    records: Sequence[PluginRecord], entries: Iterable[tuple[IDistribution, EntryPoint]]
) -> list[LeftOut]:
    """Return the EPs that have no record because their entry point names an extra that
    is not installed.
    """
    listed = {(record.name, record.distribution) for record in records}
    commands: dict[tuple[str, str], str] = {}
    for package, entry in entries:
        distribution = package.metadata["Name"]
        key = (entry.name, distribution)
        extras = entry.value.partition("[")[2]
        if entry.group == EP_GROUP and extras and key not in listed:
            commands[key] = install_command(f"{distribution}[{extras.strip()}")
    return [
        LeftOut(name=ep, distribution=package, install=command)
        for (ep, package), command in sorted(commands.items())
    ]


# -- info
# --------------------------------------------------------------------------------------


def add_info_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx plugins info`."""
    parser.epilog = "The plugin is loaded in a process of its own."
    parser.list_further = _list_names
    parser.add_argument(
        "name",
        metavar="NAME",
        help=(
            "an EP (QNN) or a plugin of another kind, <distribution>:<name>, or a "
            "distribution"
        ),
    )
    add_common(parser)
    parser.set_defaults(run=describe_plugin)


def _list_names() -> dict[tuple[str, ...], list[str]]:
    """Return the names of EPs and distributions."""
    records = plugins()
    names = [record.name.removesuffix("ExecutionProvider") for record in records]
    names += [record.distribution for record in records if record.distribution]
    return {(): list(dict.fromkeys(names))}


def describe_plugin(arguments: argparse.Namespace, console: Console) -> int:
    """Describe the plugins of a name; 3 if none of them can be used."""
    from epctx_cli.entry_trial import find_named, try_entry
    from epctx_cli.plugin_trial import try_all

    name = arguments.name
    named = find_named(name)
    records = _find_records(name)
    if not (records or named):
        require_plugin(name)
        records = [default_registry.resolve(name)]

    with console.progress("loading the plugin"):
        trials = try_all(records, log=console.debug)
    described = []
    for trial in trials:
        _print_report(trial, console)
        details = PluginDetails(
            **trial.record.as_dict(),
            entry_point=trial.record.entry_point,
            **trial.description,
            traceback=trial.traceback,
        )
        described.append(details)
    others = [try_entry(kind, entry, log=console.debug) for kind, entry in named]
    for other in others:
        _print_entry(other, console)
    console.result(
        PluginsInfoResult(
            plugins=described,
            others=[EntryDetails(**other.as_dict()) for other in others],
        )
    )
    usable = [trial.record.usable for trial in trials]
    usable += [not other.reason for other in others]
    return ExitCode.DONE if any(usable) else ExitCode.PLUGIN


def _print_entry(trial: EntryTrial, console: Console) -> None:
    """Print the description of a plugin that is no EP."""
    entry = trial.entry
    facts = [
        ("kind", trial.kind.label),
        ("state", f"broken: {trial.reason}" if trial.reason else "loaded"),
        ("distribution", f"{entry['distribution']} {entry['version']}"),
        ("entry point", entry["entry_point"]),
    ]
    labels = {"provides": "engine", "summary": "summary", "doc": "description"}
    facts += [
        (label, trial.facts[key])
        for key, label in labels.items()
        if trial.facts.get(key)
    ]
    console.table(("", ""), facts, title=entry["name"])
    if not trial.reason:
        return
    console.say(f"\nFix or reinstall {entry['distribution']}.")
    if trial.traceback and console.tracebacks:
        console.say("\n" + text.indent(trial.traceback.rstrip()), wrap=False)
    elif trial.traceback:
        console.say("--traceback shows the traceback.")


def _find_records(name: str) -> list[PluginRecord]:
    """Return the records of an EP or of a distribution, which may provide several EPs;
    usable or not.
    """
    from packaging.utils import canonicalize_name

    package = canonicalize_name(name)
    records = default_registry.find(name) or [
        record
        for record in plugins()
        if record.distribution is not None
        and canonicalize_name(record.distribution) == package
    ]
    if records and ":" in name:
        # It chooses among those that provide an EP; one that is broken is told, too.
        with suppress(PluginError):
            return [default_registry.resolve(name)]
    return records


def _print_report(trial: Trial, console: Console) -> None:
    record = trial.record
    about = trial.description
    reason = f": {record.reason}" if record.reason else ""
    facts = [
        ("state", f"{record.state.value}{reason}"),
        ("distribution", record.origin),
        ("entry point", record.entry_point or "-"),
        ("sources", ", ".join(record.sources)),
    ]
    if about:
        facts += [
            ("vendor", record.vendor or "-"),
            ("simulated", "yes, on this CPU" if record.simulated else "no"),
            ("plugin API", str(about["api_version"])),
            ("binaries", f"<model>_{about['binary_suffix']}.bin"),
            ("hooks", ", ".join(about["hooks"])),
        ]
        labels = {
            "class_methods": "more methods",
            "keeps_functions": "keeps functions",
            "weightless_modes": "weightless modes",
        }
        facts += [
            (label, ", ".join(about[key]))
            for key, label in labels.items()
            if about[key]
        ]
    if record.finder:
        facts.append(("found by", record.finder))
    facts += [
        (f"can {purpose.value}", _describe_availability(availability))
        for purpose, availability in record.availability.items()
    ]
    console.table(("", ""), facts, title=record.name)
    for title, key in (
        ("Options:", "options"),
        ("Options while a session lives:", "dynamic_options"),
    ):
        if about.get(key):
            console.say(f"\n{title}")
        for option in about.get(key, ()):
            _print_option(option, console)
    if trial.traceback and console.tracebacks:
        console.say("\n" + text.indent(trial.traceback.rstrip()), wrap=False)
    if record.usable:
        return
    _, advice = default_registry.explain_unusable(record)
    if advice:
        console.say(f"\n{advice}")
    if trial.traceback and not console.tracebacks:
        console.say("--traceback shows the traceback.")


def _describe_availability(availability: Availability) -> str:
    if availability.available:
        return "yes"
    hint = f" {availability.hint}" if availability.hint else ""
    return f"no: {availability.reason or 'no reason given'}{hint}"


def _print_option(option: Mapping[str, Any], console: Console) -> None:
    name = option["name"]
    choices = " | ".join(map(_value, option["choices"]))
    values = choices or _TYPES[option["type"]]
    default = f"default {_value(option['default'])}"
    console.say(f"  {name} ({values}; {'secret' if option['secret'] else default})")
    console.say(f"{_DEEPER}{option['doc']}")


def _value(value: object) -> str:
    """Return a value as it is written in an option."""
    if value is None:
        return "none"
    if value == "":
        return "empty"
    return str(int(value)) if isinstance(value, bool) else str(value)


# -- new
# --------------------------------------------------------------------------------------


def add_new_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx plugins new`."""
    parser.epilog = "The new package is complete, and its EP works."
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a word such as nimbus, for the package epctx-nimbus",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        default=".",
        help="the parent folder (default: the working folder)",
    )
    add_common(parser)
    parser.set_defaults(run=start_plugin)


def start_plugin(arguments: argparse.Namespace, console: Console) -> int:
    """Write the package, and print the next steps."""
    from epctx_cli.templates import create_plugin

    word = arguments.name
    names, folder, files = create_plugin(word, arguments.output)
    console.say(
        f"{names['distribution']}: {names['ep']}, which works as it is, on the CPU "
        "kernels of the core."
    )
    console.table(("",), [(name,) for name in files], title=f"{folder}/")
    console.say(
        "\nNext:\n"
        f"  pip install --editable {shlex.quote(f'{folder}[test]')}\n"
        f"  epctx plugins check {names['camel']}\n"
        f"  python -m pytest {shlex.quote(str(folder))}\n"
        f"{folder / 'README.md'} describes the way from there to your own."
    )
    result = PluginsNewResult(
        folder=str(folder),
        distribution=names["distribution"],
        module=names["module"],
        files=files,
        ep=names["ep"],
    )
    console.result(result)
    return ExitCode.DONE
