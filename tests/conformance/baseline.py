"""The baseline of the conformance run: what did not pass in a whole run, and how many nodes EPs claimed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.catalogue import ROUTES

if TYPE_CHECKING:
    from epctx_conformance.cases.campaign import Task
    from epctx_conformance.cases.routes import Result

BASELINE = Path(__file__).parent / "baseline.json"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""Number of nodes that EPs claim; the last digit is for more."""
WITHOUT_EPS = {"onnxruntime", "cpu"}


def sample(baseline: Mapping[str, Any], count: int, seed: int) -> list[Task]:
    """Draw cases of a baseline: each goes through the EPs that claim some of it, in one of the three ways by turns.

    None that is wrong somewhere: at the edge of a tolerance it may depend on the processor on which side.
    """
    wrong = {
        name
        for kinds in baseline["not_passed"].values()
        for what, names in kinds.items()
        for name in names * what.startswith("wrong")
    }
    numbers = [number for number, name in enumerate(baseline["cases"]) if name not in wrong]
    tasks = []
    for turn, number in enumerate(random.Random(seed).sample(numbers, count)):  # noqa: S311 - no secret
        how = ("direct", "file", "embed")[turn % 3]
        for route in ROUTES:
            claimed = baseline["claimed"][route.eps][number] != "0"
            if route.through == how and (claimed or route.eps in WITHOUT_EPS):
                tasks.append((baseline["cases"][number], str(route)))
    return tasks


def versions() -> dict[str, str]:
    """Return what decides on results besides this repository; empty for what is not installed."""
    names = ("onnx", "onnxruntime", "numpy", "pillow")  # with Pillow, `onnx.reference` decodes images
    return {name: next((d.version for d in distributions(name=name)), "") for name in names}


def as_baseline(results: Sequence[Result]) -> dict[str, Any]:
    """Return what is worth keeping of a whole run: what did not pass, and how many nodes were claimed."""
    names = sorted({result.case for result in results})
    claimed: dict[str, dict[str, int]] = {route.eps: {} for route in ROUTES}
    not_passed: dict[str, dict[str, dict[str, list[str]]]] = {}
    for result in sorted(results, key=lambda r: (r.route, r.outcome, r.reason, r.case)):
        counts = claimed[result.route.partition(".")[0]]
        counts[result.case] = max(result.claimed, counts.get(result.case, 0))
        if result.outcome not in {"passed", "unclaimed"}:
            what = f"{result.outcome}: {result.kind}"
            not_passed.setdefault(result.route, {}).setdefault(what, []).append(result.case)
    return {
        "versions": versions(),
        "cases": names,
        "claimed": {
            eps: "".join(_digit(counts.get(name, 0)) for name in names) for eps, counts in claimed.items()
        },
        "not_passed": not_passed,
    }


def _digit(count: int) -> str:
    return DIGITS[min(count, len(DIGITS) - 1)]


def differences(results: Iterable[Result], baseline: Mapping[str, Any]) -> list[str]:
    """Return how results are not those of the baseline, one line each.

    A case that the baseline does not have is none. What is refused may be so before claims are known.
    """
    number = {name: at for at, name in enumerate(baseline["cases"])}
    before = {
        (name, route): what
        for route, kinds in baseline["not_passed"].items()
        for what, names in kinds.items()
        for name in names
    }
    lines = []
    for result in results:
        if result.case not in number or result.outcome == "unclaimed":
            continue
        was = before.get((result.case, result.route), "passed")
        now = "passed" if result.outcome == "passed" else f"{result.outcome}: {result.kind}"
        if was != now:
            lines.append(f"{result.case} {result.route}: {was} -> {now} {result.reason}".rstrip())
        expected = baseline["claimed"][result.route.partition(".")[0]][number[result.case]]
        if result.outcome in {"passed", "wrong", "differs"} and _digit(result.claimed) != expected:
            lines.append(f"{result.case} {result.route}: claims {result.claimed}, not {expected}")
    return lines
