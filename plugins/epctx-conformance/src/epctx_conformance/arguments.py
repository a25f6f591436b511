"""Arguments of `epctx plugins check`, and checks that they go together."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from epctx_core.errors import InvalidArgument, suggestion

if TYPE_CHECKING:
    from epctx_cli.command import CommandParser

    from epctx_conformance.table import Requirements

_PLUGINS = {
    "NAME": "name",
    "--ep": "ep",
}
"""Arguments that name an EP, each with its attribute."""
_NEEDS = {
    "model": "NAME",
    "full": "NAME",
    "library": "--ep",
    "cases": "--ep",
    "through": "--ep",
    "tolerance": "--ep",
    "seconds": "--ep",
    "results": "--ep",
}
"""Options that go with one of them alone."""


def declare_arguments(parser: CommandParser) -> None:
    """Declare all arguments but those that every command has."""
    parser.epilog = (
        "NAME runs the kit in this process. --ep runs the kit and ONNX's own cases in "
        "child processes, on an EP of onnxruntime or an installed one. Exits with 1 "
        "if a check failed, or a case is WRONG or a CRASH."
    )
    _declare_kit(parser)
    _declare_cases(parser.add_argument_group("kit and cases"))


def _declare_kit(parser: CommandParser) -> None:
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


def _declare_cases(group: argparse._ArgumentGroup) -> None:
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
        type=_parse_number,
        default=0.0,
        metavar="SHARE",
        help=(
            "largest difference that passes beside each case's own, as a share of the "
            "largest expected number"
        ),
    )
    group.add_argument(
        "--seconds",
        type=_parse_time_limit,
        metavar="N",
        help="time limit of a case in one way (default: 120)",
    )
    group.add_argument(
        "--results",
        metavar="FILE.jsonl",
        help="keep each result there; another run goes on from it",
    )


def _parse_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return number


def _parse_time_limit(text: str) -> float:
    if (number := _parse_number(text)) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give a number above 0")
    return number


def find_plugin(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return the argument that names the EP, `NAME` or `--ep`, and the name.

    Raises:
        InvalidArgument: none does, or several; or an option needs another one of them.
    """
    named = {
        argument: getattr(arguments, attribute)
        for argument, attribute in _PLUGINS.items()
        if getattr(arguments, attribute)
    }
    if not named:
        raise InvalidArgument(
            "give NAME or --ep.",
            hint="epctx plugins check QNN, or epctx plugins check --ep QNN.",
        )
    if len(named) > 1:
        raise InvalidArgument(
            f"{' and '.join(named)} do not go together.",
            hint="Check one EP at a time: epctx plugins check NAME.",
        )

    ((argument, name),) = named.items()
    for option, needed in _NEEDS.items():
        if getattr(arguments, option) and argument != needed:
            raise InvalidArgument(
                f"--{option.replace('_', '-')} needs {needed}, and does not go "
                f"together with {argument}."
            )
    return argument, name


def check_only(
    only: Sequence[str],
    groups: Sequence[str],
    choose: Callable[[Sequence[str]], object],
) -> None:
    """Raise InvalidArgument for a name in `--only` that is neither a group nor a check.

    Args:
        only: the names.
        groups: names of the kit's groups.
        choose: the kit's function that returns checks, and raises ValueError for a name
            that it does not know.
    """
    for name in only:
        try:
            choose([name])
        except ValueError:
            raise InvalidArgument(
                f"--only {name!r} is neither a group of checks nor a "
                f"check.{suggestion(name, groups)}",
                hint=f"Groups: {', '.join(groups)}.",
            ) from None


def make_requirements(without: Sequence[str]) -> Requirements:
    """Return requirements without some abilities; raise InvalidArgument for an unknown
    one.
    """
    from epctx_conformance.table import NEEDS, Requirements

    for name in without:
        if name not in NEEDS:
            raise InvalidArgument(
                f"unknown ability --without {name!r}.{suggestion(name, NEEDS)}",
                hint=f"Abilities: {', '.join(sorted(NEEDS))}.",
            )
    return Requirements(**dict.fromkeys(without, False))
