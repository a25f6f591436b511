"""`epctx plugins`: list and describe plugins, and start a new one; `check` is in
epctx-conformance.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from epctx_cli import text
from epctx_cli.arguments import CommandParser, add_common, require_plugin
from epctx_cli.entry_points import (
    EP_GROUP,
    KINDS,
    Kind,
    describe,
    explain_finder,
    find_entries,
    group_by_reason,
)
from epctx_cli.exit_codes import ExitCode
from epctx_cli.plugin_results import (
    EntryFacts,
    LeftOut,
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
    from epctx_core import PluginRecord

_NOT_IN_TABLE = ("name", "traceback", "availability", "options", "dynamic_options")
"""Keys of what is known of a plugin that are not shown in one line."""
_LABELS = {
    "api_version": "plugin API",
    "binary_suffix": "binaries",
    "doc": "description",
    "finder": "found by",
    "provides": "engine",
    "dynamic_options": "options while a session lives",
}
"""Labels of keys of JSON that are not words for people."""
_DEEPER = " " * 6
_SEE_TRACEBACK = "\n--traceback shows the traceback."
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
    others: dict[str, list[EntryFacts]] = {}
    for kind in KINDS:
        found = describe(entries, kind.group)
        rows = [(each.name, each.distribution, each.version) for each in found]
        console.table((kind.label, "distribution", "version"), rows)
        others[kind.key] = found
    if left_out:
        console.say("\nNot listed, because a package that they need is not installed:")
    for each in left_out:
        console.say(f"  {each.name}:")
        console.say(f"    {each.install}", wrap=False)
    console.result(
        PluginsListResult(
            plugins=records,
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
            "group\nepctx.execution_providers; the CPU EP is built in."
        )
        return
    header = ["EP", "distribution", "version", "state"]
    if any(record.vendor for record in records):
        header.append("vendor")
    rows = [
        (
            record.name,
            record.distribution or "-",
            record.version or "-",
            f"{record.state.value}{', simulated' if record.simulated else ''}",
            record.vendor or "-",
        )[: len(header)]
        for record in records
    ]
    console.table(header, rows)

    # Source keys that are EP names are in the table already.
    further = {
        record.name: [source for source in record.sources if source != record.name]
        for record in records
    }
    sources = [
        f"{name} also takes nodes whose source is {', '.join(more)}."
        for name, more in further.items()
        if more
    ]
    finders = [*filter(None, map(explain_finder, records))]
    reasons = [
        f"{label}: {group[0].reason}" for label, group in group_by_reason(records)
    ]
    for lines in filter(None, (sources, finders, reasons)):
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
    extras = {
        (entry.name, package.metadata["Name"]): entry.value.partition("[")[2].strip()
        for package, entry in entries
        if entry.group == EP_GROUP and "[" in entry.value
    }
    return [
        LeftOut(
            name=ep,
            distribution=package,
            install=install_command(f"{package}[{extras[ep, package]}"),
        )
        for ep, package in sorted(extras.keys() - listed)
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
    from epctx_cli.plugin_trial import try_all, try_entry

    name = arguments.name
    named = _find_entries(name)
    records = _find_records(name)
    if not (records or named):
        require_plugin(name)
        records = [default_registry.resolve(name)]

    with console.progress("loading the plugin"):
        trials = try_all(records, log=console.debug)
        others = [try_entry(kind, entry, log=console.debug) for kind, entry in named]
    described = []
    for trial in trials:
        record = trial.record
        details = {
            **record.as_dict(),
            "entry_point": record.entry_point,
            **trial.description,
            "traceback": trial.traceback,
        }
        _, advice = default_registry.explain_unusable(record)
        _print_details(details, "" if record.usable else advice, console)
        described.append(details)
    for other in others:
        advice = f"Fix or reinstall {other.distribution}." if other.reason else ""
        _print_details(asdict(other), advice, console)
    console.result(PluginsInfoResult(plugins=described, others=others))
    usable = [trial.record.usable for trial in trials]
    usable += [not other.reason for other in others]
    return ExitCode.DONE if any(usable) else ExitCode.PLUGIN


def _find_entries(name: str) -> list[tuple[Kind, EntryFacts]]:
    """Return the plugins beside EPs that have a name, which may be a distribution, or
    `<distribution>:<name>`.
    """
    from packaging.utils import canonicalize_name

    package, colon, word = name.lower().rpartition(":")
    wanted = f"{canonicalize_name(package)}{colon}{word}"
    entries = list(find_entries(*(kind.group for kind in KINDS)))
    named = []
    for kind in KINDS:
        for entry in describe(entries, kind.group):
            key = entry.name.lower()
            distribution = canonicalize_name(entry.distribution)
            if (
                wanted in (key, f"{distribution}:{key}")
                or canonicalize_name(name) == distribution
            ):
                named.append((kind, entry))
    return named


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


def _print_details(details: Mapping[str, Any], advice: str, console: Console) -> None:
    """Print what is known of a plugin, by the keys of its JSON; and advice if it cannot
    be used.
    """
    facts = dict(details)
    # Values of options are written as numbers.
    if facts.get("simulated") is not None:
        facts["simulated"] = "yes, on this CPU" if facts["simulated"] else "no"
    if "binary_suffix" in facts:
        facts["binary_suffix"] = f"<model>_{facts['binary_suffix']}.bin"
    for purpose, answer in facts.get("availability", {}).items():
        why = f"no: {answer['reason'] or 'no reason given'} {answer['hint']}".rstrip()
        facts[f"can {purpose}"] = "yes" if answer["available"] else why
    rows = [
        (_get_label(key), _show(value))
        for key, value in facts.items()
        if key not in _NOT_IN_TABLE and value not in (None, "", [])
    ]
    console.table(("", ""), rows, title=details["name"])

    for key in ("options", "dynamic_options"):
        if options := facts.get(key):
            console.say(f"\n{_get_label(key).capitalize()}:")
            console.say("\n".join(map(_describe_option, options)))
    traceback = details["traceback"]
    if traceback and console.tracebacks:
        console.say("\n" + text.indent(traceback.rstrip()), wrap=False)
    if advice:
        more = "" if console.tracebacks or not traceback else _SEE_TRACEBACK
        console.say(f"\n{advice}{more}")


def _get_label(key: str) -> str:
    return _LABELS.get(key, key.replace("_", " "))


def _describe_option(option: Mapping[str, Any]) -> str:
    """Return two lines: name, values and default of an option; and its meaning."""
    values = " | ".join(map(_show, option["choices"])) or _TYPES[option["type"]]
    default = "secret" if option["secret"] else f"default {_show(option['default'])}"
    return f"  {option['name']} ({values}; {default})\n{_DEEPER}{option['doc']}"


def _show(value: object) -> str:
    """Return a fact for people, or a value as it is written in an option."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return str(int(value))
    if value is None:
        return "none"
    return str(value) or "empty"


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
