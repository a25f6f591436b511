"""Arguments of `epctx plugins check` for a check with cases."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidArgument

if TYPE_CHECKING:
    from epctx_cli.command import CommandParser, Console

CASES = "epctx_conformance.cases.onnx_cases:load_cases"
_OF_CASES = ("library", "through", "tolerance", "results", "html")
_OF_NAME = ("model", "full")


def add_library(
    parser: CommandParser, run_kit: Callable[[argparse.Namespace, Console], int]
) -> None:
    """Declare the options of a check with cases, which is what runs if one of them
    names the EP.

    Args:
        parser: of the command.
        run_kit: runs the kit alone.
    """
    parser.epilog = (
        "NAME runs the kit in this process. --ep runs the kit and ONNX's own cases in "
        "child processes, on an EP of onnxruntime or an installed one. --engine, "
        "--transformer and --command run the checks of their kind. Exits with 1 "
        "if a check failed, or a case is WRONG or a CRASH."
    )
    _add_options(parser.add_argument_group("kit and cases"))

    def run(arguments: argparse.Namespace, console: Console) -> int:
        check_usage(arguments)
        if not arguments.ep:
            return run_kit(arguments, console)
        from epctx_conformance.libraries.command import run as run_library

        return run_library(arguments, console)

    parser.set_defaults(run=run)


def _add_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ep", metavar="EP", help="an EP of onnxruntime, or an installed one (QNN)"
    )
    group.add_argument(
        "--library",
        metavar="FILE",
        help="the plugin library of onnxruntime that contains it",
    )
    group.add_argument(
        "--cases",
        default=CASES,
        metavar="MODULE:FUNCTION",
        help="a function that returns cases by name, instead of ONNX's",
    )
    group.add_argument(
        "--through",
        action="append",
        default=[],
        metavar="WAY",
        help="onnxruntime, direct, file or embed (default: all); may be repeated",
    )
    group.add_argument(
        "--tolerance",
        type=_number,
        default=0.0,
        metavar="SHARE",
        help=(
            "largest difference that passes beside each case's own, as a share of the "
            "largest expected number"
        ),
    )
    group.add_argument(
        "--seconds",
        type=_time_limit,
        default=120.0,
        metavar="N",
        help="time limit of a case in one way (default: 120)",
    )
    group.add_argument(
        "--results",
        metavar="FILE.jsonl",
        help="keep each result there; another run goes on from it",
    )
    group.add_argument(
        "--html", metavar="FILE.html", help="write the report as a page of its own"
    )


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return number


def _time_limit(text: str) -> float:
    if (number := _number(text)) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give a number above 0")
    return number


def check_usage(arguments: argparse.Namespace) -> None:
    """Raise InvalidArgument for options that do not go together, as some are of checks
    without cases.
    """
    if bool(arguments.name) == bool(arguments.ep):
        raise InvalidArgument(
            "give NAME, or one of --ep, --engine, --transformer and --command.",
            hint="epctx plugins check QNN, or epctx plugins check --ep QNN.",
        )
    with_other = _OF_CASES if arguments.name else _OF_NAME
    if wrong := next(
        (option for option in with_other if getattr(arguments, option)), None
    ):
        raise InvalidArgument(
            f"--{wrong} needs {'--ep' if arguments.name else 'NAME'}, and it alone."
        )
