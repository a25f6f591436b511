"""Report of a run of the kit, for people and for programs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any

LIMITS = (
    (
        "Native code is not seen: the kit does not notice what an EP's libraries do "
        "with files, sockets or threads."
    ),
)
"""Limits of the kit; every report of an EP lists them."""


class Outcome(Enum):
    """Outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Result of one check.

    Attributes:
        group: group of the check.
        name: name of the check, for `--only`.
        title: sentence that the check proves.
        outcome: passed, failed or skipped.
        reason: the fault, or why the check was skipped; empty if it passed.
        hint: what to do about it; may be empty.
        seconds: its duration.
    """

    group: str
    name: str
    title: str
    outcome: Outcome
    reason: str = ""
    hint: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The reason with its hint, as several lines."""
        return "\n".join(part for part in (self.reason, self.hint) if part)

    def as_dict(self) -> dict[str, Any]:
        """Return its form in JSON."""
        return {
            **vars(self),
            "outcome": self.outcome.value,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, kw_only=True)
class ConformanceReport:
    """Results of the kit for one EP.

    Attributes:
        ep: the EP's name, or the class's if it has none.
        vendor: vendor of the EP, or empty.
        results: one for each check, in the order of the table.
    """

    ep: str
    vendor: str
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        """True if no check failed, and at least one passed."""
        return not self.failed and bool(self.count(Outcome.PASSED))

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(
            result for result in self.results if result.outcome is Outcome.FAILED
        )

    def count(self, outcome: Outcome) -> int:
        """Return the number of checks with this outcome."""
        return Counter(result.outcome for result in self.results)[outcome]

    def text(self, *, brief: bool = False) -> str:
        """Return the report for people: a line for each check by group, then the names
        of those that failed, then the count.

        Args:
            brief: True for those that failed alone, and one line on those that were
                skipped.
        """
        lines = [
            f"Conformance of {self.ep}" + (f" ({self.vendor})" if self.vendor else "")
        ]
        shown = self.failed if brief else self.results
        for group, results in groupby(shown, key=lambda result: result.group):
            lines += ["", group, *map(_format_line, results)]
        if brief and self.count(Outcome.SKIPPED):
            lines += ["", self._describe_skipped()]
        if self.failed:
            lines += ["", "failed", *(f"  {result.name}" for result in self.failed)]
        lines += ["", *(f"Note: {limit}" for limit in self.limits), self.summary()]
        return "\n".join(lines)

    def _describe_skipped(self) -> str:
        """Return the number of skipped checks, with the most frequent reasons."""
        reasons = Counter(
            result.reason
            for result in self.results
            if result.outcome is Outcome.SKIPPED
        )
        skipped = reasons.total()
        noun = "check" if skipped == 1 else "checks"
        named = reasons.most_common(_MOST_REASONS)
        parts = [f"{reason.rstrip('.')} ({count})" for reason, count in named]
        if rest := skipped - sum(count for _, count in named):
            parts.append(f"other reasons ({rest})")
        return f"Skipped {skipped} {noun}: {'; '.join(parts)}."

    @property
    def limits(self) -> tuple[str, ...]:
        """Limits of the checks, as sentences."""
        return LIMITS

    def summary(self) -> str:
        """Return the count in one line."""
        counts = ", ".join(
            f"{self.count(outcome)} {outcome.value}" for outcome in Outcome
        )
        return (
            f"{counts} of {len(self.results)} checks, "
            f"{sum(r.seconds for r in self.results):.1f} s"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx plugins check --json` prints."""
        return {
            "schema": 1,
            "ep": self.ep,
            "vendor": self.vendor,
            "ok": self.ok,
            "counts": {outcome.value: self.count(outcome) for outcome in Outcome},
            "checks": [result.as_dict() for result in self.results],
            "limits": list(self.limits),
        }


_MOST_REASONS = 3
"""Reasons that a brief report names; the fewest checks have the others."""
_MARKS = {
    Outcome.PASSED: "ok     ",
    Outcome.FAILED: "FAILED ",
    Outcome.SKIPPED: "skipped",
}


def _format_line(result: CheckResult) -> str:
    lines = [f"  {_MARKS[result.outcome]} {result.title}", *result.text.splitlines()]
    return "\n            ".join(lines)
