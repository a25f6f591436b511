"""`epctx share`: compile several models into a share group, with one binary for each EP.

Also takes `-e`, `-C`, `-i` and models joined by commas, as onnxruntime's `ep_weight_sharing_ctx_gen` does.
"""

from __future__ import annotations

import argparse
from pathlib import Path
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
        help="the ONNX models, also joined by commas; the binary is named after the first",
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
    tool = parser.add_argument_group("as in ep_weight_sharing_ctx_gen")
    tool.add_argument("-e", dest="ep", action="append", metavar="EP", help="the same as --ep")
    tool.add_argument("-C", dest="entries", metavar='"KEY|VALUE ..."', help="session options")
    tool.add_argument("-i", dest="options", metavar='"KEY|VALUE ..."', help="options of the only EP")
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Compile all models, publish them together, report."""
    from epctx_core import OrtCompileApiFlags, ShareGroup

    models = [
        model
        for argument in arguments.models
        for model in ([argument] if Path(argument).exists() else argument.split(","))
    ]
    names: list[str | None] = [*arguments.name] or [None] * len(models)
    if len(names) != len(models):
        raise InvalidArgument(
            f"there are {text.counted(len(models), 'model')} and {text.counted(len(names), 'name')}.",
            hint="Give --name once for each model, or not at all.",
        )
    if not arguments.ep:
        raise no_ep("share")
    options = _pairs(arguments.options, "-i")
    if options and len(arguments.ep) > 1:
        raise InvalidArgument("-i needs exactly one EP.", hint="Write -p EP.KEY=VALUE for each EP.")
    arguments.provider_option += [f"{arguments.ep[0]}.{pair}" for pair in options]
    arguments.config += _pairs(arguments.entries, "-C")
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
    _print_report(models, report, console)
    console.result({**report.as_dict(), "providers": report.members[0].as_dict()["providers"]})
    done = arguments.allow_uncompiled or all(member.compiled for member in report.members)
    return ExitCode.DONE if done else ExitCode.FAILED


def _pairs(argument: str | None, flag: str) -> list[str]:
    """Return `KEY|VALUE KEY|VALUE` as `KEY=VALUE` each."""
    words = (argument or "").split()
    if bad := next((word for word in words if not word.partition("|")[1] or word[0] == "|"), None):
        raise InvalidArgument(f"{flag} {bad!r} is not of the form KEY|VALUE.")
    return [word.replace("|", "=", 1) for word in words]


def _print_report(models: Sequence[str], report: ShareReport, console: Console) -> None:
    rows = [
        (model, member.output.name if member.output else "", len(member.partitions), shares)
        for model, member in zip(models, report.members, strict=True)
        for shares in [", ".join(f"{ep} {count}" for ep, count in member.assignments.items())]
    ]
    console.table(("model", "context model", "partitions", "nodes run by"), rows)
    used = {partition.ep for member in report.members for partition in member.partitions}
    console.note_simulated(r.name for r in report.members[0].providers if r.simulated and r.name in used)
    files = [(file.path, text.byte_size(file.bytes)) for file in report.outputs]
    console.table(("", ""), files, title=f"{report.folder}/")
    console.say(f"\nSharing saved {text.byte_size(report.saved_bytes)} of weights.")
