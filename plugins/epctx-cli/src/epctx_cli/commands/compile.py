"""`epctx compile` and `epctx share`: write context models, and report every node."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_cli import text
from epctx_cli.arguments import (
    CommandParser,
    add_allow_uncompiled,
    add_common,
    add_providers,
    add_timeout,
    no_ep,
    session_options,
)
from epctx_cli.exit_codes import ExitCode
from epctx_cli.profiling import add_profile, profiling
from epctx_cli.results import (
    CheckedOutputs,
    CompileResult,
    ShareResult,
)
from epctx_cli.source_check import CHECK_TOLERANCE
from epctx_core.errors import EpctxError, InvalidArgument, one_line
from epctx_core.ext import import_installed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_cli.console import Console
    from epctx_cli.progress import Progress
    from epctx_core import CompileReport, ModelCompiler, SessionOptions, ShareReport

_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "fold": "",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
}
"""Names of optimisation levels; folding alone is the default, and has none."""
_SHOWN_PARTITIONS = 20
_SHOWN_REFUSALS = 5
_SHOWN_OPERATORS = 4


def add_compile_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx compile`."""
    parser.add_argument("model", metavar="MODEL", help="the ONNX model to compile")
    add_providers(
        parser, ep_help="an EP to compile with; may be repeated, in order of priority"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help=(
            "the context model, or a folder for it (default: <MODEL>_ctx.onnx beside "
            "MODEL)"
        ),
    )
    parser.add_flag(
        "--embed", "store payloads in the model instead of a file beside it"
    )
    parser.add_argument(
        "--external-initializers",
        metavar="NAME",
        help="file for the remaining initializers of 1 KiB or more, relative to OUT",
    )
    parser.add_flag(
        "--check", "then load it and compare it with the CPU EP on random inputs"
    )
    parser.add_flag("--no-clobber", "fail if the output exists")
    parser.add_flag(
        "--require-compiled", "fail and write nothing if no node was compiled"
    )
    parser.add_argument(
        "--optimize",
        choices=_LEVELS,
        default="fold",
        help="what is simplified before EPs see the model: nothing, what it computes "
        "from constants and static shapes (default), or all that onnxruntime's "
        "optimiser does with ONNX's operators, or also with its own",
    )
    add_timeout(parser)
    add_allow_uncompiled(parser)
    add_profile(parser)
    add_common(parser)
    # Of --check.
    parser.set_defaults(run=run_compile, input=None, seed=0)


def run_compile(arguments: argparse.Namespace, console: Console) -> int:
    """Compile, report, and check with --check."""
    if not arguments.ep:
        raise no_ep("compile")
    session = session_options(arguments, console)
    output = _output(arguments, session)
    with profiling(arguments, session, console), console.progress() as progress:
        progress.watch(session)
        compiler = _make_compiler(arguments, session, progress)
        report = compiler.compile_to_file(output)
    _print_compile(arguments.model, report, console)
    is_done = report.compiled or arguments.allow_uncompiled
    code = ExitCode.DONE if is_done else ExitCode.FAILED
    check = None
    # Without it the compile has failed.
    if arguments.check and is_done:
        check = _check(arguments, report, console)
        code = code if check.equal else ExitCode.FAILED
    if not is_done:
        unchecked = ", so nothing was checked" if arguments.check else ""
        console.note(
            f"Nothing was compiled{unchecked}. With --allow-uncompiled this exits with "
            "0; with --require-compiled nothing is written."
        )
    if code == ExitCode.DONE:
        # Values are not repeated, since they may be secret.
        options = " with the same --ep and -p" if arguments.provider_option else ""
        options += (
            " with the same --custom-ops-library"
            if arguments.custom_ops_library
            else ""
        )
        next_command = f"epctx run {shlex.quote(str(report.output))}{options}"
        console.say(f"\nNext: {next_command}", wrap=False)
    console.result(report, CompileResult(folder=str(report.folder), check=check))
    return code


def _make_compiler(
    arguments: argparse.Namespace, session: SessionOptions, progress: Progress
) -> ModelCompiler:
    from epctx_core import GraphOptimizationLevel, ModelCompiler, OrtCompileApiFlags

    flags = OrtCompileApiFlags.NONE
    if arguments.no_clobber:
        flags |= OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS
    if arguments.require_compiled:
        flags |= OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
    name = _LEVELS[arguments.optimize]
    level = GraphOptimizationLevel[name] if name else None
    return ModelCompiler(
        session,
        arguments.model,
        arguments.embed or None,
        arguments.external_initializers,
        flags=flags,
        graph_optimization_level=level,
        progress=progress,
    )


def _output(arguments: argparse.Namespace, session: SessionOptions) -> str | None:
    """Return the output path, or None for the default; in a folder it has the default
    name.
    """
    path = (
        session.config().context_file_path
        if arguments.output is None
        else str(arguments.output)
    )
    if path is None:
        return None
    if not path:
        raise InvalidArgument("-o has no path.")
    if path.endswith(("/", os.sep)) or os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for over-long names
        return str(Path(path, f"{Path(arguments.model).stem}_ctx.onnx"))
    return path


def _print_compile(model: str, report: CompileReport, console: Console) -> None:
    console.say(f"{model} -> {report.output}")
    if report.inside_nodes or report.folded_nodes:
        count = text.count_nodes(
            report.total_nodes, report.inside_nodes, report.folded_nodes
        )
        console.say(f"{count}.")
    _print_partitions(report, console)
    if report.kept_nodes:
        console.say(
            f"\n{text.counted(len(report.kept_nodes), 'EPContext node')} of the model "
            "passed through unchanged."
        )
    _print_assignments(report, console)
    _print_refusals(report, console)
    _print_files(report, console)
    if report.source_files:
        console.say(
            "\nWeights stay in the source model: a load needs "
            f"{one_line(' and '.join(report.source_files))} beside the context model, "
            "or ep.context_source_model_path."
        )
    console.note_simulated(
        r.name
        for r in report.providers
        if r.simulated and report.assignments.get(r.name)
    )


def _print_partitions(report: CompileReport, console: Console) -> None:
    shown = (
        report.partitions if console.verbose else report.partitions[:_SHOWN_PARTITIONS]
    )
    console.table(
        ("partition", "EP", "nodes", "operators"),
        [
            (p.name, p.ep, p.nodes, text.operators(p.operators, _SHOWN_OPERATORS))
            for p in shown
        ],
    )
    if left := len(report.partitions) - len(shown):
        console.say(f"  … and {text.counted(left, 'partition')} more; -v shows all.")


def _print_assignments(report: CompileReport, console: Console) -> None:
    plugins = {}
    for record in report.providers:
        package = f"{record.distribution or ''} {record.version or ''}".strip()
        plugins[record.name] = package, record.vendor or ""

    rows = []
    for ep in dict.fromkeys([*plugins, *report.assignments]):
        nodes = report.assignments.get(ep, 0)
        package, vendor = plugins.get(ep, ("built in", ""))
        rows.append((ep, nodes, package, vendor))
    console.table(("taken by", "nodes", "plugin", "vendor"), rows)


def _print_refusals(report: CompileReport, console: Console) -> None:
    from epctx_conformance.refusals import Refused

    refusals = [
        Refused(
            ep=refusal.ep,
            reason=refusal.reason,
            node=node,
            operator=operator,
            follows=refusal.follows.get(node),
            inside=refusal.inside.get(node, 0),
        )
        for refusal in report.refusals
        for node, operator in zip(refusal.nodes, refusal.operators, strict=True)
    ]
    lines = text.describe_refusals(refusals)
    # An EP may give a reason without a node.
    lines += [
        f"{refusal.ep}: {one_line(refusal.reason)}"
        for refusal in report.refusals
        if not refusal.nodes
    ]
    shown = lines if console.verbose else lines[:_SHOWN_REFUSALS]
    if shown:
        console.say("\nRefused:")
    for line in shown:
        console.say(f"  {line}")
    if left := len(lines) - len(shown):
        console.say(f"  … and {text.counted(left, 'reason')} more; -v shows all.")


def _check(
    arguments: argparse.Namespace, report: CompileReport, console: Console
) -> CheckedOutputs:
    """Compare the compiled model with the source on the CPU EP."""
    from epctx_cli.commands.run import print_differences
    from epctx_cli.source_check import compare_with_source

    try:
        differences = compare_with_source(
            str(report.output), arguments.model, arguments, console
        )
    except EpctxError as error:
        error.hint = (
            f"{one_line(str(report.output))} is written; its check failed. "
            f"{error.hint or ''}"
        ).rstrip()
        raise
    wrong = print_differences(
        differences,
        console,
        title="Checked against the CPU EP, on inputs made from seed 0 (max_rel at most "
        f"{CHECK_TOLERANCE:g}):",
    )
    if wrong:
        console.error(
            "the compiled model disagrees with the CPU EP in "
            f"{text.counted(len(wrong), 'output')}: {wrong[0].name!r} "
            f"{wrong[0].describe()}.\nepctx compare {shlex.quote(str(report.output))} "
            f"{shlex.quote(arguments.model)} shows where they differ first."
        )
    return CheckedOutputs(
        equal=not wrong, tolerance=CHECK_TOLERANCE, outputs=differences
    )


def add_share_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx share`."""
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help=(
            "the ONNX models, also joined by commas; the binary is named after the "
            "first"
        ),
    )
    parser.list_among_options = "models"
    add_providers(
        parser, ep_help="an EP to compile with; may be repeated, in order of priority"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FOLDER",
        help="folder for all files (default: that of the first model)",
    )
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="NAME",
        help=(
            "the stem of a context model; once for each model, if two have the same "
            "stem"
        ),
    )
    parser.add_flag("--no-clobber", "fail if a context model exists")
    parser.add_flag(
        "--seal",
        "then seal the folder, as `epctx seal FOLDER` does, so that `epctx "
        "verify FOLDER` finds files of another build",
    )
    add_timeout(parser)
    add_allow_uncompiled(parser)
    tool = parser.add_argument_group("as in ep_weight_sharing_ctx_gen")
    tool.add_argument(
        "-e", dest="ep", action="append", metavar="EP", help="the same as --ep"
    )
    tool.add_argument(
        "-C", dest="entries", metavar='"KEY|VALUE ..."', help="session options"
    )
    tool.add_argument(
        "-i", dest="options", metavar='"KEY|VALUE ..."', help="options of the only EP"
    )
    add_common(parser)
    parser.set_defaults(run=run_share)


def run_share(arguments: argparse.Namespace, console: Console) -> int:
    """Compile all models, publish them together, and report."""
    from epctx_core import OrtCompileApiFlags, ShareGroup

    models = [
        model
        for argument in arguments.models
        for model in ([argument] if Path(argument).exists() else argument.split(","))
    ]
    names: list[str | None] = [*arguments.name] or [None] * len(models)
    if len(names) != len(models):
        raise InvalidArgument(
            f"there are {text.counted(len(models), 'model')} and "
            f"{text.counted(len(names), 'name')}.",
            hint="Give --name once for each model, or not at all.",
        )
    if not arguments.ep:
        raise no_ep("share")
    options = _pairs(arguments.options, "-i")
    if options and len(arguments.ep) > 1:
        raise InvalidArgument(
            "-i needs exactly one EP.", hint="Write -p EP.KEY=VALUE for each EP."
        )
    arguments.provider_option += [f"{arguments.ep[0]}.{pair}" for pair in options]
    arguments.config += _pairs(arguments.entries, "-C")
    no_clobber = OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS
    flags = no_clobber if arguments.no_clobber else OrtCompileApiFlags.NONE
    session = session_options(arguments, console)
    if arguments.seal:
        # Before the compiles, which take minutes.
        files = import_installed("epctx_files", needed_by="--seal")
    with (
        console.progress() as progress,
        ShareGroup(arguments.output, flags=flags, progress=progress) as group,
    ):
        progress.watch(session)
        for model, name in zip(models, names, strict=True):
            group.compile(model, session, name=name)
    report = group.report
    _print_share(models, report, console)
    if arguments.seal:
        files.seal_folder(report.folder)
        console.say("The folder is sealed.")
    providers = report.members[0].as_dict()["providers"]
    console.result(report, ShareResult(providers=providers))
    done = arguments.allow_uncompiled or all(
        member.compiled for member in report.members
    )
    return ExitCode.DONE if done else ExitCode.FAILED


def _pairs(argument: str | None, flag: str) -> list[str]:
    """Return `KEY|VALUE KEY|VALUE` as `KEY=VALUE` each."""
    words = (argument or "").split()
    for word in words:
        key, bar, _ = word.partition("|")
        if not key or not bar:
            raise InvalidArgument(f"{flag} {word!r} is not of the form KEY|VALUE.")
    return [word.replace("|", "=", 1) for word in words]


def _print_share(models: Sequence[str], report: ShareReport, console: Console) -> None:
    rows = []
    for model, member in zip(models, report.members, strict=True):
        shares = [f"{ep} {count}" for ep, count in member.assignments.items()]
        rows.append(
            (
                model,
                member.output.name if member.output else "",
                len(member.partitions),
                ", ".join(shares),
            )
        )
    console.table(("model", "context model", "partitions", "nodes run by"), rows)
    used = {
        partition.ep for member in report.members for partition in member.partitions
    }
    console.note_simulated(
        r.name for r in report.members[0].providers if r.simulated and r.name in used
    )
    _print_files(report, console)
    console.say(f"\nSharing saved {text.byte_size(report.saved_bytes)} of weights.")


def _print_files(report: CompileReport | ShareReport, console: Console) -> None:
    files = [(file.path, text.byte_size(file.bytes)) for file in report.outputs]
    console.table(("", ""), files, title=f"{report.folder}/")
