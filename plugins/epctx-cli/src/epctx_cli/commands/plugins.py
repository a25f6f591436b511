"""`epctx plugins`: which EPs are installed, what one is, and a new one; `check` is in epctx-conformance."""

from __future__ import annotations

import argparse
import shlex
import textwrap
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epctx_cli import text
from epctx_cli.arguments import CommandParser, add_common, require_plugin
from epctx_cli.exit_codes import ExitCode
from epctx_core import default_registry, plugins

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_cli.plugin_trial import Trial
    from epctx_core import PluginRecord

_WIDTH = 100
_DEEPER = " " * 6
_TYPES = {"bool": "0 or 1", "int": "a whole number", "float": "a number", "str": "text"}


# -- list ------------------------------------------------------------------------------------------


def add_list_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx plugins list`."""
    parser.epilog = (
        "Without --load none is imported. Exits with 0 whatever their states; `epctx doctor` judges them."
    )
    parser.add_argument(
        "--load", action="store_true", help="try each one in a process of its own, and say what came of it"
    )
    add_common(parser)
    parser.set_defaults(run=list_plugins)


def list_plugins(arguments: argparse.Namespace, console: Console) -> int:
    """List the plugins."""
    records = plugins()
    vendors: dict[Hashable, str] = {}
    if arguments.load:
        from epctx_cli.plugin_trial import try_all

        trials = try_all(records, tell=console.debug)
        records = [trial.record for trial in trials]
        vendors = {trial.record.key: trial.description["vendor"] for trial in trials if trial.description}
    _tell_list(records, vendors, loaded=arguments.load, console=console)
    console.result({"plugins": [{**r.as_dict(), "vendor": vendors.get(r.key)} for r in records]})
    return ExitCode.DONE


def _tell_list(
    records: Sequence[PluginRecord], vendors: Mapping[Hashable, str], *, loaded: bool, console: Console
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


def _row(record: PluginRecord, vendors: Mapping[Hashable, str]) -> tuple[str, ...]:
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


# -- info ------------------------------------------------------------------------------------------


def add_info_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx plugins info`."""
    parser.epilog = "It is asked in a process of its own."
    parser.add_argument("name", metavar="NAME", help="an EP (QNN), <distribution>:<EP>, or a distribution")
    add_common(parser)
    parser.set_defaults(run=describe_plugin)


def describe_plugin(arguments: argparse.Namespace, console: Console) -> int:
    """Describe what the name means; 3 if none of it can be used."""
    from epctx_cli.plugin_trial import try_all

    trials = try_all(_named(arguments.name), tell=console.debug)
    for number, trial in enumerate(trials):
        if number:
            console.say()
        _tell(trial, console)
    console.result({"plugins": [_as_dict(trial) for trial in trials]})
    return ExitCode.DONE if any(trial.record.usable for trial in trials) else ExitCode.PLUGIN


def _named(name: str) -> list[PluginRecord]:
    """Return the records that a name means, usable or not; a distribution may bring several."""
    from packaging.utils import canonicalize_name

    package = canonicalize_name(name)
    found = default_registry.find(name) or [
        record
        for record in plugins()
        if record.distribution is not None and canonicalize_name(record.distribution) == package
    ]
    if not found:
        require_plugin(name)
    return found or [default_registry.resolve(name)]


def _as_dict(trial: Trial) -> dict[str, Any]:
    entry_point = {"entry_point": trial.record.entry_point}
    availability = {"availability": trial.availability, "traceback": trial.traceback}
    return {**trial.record.as_dict(), **entry_point, **trial.description, **availability}


def _tell(trial: Trial, console: Console) -> None:
    record, about = trial.record, trial.description
    console.say(record.name)
    facts = [
        ("state", record.state.value + (f": {record.reason}" if record.reason else "")),
        ("distribution", record.origin),
        ("entry point", record.entry_point or "-"),
        ("sources", ", ".join(record.sources)),
    ]
    if about:
        facts += _facts(about, simulated=record.simulated)
    facts += [(f"can {purpose}", _said(answer)) for purpose, answer in trial.availability.items()]
    console.table(("", ""), facts)
    for title, key in (("Options:", "options"), ("Options while a session lives:", "dynamic_options")):
        _tell_options(title, about.get(key, ()), console)
    if trial.traceback and console.verbose:
        console.say()
        console.say(text.indented(trial.traceback.rstrip()))
    _tell_remedy(trial, console)


def _facts(about: Mapping[str, Any], *, simulated: bool | None) -> list[tuple[str, str]]:
    facts = [
        ("vendor", about["vendor"] or "-"),
        ("simulated", "yes, on this CPU" if simulated else "no"),
        ("plugin API", str(about["api_version"])),
        ("binaries", f"<model>_{about['binary_suffix']}.bin"),
        ("hooks", ", ".join(about["hooks"])),
    ]
    further = (
        ("also answers", "class_methods"),
        ("keeps functions", "keeps_functions"),
        ("weightless modes", "weightless_modes"),
    )
    return facts + [(label, ", ".join(about[key])) for label, key in further if about[key]]


def _said(answer: Mapping[str, Any]) -> str:
    if answer["available"]:
        return "yes"
    return f"no: {answer['reason'] or 'no reason given'}" + (f" {answer['hint']}" if answer["hint"] else "")


def _tell_options(title: str, options: Sequence[Mapping[str, Any]], console: Console) -> None:
    if not options:
        return
    console.say()
    console.say(title)
    for option in options:
        default = "secret" if option["secret"] else _value(option["default"])
        console.say(f"  {option['name']} ({_allowed(option)}; default {default})")
        console.say(textwrap.fill(option["doc"], _WIDTH, initial_indent=_DEEPER, subsequent_indent=_DEEPER))


def _allowed(option: Mapping[str, Any]) -> str:
    if option["choices"]:
        return " | ".join(map(_value, option["choices"]))
    return _TYPES[option["type"]]


def _value(value: object) -> str:
    """Return a value as a host writes it."""
    if isinstance(value, bool):
        return str(int(value))
    return "empty" if value == "" else "none" if value is None else str(value)


def _tell_remedy(trial: Trial, console: Console) -> None:
    if trial.record.usable:
        return
    _, hint = default_registry.explain_unusable(trial.record)
    if hint:
        console.say()
        console.say(hint)
    if trial.traceback and not console.verbose:
        console.say("-v shows where its import failed.")


# -- new -------------------------------------------------------------------------------------------


def add_new_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx plugins new`."""
    parser.epilog = "Writes a complete package with an EP that works."
    parser.add_argument("name", metavar="NAME", help="what it is called: acme gives the package epctx-acme")
    parser.add_argument(
        "-o", "--output", metavar="DIR", default=".", help="the folder to make it in (default: this one)"
    )
    add_common(parser)
    parser.set_defaults(run=begin_plugin)


def begin_plugin(arguments: argparse.Namespace, console: Console) -> int:
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
    return ExitCode.DONE
