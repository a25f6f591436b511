"""Command `epctx plugins check`: runs the conformance kit on one EP, and with
`--ep` the check of epctx-onnxruntime.
"""

from __future__ import annotations

import argparse
import logging
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from epctx_cli.command import (
    CommandParser,
    Console,
    ExitCode,
    add_common,
    provider_options,
    require_plugin,
)

from epctx_conformance.arguments import (
    check_only,
    declare_arguments,
    find_plugin,
    make_requirements,
)
from epctx_conformance.report import Outcome
from epctx_core.ext import import_installed

if TYPE_CHECKING:
    from epctx_conformance import CheckResult, ConformanceReport
    from epctx_conformance.table import Check


_LONG = ("node_models",)
"""Groups that `--quick` leaves out: they have as many cases as ONNX has operators."""
_TITLE = 34
"""Characters of a check's title that fit in a line of progress of 80 columns."""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx plugins check`."""
    declare_arguments(parser)
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Check the EP that the arguments name; 1 if it does not keep the contract."""
    argument, name = find_plugin(arguments)
    if argument == "NAME":
        return run_kit(arguments, console, name)

    checking = import_installed(
        "epctx_onnxruntime.checking.command", needed_by="`epctx plugins check --ep`"
    )
    code: int = checking.run(arguments, console)
    return code


def run_kit(arguments: argparse.Namespace, console: Console, name: str) -> int:
    """Check an EP in this process; 1 if it does not keep the contract."""
    from epctx_conformance import check_provider, chosen_checks
    from epctx_core import default_registry

    requirements = make_requirements(arguments.without)
    only = _choose(arguments.only, arguments.quick)
    require_plugin(name)
    cls = default_registry.load(default_registry.resolve(name))
    options = provider_options(arguments.provider_option, [name])[name]
    with console.progress() as line, _hide_warnings(console):
        report = check_provider(
            cls,
            requirements=requirements,
            options=options,
            models=arguments.model,
            only=only,
            full=arguments.full,
            progress=_make_progress(line, chosen_checks(only)),
        )
    return _conclude(report, console, name)


def _choose(only: list[str], quick: bool) -> list[str] | None:
    from epctx_conformance import GROUPS, chosen_checks

    check_only(only, list(GROUPS), chosen_checks)
    return only or (
        [group for group in GROUPS if group not in _LONG] if quick else None
    )


def _conclude(report: ConformanceReport, console: Console, name: str) -> int:
    """Print the report of an EP and what to do next; return the exit code."""
    for text in report.text(brief=not console.verbose).splitlines():
        console.say(text)
    if not console.verbose:
        console.note("-v lists every check.")
    if report.failed:
        console.say(f"Next: epctx plugins check {name} --only {report.failed[0].name}")
    elif not report.ok:
        console.error(
            "no check passed, so nothing was shown; --model gives the kit a model "
            "that the plugin takes."
        )
    console.result(report.as_dict())
    return ExitCode.DONE if report.ok else ExitCode.FAILED


@contextmanager
def _hide_warnings(console: Console) -> Iterator[None]:
    """Hide warnings unless `-v` asks for them: the kit makes hundreds of models, many
    of them odd on purpose.
    """
    logger = logging.getLogger("epctx")
    before = logger.level
    if not console.verbose:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _make_progress(
    line: Callable[..., None], checks: Sequence[Check]
) -> Callable[[CheckResult], None]:
    """Return a function that shows how far the kit is: the group and the title of the
    next check, which may take long.
    """
    done = count(1)
    failed = 0

    def show_next(number: int) -> None:
        following = checks[min(number, len(checks) - 1)]
        notes = [f"{failed} failed"] if failed else []
        line(
            following.group,
            number,
            len(checks),
            notes=[*notes, textwrap.shorten(following.title, _TITLE, placeholder="…")],
            # Checks differ too much for an estimate from their number.
            seconds_left=math.inf,
        )

    def show(result: CheckResult) -> None:
        nonlocal failed
        failed += result.outcome is Outcome.FAILED
        show_next(next(done))

    show_next(0)
    return show
