"""`epctx bench`: measure compiling, loading and running models."""

from __future__ import annotations

import argparse
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from epctx_cli.command import (
    CommandParser,
    Console,
    ExitCode,
    add_common,
    add_config,
    provider_options,
    require_plugin,
    whole_number,
)

from epctx_bench.settings import BenchSettings
from epctx_core.errors import InvalidArgument, one_line

# `--help` imports this module, and neither numpy nor onnx: what needs them is imported
# in functions.
if TYPE_CHECKING:
    from epctx_bench.gate import Judgement
    from epctx_bench.report import BenchReport

_DEFAULTS = BenchSettings()
_POSITIVE = partial(whole_number, least=1)
_COMMA = re.compile(r"(?<!\\),")
"""A comma between values; one behind a backslash is part of a value."""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx bench`."""
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", help="a plain model or a context model"
    )
    parser.list_among_options = "models"
    _add_columns(parser)
    _add_amounts(parser)
    _add_gate(parser)
    parser.add_flag("--no-onnxruntime", "do not measure onnxruntime's CPU session")
    add_common(parser)
    parser.set_defaults(run=run)


def _add_columns(parser: CommandParser) -> None:
    for names, form, meaning in (
        (
            ("--ep",),
            "EP[+EP…]",
            (
                "EPs of a column, in order of priority, such as VitisAI+QNN; each --ep "
                "is a column (default: one for each installed EP)"
            ),
        ),
        (
            ("-p", "--provider-option"),
            "EP.KEY=VALUE[,VALUE…]",
            (
                "an option of one EP; several values give a column each (a comma "
                r"within a value is written \,); may be repeated"
            ),
        ),
        (
            ("-c", "--config"),
            "KEY=VALUE",
            "a session option of all columns; may be repeated",
        ),
        (
            ("--free-dimension",),
            "NAME=LENGTH",
            (
                "the length of an open dimension of the models, such as batch=1; may "
                "be repeated"
            ),
        ),
    ):
        parser.add_argument(
            *names, action="append", default=[], metavar=form, help=meaning
        )


def _add_amounts(parser: CommandParser) -> None:
    parser.add_argument(
        "--turns",
        type=_POSITIVE,
        default=_DEFAULTS.turns,
        metavar="N",
        help=f"measure every column N times (default: {_DEFAULTS.turns})",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=_DEFAULTS.time_limit,
        metavar="SECONDS",
        help=(
            "begin no further turn after this time, of all models together (default: "
            f"{_DEFAULTS.time_limit:g})"
        ),
    )
    parser.add_argument(
        "--runs",
        type=_POSITIVE,
        metavar="N",
        help=f"steady runs in a turn (default: {_DEFAULTS.run_seconds:g} seconds)",
    )
    parser.add_argument(
        "--threads",
        type=_positive_list,
        default=_DEFAULTS.threads,
        metavar="N[,N…]",
        help="threads that run one session at the same time (default: 1)",
    )
    parser.add_argument(
        "--batch",
        type=_positive_list,
        default=_DEFAULTS.batch_sizes,
        metavar="N[,N…]",
        help="lengths of an open first dimension (default: 1)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=_DEFAULTS.seed,
        metavar="N",
        help=f"seed of the inputs (default: {_DEFAULTS.seed})",
    )


def _add_gate(parser: CommandParser) -> None:
    parser.add_argument(
        "--save", metavar="FILE", help="write the report for a later --against"
    )
    parser.add_argument(
        "--against",
        metavar="FILE",
        help="compare with a saved report; exit with 1 if a row became slower",
    )
    parser.add_argument(
        "--fail-above",
        metavar="SLOWDOWN",
        help="slowdown from which a significant one fails (default: 5%%)",
    )


def _positive_list(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_POSITIVE(part) for part in text.split(",")))


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Measure and report; 1 if a column failed or a row became slower."""
    from epctx_bench.measuring import bench

    saved, limits = _read_gate(arguments)

    eps = [tuple(each.split("+")) for each in arguments.ep]
    names = list(dict.fromkeys(ep for mix in eps for ep in mix))
    for name in names:
        require_plugin(name)
    options = provider_options(arguments.provider_option, names)
    scan = {
        ep: {key: _split_values(value) for key, value in values.items()}
        for ep, values in options.items()
    }
    settings = _make_settings(arguments, console)

    with console.progress() as progress:
        report = bench(
            arguments.models,
            eps=eps,
            provider_options=scan,
            settings=settings,
            progress=progress,
        )

    # First of all: what follows may fail, and the measurement took minutes.
    _print_report(report, console)
    found = report.as_dict()
    if arguments.save is not None:
        report.save(arguments.save)

    failed = any(column.error is not None for column in report.columns)
    if saved is not None:
        from epctx_bench.gate import judge

        judgement = judge(saved, found, **limits)
        _print_judgement(judgement, console)
        found["judgement"] = judgement.as_dict()
        failed = failed or judgement.failed
    console.result(found)
    return ExitCode.FAILED if failed else ExitCode.DONE


def _read_gate(
    arguments: argparse.Namespace,
) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """Return the saved report and the limits of `judge`, where they are given.

    A file that cannot be read or written is refused here, before minutes of measuring.
    """
    from epctx_bench.saved import check_writable, load_report

    if arguments.save is not None:
        check_writable(arguments.save)
    if arguments.against is None:
        if arguments.fail_above is not None:
            raise InvalidArgument(
                "--fail-above has nothing to compare with.",
                hint="Add --against FILE, a report that --save wrote.",
            )
        return None, {}
    from epctx_bench.gate import parse_threshold

    limits = {}
    if arguments.fail_above is not None:
        limits["fail_above"] = parse_threshold(arguments.fail_above)
    saved = load_report(arguments.against)
    peers = [column.get("peer") for column in saved["columns"]]
    if arguments.no_onnxruntime or not any(peers):
        raise InvalidArgument(
            "--against compares ratios to the times of onnxruntime, and a report has "
            "none.",
            hint="Measure onnxruntime in both: leave out --no-onnxruntime.",
        )
    return saved, limits


def _make_settings(arguments: argparse.Namespace, console: Console) -> BenchSettings:
    from epctx_core import SessionOptions

    options = SessionOptions()
    add_config(options, arguments.config, console, arguments.free_dimension)
    return BenchSettings(
        turns=arguments.turns,
        time_limit=arguments.time_limit,
        threads=arguments.threads,
        batch_sizes=arguments.batch,
        runs=arguments.runs,
        seed=arguments.seed,
        onnxruntime=not arguments.no_onnxruntime,
        config=dict(options.config_entries),
        free_dimensions=dict(options.model_overrides.dimensions),
    )


def _split_values(text: str) -> list[str]:
    return [value.replace(r"\,", ",") for value in _COMMA.split(text)]


def _print_judgement(judgement: Judgement, console: Console) -> None:
    """Print each row's verdict; the last line sums up."""
    console.say("\nCompared with the saved report:")
    for line in judgement.lines():
        console.say(one_line(line))


def _print_report(report: BenchReport, console: Console) -> None:
    for block in report.blocks():
        if isinstance(block, str):
            console.say(block)
        else:
            console.table(block.header, block.rows, title=block.title)
            console.say()
    console.note_simulated(name for c in report.columns for name in c.simulated)
    for column in report.columns:
        if column.error is not None:
            console.error(f"{column.name} failed: {column.error}")
