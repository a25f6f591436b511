"""Runs of `epctx plugins check --engine`, `--transformer` and `--command`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from epctx_conformance.arguments import check_only
from epctx_conformance.kinds.finding import ENGINES, TRANSFORMERS, load_entry

if TYPE_CHECKING:
    from epctx_conformance.kinds.kit import Kit
    from epctx_conformance.report import ConformanceReport


class Run(NamedTuple):
    """Run of a kit that the options ask for.

    Attributes:
        kit: the checks.
        only: groups or names of checks; None for all.
        check: `check(progress=...)` runs it; `progress` is called with each result.
    """

    kit: Kit
    only: list[str] | None
    check: Callable[..., ConformanceReport]


def make_run(arguments: argparse.Namespace) -> Run:
    """Return the run of the kit for the plugin that the arguments name.

    Raises:
        PackageMissing, InvalidArgument: no package has it, or several.
        PluginError: it cannot be imported.
    """
    if arguments.engine:
        return _run_engines(arguments)
    if arguments.transformer:
        return _run_transformers(arguments)
    return _run_commands(arguments)


def _run_engines(arguments: argparse.Namespace) -> Run:
    from epctx_conformance.kinds import engines

    cls = load_entry(ENGINES, arguments.engine, "engine")
    return _run_models(engines.KIT, partial(engines.check_engine, cls), arguments)


def _run_transformers(arguments: argparse.Namespace) -> Run:
    from epctx_conformance.kinds import transformers

    transform = load_entry(TRANSFORMERS, arguments.transformer, "graph transformer")
    check = partial(transformers.check_transformer, transform)
    return _run_models(transformers.KIT, check, arguments)


def _run_models(
    kit: Kit, check: Callable[..., ConformanceReport], arguments: argparse.Namespace
) -> Run:
    """Return the run of a kit whose checks take models."""
    only = _choose(kit, arguments)
    check = partial(check, models=arguments.model, only=only, full=arguments.full)
    return Run(kit, only, check)


def _run_commands(arguments: argparse.Namespace) -> Run:
    from epctx_conformance.kinds import commands

    only = _choose(commands.KIT, arguments)
    check = partial(
        commands.check_command,
        arguments.command_name,
        arguments=arguments.argument,
        only=only,
    )
    return Run(commands.KIT, only, check)


def _choose(kit: Kit, arguments: argparse.Namespace) -> list[str] | None:
    check_only(arguments.only, kit.groups, kit.choose)
    if arguments.only or not arguments.quick:
        return arguments.only or None
    return [
        check.name
        for check in kit.choose(None)
        if "onnx's own cases" not in check.title
    ]
