"""Failures of the conformance run that are known, by exact name, with their cause; and
what differs from them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctx_onnxruntime.checking.result import Result

PATH = Path(__file__).parent / "known_failures.toml"


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """One failure of some cases.

    Attributes:
        cause: why, in a sentence.
        cases: their names.
        eps: sets of EPs on whose routes they fail, direct and over context models.
        outcome: how they end, as `describe` says it.
        onnxruntime: how they end with onnxruntime alone.
    """

    cause: str
    cases: tuple[str, ...]
    eps: tuple[str, ...]
    outcome: str
    onnxruntime: str


@dataclass(frozen=True, kw_only=True)
class KnownFailures:
    """The file: its entries, and the versions with which they were seen."""

    versions: Mapping[str, str]
    entries: tuple[KnownFailure, ...]


def read_known_failures(path: Path = PATH) -> KnownFailures:
    """Read a file of known failures.

    Raises:
        ValueError: two entries have one case on one set of EPs, or an entry says too
            little.
    """
    content = tomllib.loads(path.read_text("utf-8"))
    entries = tuple(_entry(each, content["eps"]) for each in content.get("failure", ()))
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        pairs = {(case, eps) for case in entry.cases for eps in entry.eps}
        if len(pairs) < len(entry.cases) * len(entry.eps) or not seen.isdisjoint(pairs):
            raise ValueError(
                f"{path.name} has a case twice: {sorted(pairs & seen) or entry.cases}"
            )
        seen |= pairs
    return KnownFailures(versions=content["versions"], entries=entries)


def _entry(given: Mapping[str, object], sets: Mapping[str, list[str]]) -> KnownFailure:
    wrong = {"cause", "cases", "eps", "outcome", "onnxruntime"}.symmetric_difference(
        given
    )
    if wrong or not all(given.values()):
        raise ValueError(
            f"an entry for {given.get('cases')} lacks, or has too much: {sorted(wrong)}"
        )
    eps = given["eps"]
    eps = sets[eps] if isinstance(eps, str) else eps
    return KnownFailure(**{**given, "cases": tuple(given["cases"]), "eps": tuple(eps)})


def versions() -> dict[str, str]:
    """Return what decides on results besides this repository; empty for what is not
    installed.
    """
    names = (
        "onnx",
        "onnxruntime",
        "numpy",
        "pillow",
    )  # with Pillow, `onnx.reference` decodes images
    return {
        name: next((d.version for d in distributions(name=name)), "") for name in names
    }


def describe(result: Result) -> str:
    """Return how a case ended: the outcome, of a refusal or an exception with its
    class.
    """
    return (
        f"{result.outcome}: {result.kind}"
        if result.outcome in {"refused", "raised"}
        else result.outcome
    )


def find_differences(
    results: Iterable[Result], known: KnownFailures, exist: Iterable[str] | None = None
) -> list[str]:
    """Return what is not as known, one line each: new failures, known ones that pass,
    and what else changed.

    Args:
        results: of any cases on any routes.
        known: the known failures.
        exist: names of all cases there are, to find entries without one; None: not
            looked for.
    """
    results = list(results)
    by_case = {
        (case, eps): entry
        for entry in known.entries
        for case in entry.cases
        for eps in entry.eps
    }
    alone = {result.case: describe(result) for result in results if _is_alone(result)}
    lines = []
    for result in results:
        entry = by_case.get((result.case, result.route.partition(".")[0]))
        now, before = describe(result), entry.outcome if entry else "passed"
        if now not in {before, "unclaimed"} and not _is_alone(result):
            beside = (
                f" (onnxruntime: {alone[result.case]})" if result.case in alone else ""
            )
            lines.append(
                f"{result.case} {result.route}: {now}, known as: {before}{beside} "
                f"{result.reason}".rstrip()
            )
    for entry in known.entries:
        lines += [
            f"{case} ends with onnxruntime alone as: {alone[case]}, known as: "
            f"{entry.onnxruntime}"
            for case in entry.cases
            if alone.get(case, entry.onnxruntime) != entry.onnxruntime
        ]
    if exist is not None:
        gone = {case for entry in known.entries for case in entry.cases}.difference(
            exist
        )
        lines += [f"{case} is known as a failure, and no case" for case in sorted(gone)]
    return list(dict.fromkeys(lines))


def _is_alone(result: Result) -> bool:
    return result.route.startswith("onnxruntime.")
