"""Kit: the checks of one kind of plugin, and their run.

A check is a function of a subject, which is the plugin with what the kit has it do. Its
errors are those of a check of an EP. Knows no kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from epctx_conformance.node_cases import make_checks
from epctx_conformance.report import CheckResult, ConformanceReport
from epctx_conformance.runner import judge_call, run_in_thread
from epctx_conformance.table import Check

if TYPE_CHECKING:
    from epctx_conformance.cases.case import Case

SECONDS = 120.0
"""Time limit of one check."""


class Kit:
    """Checks of one kind of plugin.

    Args:
        kind: a noun for messages.
        groups: names of groups in the order of the report.
    """

    def __init__(self, kind: str, groups: Sequence[str]) -> None:
        self.kind = kind
        self.groups = tuple(groups)
        self._checks: list[Check] = []

    def check(
        self, group: str, title: str
    ) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
        """Put a function into the kit; see `epctx_conformance.table.check`."""

        def add(function: Callable[[Any], None]) -> Callable[[Any], None]:
            self._checks.append(
                Check(group=group, title=title, needs=(), function=function)
            )
            return function

        return add

    def check_cases(
        self,
        group: str,
        promise: str,
        assess: Callable[[Any, Case], str | None],
        *,
        counted: str,
        hint: str,
    ) -> None:
        """Put onnx's own cases into the kit; see `make_checks`."""
        for title, function in make_checks(promise, assess, counted=counted, hint=hint):
            self.check(group, title)(function)

    def choose(self, only: Sequence[str] | None) -> list[Check]:
        """Return the checks of some groups, or of some names; None for all.

        Raises:
            ValueError: there is no such group or check.
        """
        ordered = sorted(self._checks, key=lambda c: self.groups.index(c.group))
        if only is None:
            return ordered
        names = {name for check in ordered for name in (check.group, check.name)}
        if unknown := sorted(set(only) - names):
            raise ValueError(
                f"unknown group or check {', '.join(unknown)}; groups: "
                f"{', '.join(self.groups)}"
            )
        return [check for check in ordered if {check.group, check.name} & set(only)]

    def run(
        self,
        subject: Any,
        name: str,
        *,
        only: Sequence[str] | None,
        progress: Callable[[CheckResult], None] | None,
    ) -> ConformanceReport:
        """Run the checks.

        Args:
            subject: given to each check.
            name: of the plugin.
            only: groups or names of checks; None for all.
            progress: called with each result.
        """
        results = []
        for check in self.choose(only):
            call = partial(check.function, subject)
            results.append(run_in_thread(check, partial(judge_call, call), SECONDS))
            if progress is not None:
                progress(results[-1])
        return ConformanceReport(
            ep=name, vendor="", results=tuple(results), kind=self.kind
        )
