"""`epctx seal`: give a context model that another tool wrote digests, so that damage is
found.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from epctx_cli import text
from epctx_cli.arguments import CommandParser, add_common
from epctx_cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from epctx_cli.console import Console

_SHOWN_DIGITS = 16


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a context model that another tool wrote, with the files beside it",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="write a sealed copy (default: replace MODEL)",
    )
    parser.add_flag(
        "--beside", "write the manifest into MODEL.epctx.json and leave MODEL as it is"
    )
    parser.add_flag("--force", "replace a manifest that says something else")
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Seal the model, and print the digests."""
    from epctx_core import seal_model

    with console.progress("computing digests"):
        report = seal_model(
            arguments.model,
            arguments.output,
            beside=arguments.beside,
            force=arguments.force,
        )
    place = report.manifest or report.path
    console.say(f"{'wrote' if report.written else 'sealed already:'} {place}")
    console.table(
        ("payload", "size", "digest"),
        [
            (n, text.byte_size(size), root[:_SHOWN_DIGITS])
            for n, (size, root) in report.payloads.items()
        ],
    )
    console.result(report.as_dict())
    return ExitCode.DONE
