"""`epctx report`: a page that shows a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from epctx_cli.command import (
    CommandParser,
    Console,
    ExitCode,
    add_common,
    add_providers,
    byte_size,
    count_nodes,
    counted,
    session_options,
)

from epctx_core.errors import InvalidArgument, one_line
from epctx_report.results import ReportResult

if TYPE_CHECKING:
    import argparse

    from epctx_report.results import ModelSummary

_ENDINGS = (".html", ".htm")


def add_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx report`."""
    parser.description = (
        "Write one page that shows how a model is cut for EPs, why nodes were refused, "
        "its files, and what is worth a look. It needs no network and no other file."
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a plain model, a context model, or a folder of models",
    )
    parser.add_argument(
        "other", metavar="OTHER", nargs="?", help="a second model, to compare with"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT.html",
        help="the page to write (default: the name of MODEL with .html, here)",
    )
    add_providers(
        parser,
        ep_help=(
            "an EP to ask what it takes; may be repeated, in order of priority "
            "(default: none, which shows a context model)"
        ),
    )
    parser.add_argument(
        "--trace",
        action="append",
        default=[],
        metavar="FILE.json",
        help="times of epctx run --profile or compile --profile; may be repeated",
    )
    parser.add_argument(
        "--bench",
        metavar="FILE.json",
        help="times to show: those of epctx bench --json",
    )
    parser.add_argument(
        "--errors",
        metavar="FILE.json",
        help="errors to show: those of epctx compare --by-partition --json",
    )
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Write the page, and print in few lines what it shows."""
    from epctx_core.ext import Publication
    from epctx_report.measurements import Measurements
    from epctx_report.report import make_report

    output = _choose_output(arguments.model, arguments.output)
    Publication.check_folder(output.parent)
    options = session_options(arguments, console)
    with console.progress("making the report") as progress:
        progress.watch(options)
        report = make_report(
            arguments.model,
            arguments.other,
            sess_options=options,
            measurements=Measurements(
                traces=arguments.trace,
                bench=arguments.bench,
                errors=arguments.errors,
            ),
        )
        report.write(output)

    models = report.summary()
    for model in models:
        _print_model(model, console)
    if report.differences is not None:
        console.say()
        console.say(counted(report.differences, "difference"))
    size = output.stat().st_size
    console.say()
    console.say(f"wrote {output} ({byte_size(size)})")
    console.result(
        ReportResult(
            output=str(output),
            bytes=size,
            models=models,
            differences=report.differences,
        )
    )
    return ExitCode.DONE


def _print_model(model: ModelSummary, console: Console) -> None:
    name = one_line(model.name)
    if model.error is not None:
        console.warn(f"{name}: {one_line(model.error)}")
        return
    count = count_nodes(model.nodes, model.inside_nodes, model.folded_nodes)
    console.say(f"{name}: {count}")
    heads = ["taken by", "nodes", "partitions"]
    rows: list[tuple[str | int, ...]] = [
        (ep.name, ep.nodes, ep.partitions) for ep in model.eps
    ]
    if model.share_of is not None:
        heads.append(f"share of {model.share_of}")
        rows = [
            (*row, f"{ep.share:.1%}") for row, ep in zip(rows, model.eps, strict=True)
        ]
    console.table(heads, rows)
    if model.advice:
        console.say()
    for advice in model.advice:
        console.say(f"  {one_line(advice.title)}")


def _choose_output(model: str, output: str | None) -> Path:
    """Return the path of the page.

    Raises:
        InvalidArgument: it has another ending, so that no model is replaced by mistake.
    """
    source = Path(model)
    if output is None:
        return Path(
            f"{source.resolve().name}.html"
            if source.is_dir()
            else f"{source.stem}.html"
        )
    path = Path(output)
    if path.suffix.lower() not in _ENDINGS or path.is_dir():
        raise InvalidArgument(
            f"-o {output!r} is not the name of a file that ends in .html.",
            path=path,
            hint="Choose a name such as report.html.",
        )
    return path
