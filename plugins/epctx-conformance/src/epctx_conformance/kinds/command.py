"""Options `--engine`, `--transformer` and `--command` of `epctx plugins check`, and
their runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from epctx_conformance.kinds.finding import ENGINES, TRANSFORMERS, load_entry
from epctx_core.errors import InvalidArgument

if TYPE_CHECKING:
    from epctx_cli.command import CommandParser

    from epctx_conformance.kinds.kit import Kit
    from epctx_conformance.report import CheckResult, ConformanceReport

KINDS = ("engine", "transformer", "command")


class Run(NamedTuple):
    """Run of a kit that the options ask for.

    Attributes:
        kit: the checks.
        only: groups or names of checks; None for all.
        check: `check(progress)` runs it.
    """

    kit: Kit
    only: list[str] | None
    check: Callable[[Callable[[CheckResult], None]], ConformanceReport]


def add_kinds(parser: CommandParser) -> None:
    """Declare the options of a check of a plugin that is no EP."""
    group = parser.add_argument_group("plugins that are no EPs")
    group.add_argument("--engine", metavar="NAME", help="an installed engine")
    group.add_argument(
        "--transformer", metavar="NAME", help="an installed graph transformer"
    )
    group.add_argument(
        "--command",
        dest="command_name",
        metavar="NAME",
        help="an installed command of another package",
    )
    group.add_argument(
        "--argument",
        action="append",
        metavar="TEXT",
        help="an argument with which --command runs; may be repeated",
    )


def name_of(arguments: argparse.Namespace, kind: str) -> str | None:
    """Return the name that one of the options gives."""
    name: str | None = getattr(arguments, "command_name" if kind == "command" else kind)
    return name


def find_kind(arguments: argparse.Namespace) -> str | None:
    """Return which of the options is given, None for none.

    Raises:
        InvalidArgument: it does not go together with another one.
    """
    given = [kind for kind in KINDS if name_of(arguments, kind)]
    if arguments.argument and given != ["command"]:
        raise InvalidArgument("--argument needs --command, and it alone.")
    if not given:
        return None
    rivals = [f"--{kind}" for kind in given]
    rivals += ["NAME"] if arguments.name else []
    rivals += ["--ep"] if arguments.ep else []
    if len(rivals) > 1:
        raise InvalidArgument(
            f"{' and '.join(rivals)} do not go together.",
            hint="Check one plugin at a time: epctx plugins check --engine NAME.",
        )
    _refuse_options_of_eps(arguments, given[0])
    return given[0]


def _refuse_options_of_eps(arguments: argparse.Namespace, kind: str) -> None:
    foreign = {
        "without": "without", "provider_option": "provider-option",
        "library": "library", "through": "through", "tolerance": "tolerance",
        "results": "results", "html": "html",
    }  # fmt: skip
    if kind == "command":
        foreign |= {"model": "model", "full": "full", "quick": "quick"}
    for attribute, option in foreign.items():
        if getattr(arguments, attribute):
            raise InvalidArgument(f"--{option} does not go together with --{kind}.")


def make_run(arguments: argparse.Namespace, kind: str) -> Run:
    """Return the run of a kit for the plugin that an option names.

    Raises:
        PackageMissing, InvalidArgument: no package has it, or several.
        PluginError: it cannot be imported.
    """
    name: Any = name_of(arguments, kind)
    if kind == "command":
        from epctx_conformance.kinds import commands

        only = _choose(commands.KIT, arguments)
        return Run(
            commands.KIT,
            only,
            lambda progress: commands.check_command(
                name, arguments=arguments.argument, only=only, progress=progress
            ),
        )
    options = {"models": arguments.model, "full": arguments.full}
    if kind == "engine":
        from epctx_conformance.kinds import engines

        cls = load_entry(ENGINES, name, kind)
        only = _choose(engines.KIT, arguments)
        return Run(
            engines.KIT,
            only,
            lambda progress: engines.check_engine(
                cls, only=only, progress=progress, **options
            ),
        )
    from epctx_conformance.kinds import transformers

    transform = load_entry(TRANSFORMERS, name, "graph transformer")
    only = _choose(transformers.KIT, arguments)
    return Run(
        transformers.KIT,
        only,
        lambda progress: transformers.check_transformer(
            transform, only=only, progress=progress, **options
        ),
    )


def _choose(kit: Kit, arguments: argparse.Namespace) -> list[str] | None:
    for name in arguments.only:
        try:
            kit.choose([name])
        except ValueError:
            raise InvalidArgument(
                f"--only {name!r} is neither a group of checks nor a check.",
                hint=f"Groups: {', '.join(kit.groups)}.",
            ) from None
    if arguments.only or not arguments.quick:
        return arguments.only or None
    return [
        check.name
        for check in kit.choose(None)
        if "onnx's own cases" not in check.title
    ]
