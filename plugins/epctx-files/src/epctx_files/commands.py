"""Commands on files: `epctx merge`, `extract`, `embed`, `externalize`, `diff` and
`seal`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_cli.command import (
    CommandParser,
    Console,
    ExitCode,
    add_common,
    byte_size,
    counted,
)

from epctx_core.errors import InvalidArgument, one_line

if TYPE_CHECKING:
    from epctx_files.bundle import FilesReport
    from epctx_files.difference import Difference

_SHOWN_DIGITS = 16
_MOST_SHOWN = 20
"""Differences of one part that `epctx diff` lists without `-v`."""


def _add_output(parser: CommandParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help="the model to write; files that it names go into its folder",
    )


def add_merge_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx merge`."""
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="plain models and context models, in the order of their work",
    )
    parser.list_among_options = "models"
    _add_output(parser)
    parser.add_argument(
        "--join",
        action="append",
        default=[],
        metavar="A.OUT=B.IN",
        help=(
            "the output of one model that is the input of a later one, each with the "
            "stem of its file, or its number from 1; may be repeated. Values of one "
            "name are joined without it"
        ),
    )
    parser.add_argument(
        "--prefix",
        action="append",
        default=[],
        metavar="MODEL=PREFIX",
        help="a prefix for the names of all values of a model; may be repeated",
    )
    add_common(parser)
    parser.set_defaults(run=run_merge)


def run_merge(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Merge the models, and list the files."""
    from epctx_files.merging import merge

    with console.progress("merging"):
        report = merge(
            arguments.models,
            arguments.output,
            joins=_split_pairs("--join", arguments.join, "A.OUT=B.IN"),
            prefixes={
                name: prefixes[-1]
                for name, prefixes in _split_pairs(
                    "--prefix", arguments.prefix, "MODEL=PREFIX"
                ).items()
            },
        )
    return show_files(report, console)


def _split_pairs(flag: str, texts: Iterable[str], form: str) -> Mapping[str, list[str]]:
    """Return the right sides of texts by their left sides.

    Raises:
        InvalidArgument: a text has no two sides.
    """
    pairs: dict[str, list[str]] = {}
    for text in texts:
        left, equals, right = text.partition("=")
        if not (left and equals and right):
            raise InvalidArgument(f"{flag} {text!r} is not of the form {form}.")
        pairs.setdefault(left, []).append(right)
    return pairs


def add_extract_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx extract`."""
    parser.add_argument(
        "model", metavar="MODEL", help="a plain model or a context model"
    )
    _add_output(parser)
    parser.add_argument(
        "--node", metavar="NAME", help="a node, such as an EPContext node"
    )
    for flag, meaning in (
        ("--inputs", "values where the part begins (default: the model's inputs)"),
        ("--outputs", "values where it ends (default: the model's outputs)"),
    ):
        parser.add_argument(flag, metavar="NAME", nargs="+", default=[], help=meaning)
    parser.add_argument(
        "--source",
        metavar="MODEL",
        help=(
            "the model that MODEL was compiled from: write what the EPContext node "
            "replaced there"
        ),
    )
    add_common(parser)
    parser.set_defaults(run=run_extract)


def run_extract(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Extract the part, and list the files."""
    from epctx_files.extraction import extract

    report = extract(
        arguments.model,
        arguments.output,
        node=arguments.node,
        inputs=arguments.inputs,
        outputs=arguments.outputs,
        source=arguments.source,
    )
    return show_files(report, console)


def add_embed_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx embed`."""
    _add_rewrite(parser, "embed", "a model with context binaries or weights beside")


def add_externalize_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx externalize`."""
    _add_rewrite(parser, "externalize", "a model with embedded payloads or weights")


def _add_rewrite(parser: CommandParser, function: str, model: str) -> None:
    """Declare the options of a command that writes a model in another form."""
    parser.add_argument("model", metavar="MODEL", help=model)
    _add_output(parser)
    add_common(parser)
    parser.set_defaults(run=run_rewrite, function=function)


def run_rewrite(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Write the model with all that it names, or with files for what was in it."""
    from epctx_files import embedding

    rewrite = getattr(embedding, arguments.function)
    with console.progress("writing files"):
        return show_files(rewrite(arguments.model, arguments.output), console)


def show_files(report: FilesReport, console: Console) -> ExitCode:
    """List what was written, and how."""
    console.say(f"wrote {report.model}")
    console.table(
        ("file", "size", "how"),
        [(file.name, byte_size(file.bytes), file.how) for file in report.files],
    )
    for note in report.notes:
        console.warn(f"{note}.")
    console.result(report.as_dict())
    return ExitCode.DONE


def add_diff_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx diff`."""
    parser.add_argument("first", metavar="FIRST", help="a model")
    parser.add_argument("second", metavar="SECOND", help="a model to compare with it")
    parser.add_flag(
        "--weights", "compare the bytes of weights in files, too, which reads them"
    )
    add_common(parser)
    parser.set_defaults(run=run_diff)


def run_diff(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Print the differences; 1 if there are any."""
    from epctx_files.difference import diff

    with console.progress("comparing"):
        report = diff(arguments.first, arguments.second, weights=arguments.weights)
    for _, group in groupby(report.differences, key=lambda each: each.part):
        differences = list(group)
        shown = differences if console.verbose else differences[:_MOST_SHOWN]
        for difference in shown:
            for line in _list_lines(difference):
                console.say(line)
        if hidden := len(differences) - len(shown):
            part = differences[0].part
            console.say(f"… and {counted(hidden, part)} more; -v shows all.")
    count = counted(len(report.differences), "difference")
    console.say(f"{count}." if report.differences else "no differences.")
    for note in report.notes:
        console.warn(f"{note} (--weights compares them).")
    console.result(report.as_dict())
    return ExitCode.FAILED if report.differences else ExitCode.DONE


def _list_lines(difference: Difference) -> Iterable[str]:
    """Yield the lines for a difference, marked as in a patch."""
    yield f"{difference.part} {one_line(difference.name)}"
    if difference.first is not None:
        yield f"  - {one_line(difference.first)}"
    if difference.second is not None:
        yield f"  + {one_line(difference.second)}"


def add_seal_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx seal`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=(
            "a context model that another tool wrote, with the files beside it; or the "
            "folder of a build, which gets a digest of all its files"
        ),
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
    parser.add_argument("--purpose", metavar="TEXT", help="use of a folder")
    add_common(parser)
    parser.set_defaults(run=run_seal)


def run_seal(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Seal the model or the folder, and print the digests."""
    from epctx_files.sealing import seal_model

    if Path(arguments.model).is_dir():
        return _seal_folder(arguments, console)
    if arguments.purpose:
        raise InvalidArgument("--purpose is for folders, not models.")
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


def _seal_folder(arguments: argparse.Namespace, console: Console) -> ExitCode:
    from epctx_files.folders import DIGEST, seal_folder

    if arguments.output or arguments.beside or arguments.force:
        raise InvalidArgument("-o, --beside and --force are for models, not folders.")
    with console.progress("computing digests"):
        sealed = seal_folder(arguments.model, purpose=arguments.purpose)
    console.say(f"wrote {Path(arguments.model) / DIGEST}")
    console.table(
        ("file", "size", "digest"),
        [(f.name, byte_size(f.size), f.digest[:_SHOWN_DIGITS]) for f in sealed.files],
    )
    console.result(sealed)
    return ExitCode.DONE
