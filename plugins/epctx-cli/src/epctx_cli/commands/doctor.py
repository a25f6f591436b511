"""`epctx doctor`: looks at the environment, libraries, plugins and variables, and says what to fix."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from epctx_cli import text
from epctx_cli.arguments import CommandParser, add_common
from epctx_cli.doctor import environment, libraries, plugins, variables
from epctx_cli.doctor.findings import Remark, Weight, problem
from epctx_cli.exit_codes import DONE, FAILED
from epctx_core.errors import InvalidArgument

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_cli.doctor.libraries import Library
    from epctx_cli.plugins.trial import Trial


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's options."""
    add_common(parser)
    parser.set_defaults(run=run, parser=parser)


def run(_arguments: argparse.Namespace, console: Console) -> int:
    """Examine everything; 1 if something has to be mended."""
    facts, found, set_here = environment.facts(), libraries.libraries(), variables.in_effect(os.environ)
    trials, remarks = _plugins(console)
    remarks = [
        *environment.examine(),
        *libraries.examine(found),
        *variables.examine(os.environ, [trial.record for trial in trials]),
        *remarks,
    ]
    ok = all(remark.weight is not Weight.PROBLEM for remark in remarks)
    console.table(("", ""), list(facts.items()))
    _tell_libraries(found or (), console)
    _tell_plugins(trials, console)
    if set_here:
        console.say()
        console.table(
            ("variable", "value", "says"),
            [(name, value, variables.VARIABLES.get(name, "nothing")) for name, value in set_here.items()],
        )
    _tell_remarks(remarks, console)
    console.result(
        {
            "ok": ok,
            "environment": facts,
            "libraries": [library.as_dict() for library in found or ()],
            "plugins": [trial.record.as_dict() for trial in trials],
            "variables": set_here,
            "findings": [remark.as_dict() for remark in remarks],
        }
    )
    return DONE if ok else FAILED


def _plugins(console: Console) -> tuple[list[Trial], list[Remark]]:
    """Try every plugin; a variable that cannot be read keeps all of them from being found."""
    from epctx_cli.plugins.trial import try_all
    from epctx_core.registry.default import plugins as records

    try:
        trials = try_all(records(), tell=console.debug)
    except InvalidArgument as error:
        return [], [problem(error.message, error.hint or "")]
    return trials, [*plugins.examine(trials), *plugins.examine_packages(trials)]


def _tell_libraries(found: Sequence[Library], console: Console) -> None:
    if not found:
        return
    console.say()
    console.table(
        ("library", "installed", "needed", "for"),
        [(each.name, each.version or "-", each.bounds, each.extra or "everything") for each in found],
    )


def _tell_plugins(trials: Sequence[Trial], console: Console) -> None:
    if not trials:
        return
    console.say()
    console.table(
        ("plugin", "distribution", "state", "vendor"),
        [
            (t.record.name, t.record.origin, t.record.state.value, t.description.get("vendor") or "-")
            for t in trials
        ],
    )


def _tell_remarks(remarks: Sequence[Remark], console: Console) -> None:
    for remark in sorted(remarks, key=lambda r: r.weight is not Weight.PROBLEM):
        console.say()
        console.say(f"{remark.weight.value}: {remark.what}")
        if remark.remedy:
            console.say(text.indented(remark.remedy))
    console.say()
    problems = sum(remark.weight is Weight.PROBLEM for remark in remarks)
    notes = len(remarks) - problems
    said = " and ".join(text.count(n, word) for n, word in ((problems, "problem"), (notes, "note")) if n)
    console.say(f"{'not ok' if problems else 'ok'}: {said or 'nothing to mend'}")
