"""Commands on files: `epctx seal`."""

from __future__ import annotations

import argparse

from epctx_cli.command import (
    CommandParser,
    Console,
    ExitCode,
    add_common,
    byte_size,
)

_SHOWN_DIGITS = 16


def add_seal_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx seal`."""
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
    parser.set_defaults(run=run_seal)


def run_seal(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Seal the model, and print the digests."""
    from epctx_files.sealing import seal_model

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
            (n, byte_size(size), root[:_SHOWN_DIGITS])
            for n, (size, root) in report.payloads.items()
        ],
    )
    console.result(report.as_dict())
    return ExitCode.DONE
