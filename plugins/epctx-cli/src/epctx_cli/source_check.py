"""Comparison of a context model with its source on the CPU EP."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from epctx_cli.arguments import session_options

if TYPE_CHECKING:
    from epctx_cli.comparison import Difference
    from epctx_cli.console import Console
    from epctx_core import SessionOptions

CHECK_TOLERANCE = 1e-4
"""Largest max|a-b| / (max|b| + 1e-6) that passes `--check`."""


def compare_with_source(
    model: str,
    source: str,
    arguments: argparse.Namespace,
    console: Console,
) -> list[Difference]:
    """Run a context model and its source, with the options and inputs of a command,
    and compare the outputs.

    Raises:
        EpctxError: one of them cannot be loaded or run.
    """
    from epctx_cli.comparison import Tolerance, compare_models
    from epctx_core import GraphOptimizationLevel

    loading, plain = make_options(source, arguments, console)
    # The optimiser's integer arithmetic rounds quantised values differently, by a step:
    # an EP may compute like either.
    levels = GraphOptimizationLevel
    with console.progress("checking the result") as progress:
        progress.watch(plain, loading)
        for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL):
            plain.graph_optimization_level = level
            differences = compare_models(
                (model, loading),
                (source, plain),
                tolerance=Tolerance(absolute=0.0, relative=CHECK_TOLERANCE),
                note=console.note if level == levels.ORT_DISABLE_ALL else str,
                input_path=arguments.input,
                seed=arguments.seed,
            ).differences
            if all(difference.equal for difference in differences):
                break
    return differences


def make_options(
    source: str | None, arguments: argparse.Namespace, console: Console
) -> tuple[SessionOptions, SessionOptions]:
    """Return options to load a context model, and to load its source on the CPU EP,
    from those of a command that compiled it.
    """
    # The session must not write a model again.
    config = [each for each in arguments.config if not each.startswith("ep.context_")]
    given = argparse.Namespace(**{**vars(arguments), "config": config})
    plain = session_options(given, console)
    plain.providers = []
    given.free_dimension = []  # the context model has these lengths already
    loading = session_options(given, console)
    if source is not None:
        loading.add_session_config_entry("ep.context_source_model_path", source)
    return loading, plain
