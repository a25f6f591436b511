"""Result of `epctx plugins check`: what `--json` prints.

The JSON Schemas in `schemas` are made from these dataclasses (`make docs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class CheckFacts:
    """Check of the conformance kit.

    Attributes:
        group: group of the check.
        name: name of the check, for `--only`.
        title: what is checked.
        outcome: outcome of the check.
        reason: the fault, or why the check was skipped; empty if it passed.
        hint: what to do about it; may be empty.
        seconds: its duration.
    """

    group: str
    name: str
    title: str
    outcome: Literal["passed", "failed", "skipped"]
    reason: str
    hint: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CheckCounts:
    """Numbers of checks.

    Attributes:
        passed: number of those that passed.
        failed: number of those that failed.
        skipped: number of those that were skipped.
    """

    passed: int
    failed: int
    skipped: int


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Result of `epctx plugins check`.

    Attributes:
        ep: name of the EP.
        vendor: vendor of the EP.
        ok: true if no check failed, and at least one passed.
        counts: numbers of checks by outcome.
        checks: each check.
        limits: limits of the checks, as sentences.
    """

    ep: str
    vendor: str
    ok: bool
    counts: CheckCounts
    checks: list[CheckFacts]
    limits: list[str]
