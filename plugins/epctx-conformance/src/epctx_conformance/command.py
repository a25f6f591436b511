"""Command `epctx plugins check`: runs the conformance kit on one plugin, of any kind,
and ONNX's cases with `--ep`.
"""

from __future__ import annotations

import argparse
import logging
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

from epctx_conformance.kinds.command import add_kinds, find_kind, make_run, name_of
from epctx_conformance.libraries.arguments import add_library
from epctx_core.errors import InvalidArgument, suggestion

if TYPE_CHECKING:
    from epctx_conformance import CheckResult, ConformanceReport, Requirements
    from epctx_conformance.table import Check


_LONG = ("node_models",)
"""Groups that `--quick` leaves out: they have as many cases as ONNX has operators."""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx plugins check`."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="an EP (QNN), or <distribution>:<EP>"
    )
    for flags, metavar, text in (
        (
            ["--only"],
            "GROUP",
            "a group of checks, or one check's name; with --ep also a case's",
        ),
        (
            ["--without"],
            "ABILITY",
            "an ability that the EP lacks, such as dynamic_shapes",
        ),
        (
            ["--model"],
            "MODEL",
            "a model that the EP takes nodes of, beside the kit's own",
        ),
        (
            ["-p", "--provider-option"],
            "EP.KEY=VALUE",
            "an option of the EP, such as QNN.htp_arch=73",
        ),
    ):
        parser.add_argument(
            *flags,
            action="append",
            default=[],
            metavar=metavar,
            help=f"{text}; may be repeated",
        )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--quick",
        action="store_true",
        help="leave out ONNX's own cases; about half a minute of CPU time is left",
    )
    length.add_argument(
        "--full", action="store_true", help="every model that the kit has, not a sample"
    )
    add_common(parser)
    add_kinds(parser)
    add_library(parser, run)
    run_on_ep = parser.get_default("run")
    parser.set_defaults(
        run=lambda arguments, console: (
            run_kind(arguments, console, kind)
            if (kind := find_kind(arguments))
            else run_on_ep(arguments, console)
        )
    )


def run_kind(arguments: argparse.Namespace, console: Console, kind: str) -> int:
    """Check a plugin that is no EP; 1 if it does not keep the contract."""
    chosen = make_run(arguments, kind)
    with console.progress() as line, _only_errors(console):
        checks = chosen.kit.choose(chosen.only)
        report = chosen.check(_progress(line, console, checks))
    return _conclude(report, console, f"--{kind} {name_of(arguments, kind)}")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Check the plugin; 1 if it does not keep the contract."""
    from epctx_conformance import check_provider, chosen_checks
    from epctx_core import default_registry

    name = arguments.name
    requirements = make_requirements(arguments.without)
    only = _chosen(arguments.only, arguments.quick)
    require_plugin(name)
    cls = default_registry.load(default_registry.resolve(name))
    options = provider_options(arguments.provider_option, [name])[name]
    with console.progress() as line, _only_errors(console):
        report = check_provider(
            cls,
            requirements=requirements,
            options=options,
            models=arguments.model,
            only=only,
            full=arguments.full,
            progress=_progress(line, console, chosen_checks(only)),
        )
    return _conclude(report, console, name)


def _conclude(report: ConformanceReport, console: Console, given: str) -> int:
    """Print a report and what to do next; return the exit code.

    Args:
        report: of the run.
        console: the command's.
        given: the arguments that name the plugin.
    """
    for text in report.text().splitlines():
        console.say(text)
    if report.failed:
        console.say(f"Next: epctx plugins check {given} --only {report.failed[0].name}")
    elif not report.ok:
        console.error(
            "no check passed, so nothing was shown; --model gives the kit a model "
            "that the plugin takes."
        )
    console.result(report.as_dict())
    return ExitCode.DONE if report.ok else ExitCode.FAILED


@contextmanager
def _only_errors(console: Console) -> Iterator[None]:
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


def _progress(
    line: Callable[[str, int, int], None], console: Console, checks: Sequence[Check]
) -> Callable[[CheckResult], None]:
    """Return a function that shows how far the kit is: the group of the next check,
    which may take long.
    """
    done = count(1)
    line(checks[0].group, 0, len(checks))

    def show(result: CheckResult) -> None:
        console.debug(f"{result.outcome.value}: {result.title}")
        number = next(done)
        line(checks[min(number, len(checks) - 1)].group, number, len(checks))

    return show


def make_requirements(without: list[str]) -> Requirements:
    """Return requirements without some abilities; raise InvalidArgument for an unknown
    one.
    """
    from epctx_conformance import NEEDS, Requirements

    for name in without:
        if name not in NEEDS:
            raise InvalidArgument(
                f"unknown ability --without {name!r}.{suggestion(name, NEEDS)}",
                hint=f"Abilities: {', '.join(sorted(NEEDS))}.",
            )
    return Requirements(**dict.fromkeys(without, False))


def _chosen(only: list[str], quick: bool) -> list[str] | None:
    from epctx_conformance import GROUPS, chosen_checks

    for name in only:
        try:
            chosen_checks([name])
        except ValueError:
            raise InvalidArgument(
                f"--only {name!r} is neither a group of checks nor a "
                f"check.{suggestion(name, GROUPS)}",
                hint=f"Groups: {', '.join(GROUPS)}.",
            ) from None
    return only or (
        [group for group in GROUPS if group not in _LONG] if quick else None
    )
