"""Report of a check of an EP, for programs and people."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from epctx_onnxruntime.checking.subject import CASES
from epctx_onnxruntime.checking.ways import NATIVE, WAYS

if TYPE_CHECKING:
    from epctx_onnxruntime.checking.result import Result
    from epctx_onnxruntime.checking.subject import Subject


class Verdict(Enum):
    """Outcome of a case or a check, with its meaning; the worst first."""

    CRASH = "it ended the process, did not return in time, or raised an untyped error"
    WRONG = "other results than expected; of the kit, a check that failed"
    REFUSED = "an error instead of results"
    PASS = "right results, and onnxruntime says that the EP ran a part of it"  # noqa: S105 - no password
    UNSUPPORTED = (
        "the EP took or ran no node, so that it shows nothing; of the kit, a check "
        "that was skipped"
    )


_VERDICTS = {
    "passed": Verdict.PASS,
    "differs": Verdict.PASS,
    "wrong": Verdict.WRONG,
    "refused": Verdict.REFUSED,
    "unclaimed": Verdict.UNSUPPORTED,
}
_ORDER = list(Verdict)
_FAULTS = {
    "raised": "an untyped error: ",
    "crashed": "the process ended: ",
    "hung": "a hang: no end within ",
}


def judge(result: Result) -> Verdict:
    """Return the verdict for a result; whatever ends a host is a crash."""
    return _VERDICTS.get(result.outcome, Verdict.CRASH)


@dataclass(frozen=True, kw_only=True)
class LibraryReport:
    """Results of a check.

    Attributes:
        subject: the EP.
        facts: versions, digest of the library, device and machine.
        ways: names of the ways in which cases ran.
        checks: results of the kit.
        trials: results of the cases, those of one case together, in the order of the
            ways.
        operators: of each case.
        seconds: time limit of a case in one way.
    """

    subject: Subject
    facts: Mapping[str, str]
    ways: tuple[str, ...]
    checks: tuple[Result, ...]
    trials: tuple[Result, ...]
    operators: Mapping[str, tuple[str, ...]]
    seconds: float

    @property
    def ok(self) -> bool:
        """True if nothing was wrong, nothing crashed, and something passed."""
        verdicts = {judge(result) for result in (*self.checks, *self.trials)}
        if Verdict.CRASH in verdicts or Verdict.WRONG in verdicts:
            return False
        return Verdict.PASS in verdicts

    @cached_property
    def lost_nodes(self) -> dict[str, dict[str, list[str]]]:
        """Nodes that onnxruntime gives the EP in its own session, which passed, and
        that it did not get in another way: case to way to names.

        No fault by itself: a context model has no nodes whose boundary EPContext cannot
        carry.
        """
        lost: dict[str, dict[str, list[str]]] = {}
        native_nodes: dict[str, list[str]] = {}
        for trial in self.trials:
            verdict = judge(trial)
            way = self.find_way(trial)
            ep_nodes = trial.notes.get("nodes", {"taken": []})["taken"]
            if way == NATIVE and verdict is Verdict.PASS:
                native_nodes[trial.case] = ep_nodes
            elif verdict not in (Verdict.PASS, Verdict.UNSUPPORTED):
                continue
            elif names := [
                n for n in native_nodes.get(trial.case, ()) if n not in ep_nodes
            ]:
                lost.setdefault(trial.case, {})[way] = names
        return lost

    @cached_property
    def cases(self) -> dict[str, Verdict]:
        """The worst verdict of each case."""
        verdicts: dict[str, Verdict] = {}
        for trial in self.trials:
            verdicts[trial.case] = min(
                judge(trial), verdicts.get(trial.case, _ORDER[-1]), key=_ORDER.index
            )
        return verdicts

    @cached_property
    def faults(self) -> list[Result]:
        """Results that are neither PASS nor UNSUPPORTED, the worst first."""

        def rank(result: Result) -> int:
            return _ORDER.index(judge(result))

        limit = _ORDER.index(Verdict.PASS)
        results = (*self.checks, *self.trials)
        faults = [result for result in results if rank(result) < limit]
        return sorted(faults, key=rank)

    def count_ways(self) -> dict[str, Counter[Verdict]]:
        """Return the verdicts in each way, the kit first and the cases last."""
        counts = {"kit": Counter(map(judge, self.checks))} if self.checks else {}
        for number, way in enumerate(self.ways):
            trials = self.trials[number :: len(self.ways)]
            counts[way] = Counter(map(judge, trials))

        if self.trials:
            counts["cases"] = Counter(self.cases.values())
        return counts

    def count_passes(self) -> dict[str, dict[str, int]]:
        """Return for each way how many cases passed with all nodes on the EP, and how
        many within its tolerance alone.
        """
        counts = {}
        for number, way in enumerate(self.ways):
            passed = [
                t
                for t in self.trials[number :: len(self.ways)]
                if judge(t) is Verdict.PASS
            ]
            counts[way] = {
                "whole": sum(not trial.notes["nodes"]["left"] for trial in passed),
                "lenient": sum("lenient" in trial.notes for trial in passed),
                "elsewhere": sum(
                    bool(trial.notes["nodes"]["elsewhere"]) for trial in passed
                ),
                "other bits": sum(trial.outcome == "differs" for trial in passed),
            }
        return counts

    def explain(self, result: Result) -> str:
        """Return the reason of a result with what kind of an end it was."""
        if result.outcome == "hung":
            return f"{_FAULTS['hung']}{self.seconds:g} s"
        unclaimed = "the EP takes no node" if result.outcome == "unclaimed" else ""
        return f"{_FAULTS.get(result.outcome, '')}{result.reason or unclaimed}"

    def find_way(self, result: Result) -> str:
        """Return the name of the way of a result, `kit` for one of the kit."""
        host, _, through = result.route.partition(".")
        return "onnxruntime" if host.startswith("onnxruntime-") else through

    def reproduce(self, result: Result | None = None) -> str:
        """Return the command line of this check, or of one result."""
        subject = self.subject
        words = ["epctx", "plugins", "check"]
        if subject.library:
            words += ["--library", subject.library]
        words += ["--ep", subject.ep]
        for key, value in subject.options.items():
            words += ["-p", f"{subject.ep}.{key}={value}"]
        for ability in subject.without:
            words += ["--without", ability]
        if subject.cases != CASES:
            words += ["--cases", subject.cases]
        if subject.tolerance:
            words += ["--tolerance", f"{subject.tolerance:g}"]

        if result is not None:
            words += ["--only", result.case]
            way = self.find_way(result)
            if way in WAYS:
                words += ["--through", way]
        return shlex.join(words)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx plugins check --ep … --json` prints."""
        return {
            "schema": 1,
            "ep": self.subject.provider.name,
            "library": self.subject.library,
            "options": dict(self.subject.options),
            "tolerance": self.subject.tolerance,
            "facts": dict(self.facts),
            "command": self.reproduce(),
            "ok": self.ok,
            "counts": {
                way: _as_names(counts) for way, counts in self.count_ways().items()
            },
            "passes": self.count_passes(),
            "lost_nodes": self.lost_nodes,
            "checks": [self._as_entry(result) for result in self.checks],
            "cases": list(self._list_cases()),
        }

    def _list_cases(self) -> Iterator[dict[str, Any]]:
        for number in range(0, len(self.trials), len(self.ways) or 1):
            trials = self.trials[number : number + len(self.ways)]
            yield {
                "case": trials[0].case,
                "verdict": self.cases[trials[0].case].name,
                "operators": list(self.operators[trials[0].case]),
                "ways": {
                    self.find_way(trial): self._as_entry(trial) for trial in trials
                },
            }

    def _as_entry(self, result: Result) -> dict[str, Any]:
        entry: dict[str, Any] = {}
        if self.find_way(result) == "kit":
            entry["check"] = result.case
        entry["verdict"] = judge(result).name
        entry["reason"] = self.explain(result)
        entry.update(result.notes)
        if result in self.faults:
            entry["command"] = self.reproduce(result)
        return entry


def _as_names(counts: Mapping[Verdict, int]) -> dict[str, int]:
    return {verdict.name: counts.get(verdict, 0) for verdict in Verdict}


def list_rows(
    counts: Mapping[str, Mapping[Verdict, int]],
) -> Iterable[tuple[str | int, ...]]:
    """Return rows of a table: a name, then a number for each verdict."""
    return [
        (name, *(verdicts.get(verdict, 0) for verdict in Verdict))
        for name, verdicts in counts.items()
    ]
