"""`epctx plugins check --ep NAME`: the kit and the cases on an EP of onnxruntime, or on
an installed one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from epctx_cli.command import ExitCode, provider_options
from epctx_conformance.arguments import make_requirements

from epctx_onnxruntime.checking.check import SECONDS, check_library
from epctx_onnxruntime.checking.report import Verdict, judge, list_rows
from epctx_onnxruntime.checking.subject import CASES, Subject

if TYPE_CHECKING:
    import argparse

    from epctx_cli.command import Console

SHOWN = 20
"""Faults that the report names; `--json` has all."""


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Check the EP; 1 if it is wrong, ends or stops a process, or shows nothing."""
    name = arguments.ep
    make_requirements(arguments.without)
    subject = Subject(
        ep=name,
        library=str(Path(arguments.library).absolute()) if arguments.library else "",
        options=provider_options(arguments.provider_option, [name])[name],
        tolerance=arguments.tolerance,
        without=tuple(arguments.without),
        cases=arguments.cases or CASES,
    )
    with console.progress() as line:
        report = check_library(
            subject,
            ways=arguments.through,
            only=arguments.only,
            quick=arguments.quick,
            results=Path(arguments.results) if arguments.results else None,
            seconds=arguments.seconds or SECONDS,
            progress=line,
        )
    console.say(f"Check of {subject.provider.name}")
    console.table(("", ""), list(report.facts.items()))
    console.table(
        ("way", *(verdict.name for verdict in Verdict)),
        list(list_rows(report.count_ways())),
    )
    faults = report.faults[:SHOWN]
    rows = [
        (judge(r).name, report.find_way(r), r.case, report.explain(r)[:160])
        for r in faults
    ]
    console.table(("outcome", "way", "case or check", "reason"), rows)
    if more := len(report.faults) - len(faults):
        console.say(f"\n  and {more} more; --json has all.")
    lost = [
        (case, way, ", ".join(names)[:160])
        for case, ways in report.lost_nodes.items()
        for way, names in ways.items()
    ]
    if lost:
        console.table(
            ("case", "way", "lost: onnxruntime gives it the EP"), lost[:SHOWN]
        )
    if report.faults:
        console.say(f"\nNext: {report.reproduce(report.faults[0])}")
    elif not report.ok:
        console.error("nothing passed, so nothing was shown: the EP took no node.")
    console.result(report.as_dict())
    return ExitCode.DONE if report.ok else ExitCode.FAILED
