"""`epctx plugins`: which EPs are installed, what one is, whether it keeps the contract, and a new one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctx_cli.arguments import CommandParser

ACTIONS = (
    (
        "list",
        "listing",
        "list installed plugins",
        "Without --load none is imported. Exits with 0 whatever their states; `epctx doctor` judges them.",
    ),
    ("info", "information", "say all that is known about one plugin", "It is asked in a process of its own."),
    ("check", "checking", "run the conformance kit against one plugin", "Exits with 1 if a check failed."),
    ("new", "creating", "begin a new plugin", "Writes a complete package with an EP that works."),
)
"""Action, its module in `epctx_cli.plugins`, what it does, and what to know about it."""


def add_arguments(parser: CommandParser) -> None:
    """Declare the actions and their options."""
    parser.set_defaults(parser=parser)
    names = ", ".join(name for name, *_ in ACTIONS)
    actions = parser.add_subparsers(title="actions", metavar=f"ACTION ({names})", required=True)
    for name, module, summary, note in ACTIONS:
        action = actions.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}. {note}"
        )
        import_module(f"epctx_cli.plugins.{module}").add_arguments(action)
