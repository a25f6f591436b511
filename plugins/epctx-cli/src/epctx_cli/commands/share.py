"""`epctx share`: compile several models into a share group, with one binary for each EP."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from epctx_cli import text
from epctx_cli.arguments import (
    CommandParser,
    add_allow_uncompiled,
    add_common,
    add_providers,
    no_ep,
    session_options,
)
from epctx_cli.exit_codes import ExitCode
from epctx_core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_cli.console import Console
    from epctx_core import ShareReport


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="the ONNX models; the binary is named after the first",
    )
    parser.list_among_options = "models"
    add_providers(parser, ep_help="an EP to compile with; repeat it, the first has priority, CPU comes last")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", help="where all files go (default: the first model's folder)"
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help="the stem of a context model; once for each model, in their order, where two have one stem",
    )
    parser.add_argument("--no-clobber", action="store_true", help="fail if a context model exists")
    add_allow_uncompiled(parser)
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Compile all models, publish them together, report."""
    from epctx_core import OrtCompileApiFlags, ShareGroup

    models = arguments.models
    names: list[str | None] = [*arguments.name] or [None] * len(models)
    if len(names) != len(models):
        raise InvalidArgument(
            f"there are {text.counted(len(models), 'model')} and {text.counted(len(names), 'name')}.",
            hint="Give --name once for each model, or not at all.",
        )
    if not arguments.ep:
        raise no_ep("share")
    no_clobber = OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS
    flags = no_clobber if arguments.no_clobber else OrtCompileApiFlags.NONE
    session = session_options(arguments, console)
    with (
        console.progress() as progress,
        ShareGroup(arguments.output, flags=flags, progress=progress) as group,
    ):
        for model, name in zip(models, names, strict=True):
            group.compile(model, session, name=name)
    report = group.report
    _tell(models, report, console)
    console.result({**report.as_dict(), "providers": report.members[0].as_dict()["providers"]})
    done = arguments.allow_uncompiled or all(member.compiled for member in report.members)
    return ExitCode.DONE if done else ExitCode.FAILED


def _tell(models: Sequence[str], report: ShareReport, console: Console) -> None:
    rows = [
        (model, member.output.name if member.output else "", len(member.partitions), shares)
        for model, member in zip(models, report.members, strict=True)
        for shares in [", ".join(f"{ep} {count}" for ep, count in member.assignments.items())]
    ]
    console.table(("model", "context model", "partitions", "nodes run by"), rows)
    used = {partition.ep for member in report.members for partition in member.partitions}
    console.note_simulated(r.name for r in report.members[0].providers if r.simulated and r.name in used)
    console.tree(f"{report.folder}/", [(file.path, text.byte_size(file.bytes)) for file in report.outputs])
    console.say(f"\nSharing saved {text.byte_size(report.saved_bytes)} of weights.")
