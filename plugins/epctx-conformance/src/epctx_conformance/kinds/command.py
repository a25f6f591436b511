"""Runs of `epctx plugins check --engine`, `--transformer` and `--command`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from epctx_conformance.arguments import check_only
from epctx_conformance.kinds.finding import ENGINES, TRANSFORMERS, load_entry

if TYPE_CHECKING:
    from epctx_conformance.kinds.kit import Kit
    from epctx_conformance.report import CheckResult, ConformanceReport

Progress: TypeAlias = "Callable[[CheckResult], None]"


class Run(NamedTuple):
    """Run of a kit that the options ask for.

    Attributes:
        kit: the checks.
        only: groups or names of checks; None for all.
        check: `check(progress)` runs it.
    """

    kit: Kit
    only: list[str] | None
    check: Callable[[Progress], ConformanceReport]


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
    only = _choose(engines.KIT, arguments)

    def check(progress: Progress) -> ConformanceReport:
        return engines.check_engine(
            cls,
            models=arguments.model,
            only=only,
            full=arguments.full,
            progress=progress,
        )

    return Run(engines.KIT, only, check)


def _run_transformers(arguments: argparse.Namespace) -> Run:
    from epctx_conformance.kinds import transformers

    transform = load_entry(TRANSFORMERS, arguments.transformer, "graph transformer")
    only = _choose(transformers.KIT, arguments)

    def check(progress: Progress) -> ConformanceReport:
        return transformers.check_transformer(
            transform,
            models=arguments.model,
            only=only,
            full=arguments.full,
            progress=progress,
        )

    return Run(transformers.KIT, only, check)


def _run_commands(arguments: argparse.Namespace) -> Run:
    from epctx_conformance.kinds import commands

    only = _choose(commands.KIT, arguments)

    def check(progress: Progress) -> ConformanceReport:
        return commands.check_command(
            arguments.command_name,
            arguments=arguments.argument,
            only=only,
            progress=progress,
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
