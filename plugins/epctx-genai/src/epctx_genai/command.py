"""`epctx genai`: build, verify, inspect, measure and show folders of GenAI."""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_cli.command import (
    CommandParser,
    Console,
    ExitCode,
    add_common,
    add_providers,
    byte_size,
    counted,
    session_options,
    whole_number,
)

from epctx_core.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_genai.inspection import StageInfo

_POSITIVE = partial(whole_number, least=1)


def add_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx genai`."""
    parser.description = (
        "Folders of language models for onnxruntime-genai, whose stages are context "
        "models."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, meaning, declare in (
        ("build", "compile the stages of a folder into another folder", _add_build),
        ("verify", "check that a folder is whole, and its stages fit", _add_verify),
        (
            "inspect",
            "show the stages, and what flows between them",
            _add_inspect,
        ),
        ("report", "write one page of a folder", _add_report),
        ("bench", "measure the first token and tokens a second", _add_bench),
    ):
        command = commands.add_parser(name, help=meaning, description=meaning)
        declare(command)
        add_common(command)


def _add_build(parser: CommandParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the folder with the source")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="folder to write (default: FOLDER-ctx)",
    )
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        metavar="NAME",
        help="a stage to compile; may be repeated (default: all)",
    )
    parser.add_flag(
        "--share",
        "one binary for stages with equal weights, which Qualcomm's simulator does not "
        "load",
    )
    parser.add_flag(
        "--local",
        "write options that hold on this machine alone, such as the path of a back "
        "end; needed without an NPU",
    )
    add_providers(
        parser, ep_help="an EP to compile for; may be repeated, in order of priority"
    )
    parser.set_defaults(run=run_build)


def _add_verify(parser: CommandParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the folder")
    parser.set_defaults(run=run_verify)


def _add_inspect(parser: CommandParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the folder")
    parser.set_defaults(run=run_inspect)


def _add_report(parser: CommandParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the folder")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="genai.html", help="the page to write"
    )
    parser.set_defaults(run=run_report)


def _add_bench(parser: CommandParser) -> None:
    parser.add_argument("folders", metavar="FOLDER", nargs="+", help="the folders")
    for name, default, meaning in (
        ("--prompt", 32, "length of the prompt"),
        ("--tokens", 32, "tokens to generate after the first"),
        ("--turns", 3, "processes for each folder"),
    ):
        parser.add_argument(
            name,
            type=_POSITIVE,
            default=default,
            metavar="N",
            help=f"{meaning} (default: {default})",
        )
    parser.set_defaults(run=run_bench)


def run_build(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Build a folder, and list its stages."""
    from epctx_genai.building import BuildSettings, build_folder

    source = Path(arguments.folder).absolute()
    options = session_options(arguments, console)
    with console.progress() as progress:
        report = build_folder(
            source,
            arguments.output
            or source.absolute().with_name(f"{source.absolute().name}-ctx"),
            options,
            settings=BuildSettings(
                stages=arguments.stage, share=arguments.share, local=arguments.local
            ),
            progress=progress,
        )
    _show_stages(report.stages, console)
    console.say(f"\n{one_line(str(report.folder))}: written and sealed")
    console.result(report)
    return ExitCode.DONE


def run_verify(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Verify a folder; 1 if something is wrong."""
    from epctx_genai.verification import verify_folder

    report = verify_folder(arguments.folder)
    for finding in report.findings:
        console.say(one_line(f"{finding.code}  {finding.subject}: {finding.message}"))
    if not report.sealed:
        console.warn(
            "the folder has no digest: nothing says that its files belong together"
        )
    console.say(
        "ok: nothing found"
        if report.ok
        else f"faulty: {counted(len(report.findings), 'fault')}"
    )
    console.result({"ok": report.ok}, report)
    return ExitCode.DONE if report.ok else ExitCode.FAILED


def run_inspect(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Show the stages of a folder, and what flows between them."""
    from epctx_genai.inspection import inspect_folder

    info = inspect_folder(arguments.folder)
    _show_stages(info.stages, console)
    if info.flows:
        console.say()
        console.table(
            ("value", "type", "from", "to"),
            [(flow.value, flow.type, flow.source, flow.target) for flow in info.flows],
        )
    console.result(info)
    return ExitCode.DONE


def _show_stages(stages: Sequence[StageInfo], console: Console) -> None:
    console.table(
        ("stage", "runs for", "EPs", "partitions", "CPU nodes", "size", "model"),
        [
            (
                stage.name,
                stage.runs_for,
                ", ".join(stage.eps) or "CPU",
                f"{stage.partitions:,}",
                f"{stage.other_nodes:,}",
                byte_size(stage.bytes),
                stage.file,
            )
            for stage in stages
        ],
    )
    console.note_simulated(ep for stage in stages for ep in stage.simulated)


def run_report(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Write the page of a folder."""
    from epctx_core.ext import Publication
    from epctx_genai.page import make_page

    output = Path(arguments.output)
    page = make_page(arguments.folder).encode()
    with Publication(output.parent) as publication:
        publication.create(output.name).write(page)
        publication.commit([output.name])
    console.say(f"{one_line(str(output))}: open it in a browser")
    console.result({"page": str(output)})
    return ExitCode.DONE


def run_bench(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Measure folders in turns."""
    from epctx_genai.measuring import bench_folders

    with console.progress() as progress:
        times = bench_folders(
            arguments.folders,
            prompt=arguments.prompt,
            tokens=arguments.tokens,
            turns=arguments.turns,
            progress=progress,
        )
    console.table(
        ("folder", "load", "first token", "tokens a second", "size"),
        [
            (
                each.folder,
                f"{statistics.median(each.load) * 1e3:,.0f} ms",
                f"{statistics.median(each.first_token) * 1e3:,.1f} ms",
                f"{each.tokens_per_second:.1f}",
                byte_size(each.bytes),
            )
            for each in times
        ],
    )
    console.note_simulated(ep for each in times for ep in each.simulated)
    console.result({"folders": times})
    return ExitCode.DONE
