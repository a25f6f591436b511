"""Check of an EP: the conformance kit and the cases, in child processes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from epctx_conformance.cases.case import Case
from epctx_conformance.report import Outcome
from epctx_conformance.runner import run_check
from epctx_conformance.table import GROUPS, Requirements, all_checks, chosen_checks

from epctx_core.errors import InvalidArgument, suggestion
from epctx_onnxruntime.checking.campaign import run_all
from epctx_onnxruntime.checking.child import Catalogue
from epctx_onnxruntime.checking.report import LibraryReport
from epctx_onnxruntime.checking.result import Result
from epctx_onnxruntime.checking.subject import find_subject
from epctx_onnxruntime.checking.trial import try_case
from epctx_onnxruntime.checking.ways import KIT, NATIVE, WAYS, Way

if TYPE_CHECKING:
    from epctx_conformance.harness import Harness

    from epctx_onnxruntime.checking.subject import Subject

SAMPLE = 20
"""A quick check takes one case of so many."""
SECONDS = 120.0
"""Default limit of a case in one way; more is a hang."""
_LONG = "node_models"
"""Group of the kit whose models are among the cases."""
_CATALOGUE = f"{__name__}:CATALOGUE"
_ADAPTER_LACKS = ("control_flow_bodies", "share_groups", "weight_sharing")
"""Abilities that no EP of onnxruntime has behind the hooks, whatever its own."""


def check_library(  # noqa: PLR0913 - public: the options of a check
    subject: Subject,
    *,
    ways: Sequence[str] = (),
    only: Sequence[str] = (),
    quick: bool = False,
    results: Path | None = None,
    seconds: float = SECONDS,
    progress: Callable[[str, int, int], None] | None = None,
) -> LibraryReport:
    """Check an EP by the kit and by cases; each runs in a child process, so that a
    crash or a hang is a result.

    Args:
        subject: the EP, its options and the cases.
        ways: names out of `WAYS`; empty for all that the EP has.
        only: names of cases, and names or groups of checks; empty for all.
        quick: True for a sample of the cases, and the kit without its longest group.
        results: a file of results, one JSON object on each line, which are not computed
            again; None for none.
        seconds: time limit of a case in one way.
        progress: called with a stage, the number of results so far, and that of all.

    Raises:
        EpctxError: the EP cannot be used here, or a name is unknown.

    Examples:
        >>> subject = Subject(ep="AcmeExecutionProvider", library="libacme_ep.so")
        >>> report = check_library(subject)
        >>> report.ok, report.count_ways()
    """
    facts = subject.describe()
    fingerprint = subject.compute_fingerprint()
    cases, checks = _choose(subject, only, quick=quick)
    chosen = [Way(name, fingerprint) for name in _choose_ways(subject, ways)]
    of_kit = [(check, str(Way(KIT, fingerprint))) for check in checks]
    of_cases = [(name, str(way)) for name in cases for way in chosen]
    with ExitStack() as stack:
        stack.enter_context(subject.published(fingerprint))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="epctx-check-"))
        kept = results or Path(folder, "results.jsonl")
        stage_results = []
        for stage, tasks, limit in (
            ("kit", of_kit, 2 * Requirements.seconds),
            ("cases", of_cases, seconds),
        ):
            show = _count(progress, stage, len(tasks))
            stage_results.append(
                run_all(
                    tasks, kept, 1, catalogue=_CATALOGUE, seconds=limit, progress=show
                )
            )
    return LibraryReport(
        subject=subject,
        facts=facts,
        ways=tuple(way.name for way in chosen),
        checks=tuple(stage_results[0]),
        trials=tuple(stage_results[1]),
        operators={name: _list_operators(case) for name, case in cases.items()},
        seconds=seconds,
    )


def _count(
    progress: Callable[[str, int, int], None] | None, stage: str, total: int
) -> Callable[[Result], None]:
    done = 0

    def show(_result: Result) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(stage, done, total)

    return show


def _choose(
    subject: Subject, only: Sequence[str], *, quick: bool
) -> tuple[Mapping[str, Case], list[str]]:
    """Return cases by name, and names of checks.

    Raises:
        InvalidArgument: there is neither a case nor a check of a name.
    """
    cases = load_cases(subject)
    if not only:
        names = list(cases)[:: SAMPLE if quick else 1]
        checks = (
            chosen_checks([group for group in GROUPS if group != _LONG])
            if quick
            else all_checks()
        )
        return {name: cases[name] for name in names}, [check.name for check in checks]
    groups = {name for check in all_checks() for name in (check.group, check.name)}
    for name in only:
        if name not in cases and name not in groups:
            close = suggestion(name, [*cases, *groups])
            raise InvalidArgument(
                f"--only {name!r} is neither a case nor a check of the kit, nor a "
                f"group of checks.{close}",
                hint=f"Groups: {', '.join(GROUPS)}.",
            )
    wanted = [name for name in only if name in groups]
    checks = chosen_checks(wanted) if wanted else ()
    return {name: cases[name] for name in only if name in cases}, [
        check.name for check in checks
    ]


def _choose_ways(subject: Subject, ways: Iterable[str]) -> list[str]:
    """Return names of ways.

    Raises:
        InvalidArgument: the EP does not have one.
    """
    available = [name for name in WAYS if name != NATIVE or subject.plugin is not None]
    for name in ways:
        if name not in available:
            raise InvalidArgument(
                f"--through {name!r} is no way in which {subject.ep} "
                f"runs.{suggestion(name, available)}",
                hint=f"Ways: {', '.join(available)}.",
            )
    return [name for name in available if not ways or name in ways]


def load_cases(subject: Subject) -> Mapping[str, Case]:
    """Return the cases of a subject by name.

    Raises:
        InvalidArgument: there is no such function, or it returns something else.
    """
    module, _, attribute = subject.cases.partition(":")
    try:
        load = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"--cases {subject.cases!r} cannot be imported: {error}.",
            hint="Give MODULE:FUNCTION; the function returns cases by name.",
        ) from error
    cases = load()
    if not isinstance(cases, Mapping) or not all(
        isinstance(case, Case) for case in cases.values()
    ):
        raise InvalidArgument(
            f"--cases {subject.cases!r} returns no cases by name, but {cases!r:.60}.",
            hint=(
                "The function returns a dict of epctx_conformance.cases.case.Case "
                "objects by their names."
            ),
        )
    return cases


def _list_operators(case: Case) -> tuple[str, ...]:
    graph = onnx.ModelProto.FromString(case.model()).graph
    return tuple(
        sorted({f"{node.domain}.{node.op_type}".lstrip(".") for node in graph.node})
    )


# -- in a child
# ------------------------------------------------------------------------------------


def run_task(case: Case, way: Way) -> Result:
    """Run a check of the kit, or try a case."""
    return (
        _run_check(case.name, way)
        if way.name == KIT
        else try_case(case, way, find_subject()[0])
    )


_OUTCOMES = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "wrong",
    Outcome.SKIPPED: "unclaimed",
}


def _run_check(name: str, way: Way) -> Result:
    (check,) = chosen_checks([name])
    result = run_check(check, _find_harness())
    notes = {
        "title": check.title,
        "group": check.group,
        "seconds": round(result.seconds, 3),
    }
    reason = " ".join(result.text.split())
    return Result(
        case=name,
        route=str(way),
        outcome=_OUTCOMES[result.outcome],
        reason=reason,
        notes=notes,
    )


@cache
def _find_harness() -> Harness:
    """Return the process's harness, which keeps what it found out about the EP."""
    from epctx_conformance.harness import Harness

    subject, _ = find_subject()
    lacking = {
        *subject.without,
        *(_ADAPTER_LACKS if subject.plugin is not None else ()),
    }
    tolerance = max(subject.tolerance, Requirements.tolerance)
    requirements = replace(
        Requirements(tolerance=tolerance), **dict.fromkeys(lacking, False)
    )
    return Harness(subject.provider, requirements=requirements, options=subject.options)


@cache
def _make_catalogue() -> Catalogue:
    """Return the cases and checks of this process's subject, with its ways."""
    subject, fingerprint = find_subject()
    _find_harness()  # here, as temporary folders of a task end with it
    checks = {
        check.name: Case(name=check.name, model=bytes, data=list)
        for check in all_checks()
    }
    suites = {"kit": lambda: checks, "cases": lambda: load_cases(subject)}
    return Catalogue(
        suites, [Way(name, fingerprint) for name in (KIT, *WAYS)], run=run_task
    )


def __getattr__(name: str) -> Any:
    """Return `CATALOGUE`, which is made in children alone."""
    if name == "CATALOGUE":
        return _make_catalogue()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
