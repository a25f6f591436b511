"""`epctx plugins check`: runs the conformance kit against one plugin."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from epctx_cli.command import CommandParser, Console, ExitCode, add_common, provider_options, require_plugin

from epctx_core.errors import InvalidArgument
from epctx_core.ext import suggestion

if TYPE_CHECKING:
    from epctx_conformance import CheckResult, ConformanceReport, Requirements


_LONG = ("node_models",)
"""Groups that `--quick` leaves out: as many cases as ONNX has operators."""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx plugins check`."""
    parser.epilog = "Exits with 1 if a check failed."
    parser.add_argument("name", metavar="NAME", help="an EP (QNN), or <distribution>:<EP>")
    parser.add_argument(
        "--only",
        action="append",
        metavar="GROUP",
        help="a group of checks, or one check's name; may be repeated",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="ABILITY",
        help="what the EP is not expected to do, such as dynamic_shapes; may be repeated",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="MODEL",
        help="a model that it takes work from, beside the kit's own; may be repeated",
    )
    parser.add_argument(
        "-p",
        "--provider-option",
        action="append",
        default=[],
        metavar="EP.KEY=VALUE",
        help="an option to check it with, such as QNN.htp_arch=73; may be repeated",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--quick", action="store_true", help="leave out ONNX's own cases, which take longest; less than 20 s"
    )
    length.add_argument("--full", action="store_true", help="every model that the kit has, not a sample")
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Check the plugin; 1 if it does not keep the contract."""
    from epctx_conformance import GROUPS, check_provider
    from epctx_core import default_registry

    requirements = _requirements(arguments.without)
    _refuse_unknown_checks(arguments.only or ())
    require_plugin(arguments.name)
    cls = default_registry.load(default_registry.resolve(arguments.name))
    options = provider_options(arguments.provider_option, [arguments.name])[arguments.name]
    only = arguments.only or ([group for group in GROUPS if group not in _LONG] if arguments.quick else None)
    with console.progress() as line, _only_what_fails(console):
        report = check_provider(
            cls,
            requirements=requirements,
            options=options,
            models=arguments.model,
            only=only,
            full=arguments.full,
            progress=_follow(line, console, only),
        )
    _tell(arguments.name, report, console)
    console.result(report.as_dict())
    return ExitCode.DONE if report.ok else ExitCode.FAILED


@contextmanager
def _only_what_fails(console: Console) -> Iterator[None]:
    """Keep warnings back unless `-v` asks for them: the kit makes hundreds of models, many of them odd on purpose."""
    logger = logging.getLogger("epctx")
    before = logger.level
    if not console.verbose:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _follow(
    line: Callable[[str, int, int], None], console: Console, only: list[str] | None
) -> Callable[[CheckResult], None]:
    """Return what is told of each result while the kit runs."""
    from epctx_conformance import chosen_checks

    checks, done = chosen_checks(only), count(1)

    def show(place: int) -> None:
        """Show what is done next: a check may take long."""
        line(checks[min(place, len(checks) - 1)].group, place, len(checks))

    def tell(result: CheckResult) -> None:
        console.debug(f"{result.outcome.value}: {result.title}")
        show(next(done))

    show(0)
    return tell


def _requirements(without: list[str]) -> Requirements:
    from epctx_conformance import NEEDS, Requirements

    for name in without:
        if name not in NEEDS:
            raise InvalidArgument(
                f"--without {name!r} is nothing that an EP is expected to do.{suggestion(name, NEEDS)}",
                hint=f"Expected are: {', '.join(sorted(NEEDS))}.",
            )
    return Requirements(**dict.fromkeys(without, False))


def _refuse_unknown_checks(only: list[str] | tuple[()]) -> None:
    from epctx_conformance import GROUPS, chosen_checks

    for name in only:
        try:
            chosen_checks([name])
        except ValueError:
            raise InvalidArgument(
                f"--only {name!r} is neither a group of checks nor a check.{suggestion(name, GROUPS)}",
                hint=f"Groups: {', '.join(GROUPS)}.",
            ) from None


def _tell(name: str, report: ConformanceReport, console: Console) -> None:
    for line in report.text().splitlines():
        console.say(line)
    if report.failed:
        console.say(f"Next: epctx plugins check {name} --only {report.failed[0].name}")
    if not report.ok and not report.failed:
        console.error(
            "no check passed, so nothing was shown; --model gives the kit a model that the EP takes."
        )
