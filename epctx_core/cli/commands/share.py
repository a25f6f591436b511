"""`epctx share`: compiles several models into a share group, with one binary for each EP.

Takes its arguments in the form of onnxruntime's `ep_weight_sharing_ctx_gen`, too.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.cli import text
from epctx_core.cli.arguments import CommandParser, add_common, add_providers, session_options
from epctx_core.cli.exit_codes import DONE
from epctx_core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.cli.console import Console
    from epctx_core.compile.sharing.share_group import ShareReport


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="the ONNX models; the first one's name begins that of the binary. Commas between them do as well",
    )
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
    foreign = parser.add_argument_group("as ep_weight_sharing_ctx_gen has them")
    foreign.add_argument("-e", dest="ep", action="append", metavar="EP", help="the same as --ep")
    foreign.add_argument("-C", dest="entries", metavar='"KEY|VALUE ..."', help="session options")
    foreign.add_argument("-i", dest="options", metavar='"KEY|VALUE ..."', help="options of the EP")
    add_common(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Compile all models, publish them together, report."""
    from epctx_core.compile.sharing.share_group import ShareGroup
    from epctx_core.options import OrtCompileApiFlags

    models = [model for given in arguments.models for model in _split_models(given)]
    names: list[str | None] = [*arguments.name] or [None] * len(models)
    if len(names) != len(models):
        raise InvalidArgument(
            f"there are {text.count(len(models), 'model')} and {text.count(len(names), 'name')}.",
            hint="Give --name once for each model, or not at all.",
        )
    if not arguments.ep:
        raise InvalidArgument("share needs an Execution Provider to compile with.", hint="Add --ep QNN.")
    _take_foreign(arguments)
    flags = OrtCompileApiFlags.NONE
    if arguments.no_clobber:
        flags |= OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS
    session = session_options(arguments, console)
    with (
        console.progress() as progress,
        ShareGroup(session, arguments.output, flags=flags, progress=progress) as group,
    ):
        for model, name in zip(models, names, strict=True):
            group.add(model, name=name)
        report = group.finish()
    _tell(models, report, console)
    console.result(report.as_dict())
    return DONE


def _split_models(given: str) -> list[str]:
    """Return the models of one argument: a path, or several with commas between them."""
    return [given] if Path(given).exists() else [part for part in given.split(",") if part]


def _take_foreign(arguments: argparse.Namespace) -> None:
    """Put options of the other tool's form to ours."""
    arguments.config += [f"{key}={value}" for key, value in _pairs(arguments.entries, "-C")]
    options = _pairs(arguments.options, "-i")
    if options and len(arguments.ep) != 1:
        raise InvalidArgument("-i does not say of which EP.", hint="Write -p EP.KEY=VALUE.")
    arguments.provider_option += [f"{arguments.ep[0]}.{key}={value}" for key, value in options]


def _pairs(given: str | None, flag: str) -> list[tuple[str, str]]:
    pairs = []
    for word in (given or "").split():
        key, bar, value = word.partition("|")
        if not bar or not key:
            raise InvalidArgument(f"{flag} {word!r} is not of the form KEY|VALUE.")
        pairs.append((key, value))
    return pairs


def _tell(models: Sequence[str], report: ShareReport, console: Console) -> None:
    rows = [
        (model, member.output.name if member.output else "", len(member.partitions), shares)
        for model, member in zip(models, report.members, strict=True)
        for shares in [", ".join(f"{ep} {count}" for ep, count in member.assignments.items())]
    ]
    console.table(("model", "context model", "partitions", "nodes run by"), rows)
    console.say()
    console.tree(f"{report.folder}/", [(file.path, text.size(file.bytes)) for file in report.outputs])
    console.say()
    console.say(f"Sharing saved {text.size(report.saved_bytes)} of weights.")
    if not report.binaries:
        console.warn("nothing was compiled: what was written are the plain models, which run on the CPU EP.")
