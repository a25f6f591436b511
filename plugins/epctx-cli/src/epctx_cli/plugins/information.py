"""`epctx plugins info`: all that is known about one plugin, asked in a process of its own."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epctx_cli import text
from epctx_cli.arguments import CommandParser, add_common
from epctx_cli.exit_codes import DONE, PLUGIN

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_cli.plugins.trial import Trial

_WIDTH = 100
_DEEPER = " " * 6
_TYPES = {"bool": "0 or 1", "int": "a whole number", "float": "a number", "str": "text"}


def add_arguments(parser: CommandParser) -> None:
    """Declare the action's options."""
    parser.add_argument("name", metavar="NAME", help="an EP (QNN), <distribution>:<EP>, or a distribution")
    add_common(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Describe what the name means; 3 if none of it can be used."""
    from epctx_cli.plugins.naming import named
    from epctx_cli.plugins.trial import try_all
    from epctx_core.registry.default import plugins

    trials = try_all(named(arguments.name, plugins()), tell=console.debug)
    for number, trial in enumerate(trials):
        if number:
            console.say()
        _tell(trial, console)
    console.result({"plugins": [_as_dict(trial) for trial in trials]})
    return DONE if any(trial.record.usable for trial in trials) else PLUGIN


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
        facts += _facts(about)
    facts += [(f"can {purpose}", _said(answer)) for purpose, answer in trial.availability.items()]
    console.table(("", ""), facts)
    for title, key in (("Options:", "options"), ("Options while a session lives:", "dynamic_options")):
        _tell_options(title, about.get(key, ()), console)
    if trial.traceback and console.verbose:
        console.say()
        console.say(text.indented(trial.traceback.rstrip()))
    _tell_remedy(trial, console)


def _facts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [
        ("vendor", about["vendor"] or "-"),
        ("simulated", "yes, on this CPU" if about["simulated"] else "no"),
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
    from epctx_core.registry.explaining import why_unusable

    hint = why_unusable(trial.record)[1]
    if hint:
        console.say()
        console.say(hint)
    if trial.traceback and not console.verbose:
        console.say("-v shows where its import failed.")
