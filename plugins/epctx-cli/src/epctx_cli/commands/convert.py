"""`epctx convert`: convert a model to ONNX Runtime's own format (`.ort`), back, or to
the newest version.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from epctx_cli import text
from epctx_cli.arguments import CommandParser, add_common
from epctx_cli.exit_codes import ExitCode
from epctx_cli.results import ConvertResult

if TYPE_CHECKING:
    from epctx_cli.console import Console

_LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX model or an .ort file")
    parser.add_argument(
        "output",
        metavar="OUT",
        help="the result; its ending, .onnx or .ort, selects the format",
    )
    parser.add_argument(
        "--optimization-level",
        choices=_LEVELS,
        default="all",
        help="optimisation level of an .ort file (default: all)",
    )
    meaning = (
        "keep the operators, and save optimisations for minimal builds in the .ort file"
    )
    parser.add_flag("--save-runtime-optimizations", meaning)
    parser.add_argument(
        "--target-platform",
        choices=("arm", "amd64"),
        help="processors of an .ort file (default: any)",
    )
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Convert the model, and print the result."""
    from epctx_core import GraphOptimizationLevel, convert_model

    with console.progress("converting the model"):
        written = convert_model(
            arguments.model,
            arguments.output,
            graph_optimization_level=GraphOptimizationLevel[
                _LEVELS[arguments.optimization_level]
            ],
            save_runtime_optimizations=arguments.save_runtime_optimizations,
            target_platform=arguments.target_platform,
        )
    size = written.stat().st_size
    console.say(f"wrote {written} ({text.byte_size(size)})")
    console.result(
        ConvertResult(model=arguments.model, output=str(written), bytes=size)
    )
    return ExitCode.DONE
