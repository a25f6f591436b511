"""Gate: judges whether a measurement is slower than a saved one.

*What is compared.* Machines differ and drift, so times of another day say little. A
column is judged by the ratio of its times to those of its peer, then against now: both
were taken in the same turns, and what slowed the machine down is in both. A column
without a peer is not judged, nor is one that is another's peer.

*The rule.* A row is `slower` if the slowdown is significant (Yuen's test of trimmed
means on logarithms, one-sided, at `alpha`, corrected by Holm for the number of rows)
*and* its estimate is above the threshold `fail_above`. The other possible rule, a
significant test of "more than the threshold", is blind where it is needed. Simulated,
with a threshold of 5 %, `alpha` 0.01, one row, the error of each sample normal on
logarithms, 40,000 reports a line (`tests/simulated_reports.py` prints it)::

    error of   turns   fails without  fails at a slowdown of 10 %
    a sample           a change       this rule     "more than 5 %"
    2 %        10      0.0 %           99.9 %       70.6 %
    2 %        15      0.0 %          100.0 %       92.5 %
    2 %        30      0.0 %          100.0 %       99.9 %
    3 %        10      0.3 %           93.6 %       34.5 %
    3 %        15      0.1 %           99.6 %       58.3 %
    3 %        30      0.0 %          100.0 %       92.8 %
    5 %        10      1.0 %           51.6 %       12.3 %
    5 %        15      0.9 %           78.0 %       21.6 %
    5 %        30      0.5 %           98.8 %       48.9 %

A small and real difference between two builds (the layout of code, the order of
memory) is significant with enough turns; the threshold is there for those.

*Noise.* A row is `too noisy` if the interval reaches beyond twice the threshold: so a
true slowdown of twice the threshold is called `not slower` with a probability of at
most `alpha`, however few turns there are. It is so, too, if a report says that its
machine was busy, unless it is slower by more than waiting for processors explains: a
row that waits for a share of its time takes 1 / (1 - share) times as long while its
peer need not wait, and the whole interval has to be above that, for both reports. A
noisy row does not fail; `Judgement.undecided` says that there are some.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
from scipy import stats

from epctx_bench.ratio import (
    TRIMMED,
    Values,
    pair_logarithms,
    raise_from_logarithm,
)
from epctx_bench.saved import Report, check_report
from epctx_core.errors import InvalidArgument, one_line

SETTINGS = {
    "config": "the session options",
    "free_dimensions": "the lengths of open dimensions",
}
"""Settings that have to be equal, with their meaning."""

PEER_ROWS = {"compile": "load_warm"}
"""Rows that are compared with another row of the peer: onnxruntime compiles when it
creates its session.
"""

FAIL_ABOVE = 0.05
"""Relative slowdown that a significant one has to exceed to fail, by default."""

ALPHA = 0.01
"""Probability of a false failure, for all rows together."""

RESOLUTION = 1e-9
"""Relative spread below which samples are all the same."""


class Verdict(StrEnum):
    """Verdict on a row."""

    SLOWER = "slower"
    NOT_SLOWER = "not slower"
    FASTER = "faster"
    TOO_NOISY = "too noisy"


@dataclass(frozen=True, kw_only=True)
class JudgedRow:
    """Comparison of one row of one column with the saved one.

    Attributes:
        column: name of the column.
        row: name of the row, such as `load_warm`.
        verdict: the verdict.
        change: estimate of now to then; 1.1 is a slowdown of 10 %.
        low: lower end of its interval, whose confidence is 1 - 2 `alpha`.
        high: upper end; infinity, in JSON None, where a side has a single sample.
        pvalue: of the one-sided test of a slowdown, corrected by Holm.
        peer: column of the peer by whose times the row was divided; None in JSON of
            earlier versions where there was none.
        reason: why the row is too noisy; else empty.
    """

    column: str
    row: str
    verdict: Verdict
    change: float
    low: float
    high: float
    pvalue: float
    peer: str
    reason: str

    def __str__(self) -> str:
        low, high = self.low - 1, self.high - 1
        interval = f"{low:+.1%} to {high:+.1%}"
        if self.high == math.inf:
            interval = "one sample, so no interval"
        text = (
            f"{self.column}, {self.row}: {self.verdict}, {self.change - 1:+.1%} "
            f"({interval}), relative to {self.peer}."
        )
        if self.reason:
            text += f" {self.reason}"
        return text


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Comparison of a report with a saved one.

    Attributes:
        fail_above: relative slowdown from which a significant one fails.
        alpha: probability of a false failure in all rows together.
        rows: the compared rows, in the order of the report.
        notes: sentences on what was not compared, and why.
    """

    fail_above: float
    alpha: float
    rows: tuple[JudgedRow, ...]
    notes: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """True if a row is slower."""
        return Verdict.SLOWER in self._verdicts

    @property
    def undecided(self) -> bool:
        """True if no row is slower, but some are too noisy to say so, or none could be
        compared.
        """
        noisy = Verdict.TOO_NOISY in self._verdicts
        return (noisy or not self.rows) and not self.failed

    @property
    def _verdicts(self) -> list[Verdict]:
        return [row.verdict for row in self.rows]

    def lines(self) -> list[str]:
        """Return the judgement as sentences, one a line; the last one sums it up."""
        return [*map(str, self.rows), *self.notes, self._sum_up()]

    def as_dict(self) -> dict[str, Any]:
        """Return the judgement as JSON; an end of an interval that is infinite is
        None.
        """
        written = asdict(self)
        for row in written["rows"]:
            if row["high"] == math.inf:
                row["high"] = None
        return {"failed": self.failed, "undecided": self.undecided, **written}

    def _sum_up(self) -> str:
        if not self.rows:
            return "UNDECIDED: nothing could be compared with the saved report."

        counts = Counter(self._verdicts)
        found = [f"{counts[each]} {each}" for each in Verdict if each in counts]
        rows = "row" if len(self.rows) == 1 else "rows"
        text = (
            f"{len(self.rows)} {rows} compared: {', '.join(found)}. A row fails if it "
            f"is slower by more than {self.fail_above * 100:.3g}% and that is "
            f"significant at {self.alpha}."
        )
        if self.undecided:
            # It exits like a success, so it must not read like one.
            text = f"UNDECIDED, which is not passed. {text}"
        return text


_Rows: TypeAlias = "dict[str, Mapping[str, Any]]"
"""Rows of a column by name."""


class _Side:
    """One of the two reports.

    Args:
        report: the report.
        name: what sentences call it.

    Attributes:
        columns: its columns by name.
    """

    def __init__(self, report: Report, name: str) -> None:
        check_report(report, f"the {name}")
        self.report = report
        self.name = name
        self.columns = {column["name"]: column for column in report["columns"]}

    def find_rows(self, column: str | None) -> _Rows:
        """Return the rows of a column that have samples; none without the column."""
        rows = self.columns.get(column, {}).get("rows", {})
        return {name: row for name, row in rows.items() if row["samples"]}

    def find_peer_rows(self, column: str) -> _Rows:
        """Return the rows of a column's peer; none without one, or if that failed."""
        return self.find_rows(self.columns[column].get("peer"))

    def logarithms(self, column: str, row: str) -> Values:
        """Return the logarithms of the ratios of a row's times to the peer's.

        Raises:
            InvalidArgument: the samples cannot be paired, or one of them is not a
                positive finite number.
        """
        ours = self.find_rows(column)[row]
        peers = self.find_peer_rows(column)[PEER_ROWS.get(row, row)]
        try:
            return pair_logarithms(ours["samples"], peers["samples"])
        except InvalidArgument as error:
            raise InvalidArgument(
                f"{column}, {row} of the {self.name}: {error.message}", hint=error.hint
            ) from error


def judge(saved: Report, now: Report, *, fail_above: float = FAIL_ABOVE) -> Judgement:
    """Return whether a report is slower than a saved one.

    Columns and rows that only one of them has are named in the notes and do not fail.

    Args:
        saved: the earlier report.
        now: the report to judge.
        fail_above: relative slowdown that a significant one has to exceed to fail.

    Raises:
        InvalidArgument: a report is not of schema 1 or has samples that are not
            positive finite numbers, or the threshold is out of range.
    """
    if not 0 < fail_above < math.inf:
        raise InvalidArgument(
            f"fail_above is {fail_above}, expected a relative slowdown such as 0.05."
        )

    sides = (_Side(saved, "saved report"), _Side(now, "new report"))
    notes: list[str] = []
    compared = list(_compare(sides, notes))
    noise, waiting = _describe_noise(sides)

    slower = correct_pvalues([row.pvalue for row in compared])
    faster = correct_pvalues([1 - row.pvalue for row in compared])
    rows = []
    for row, pvalue, opposite in zip(compared, slower, faster, strict=True):
        decided = _decide(replace(row, pvalue=pvalue), opposite, fail_above)
        is_beyond = decided.low > waiting * (1 + fail_above)
        if noise and not (decided.verdict is Verdict.SLOWER and is_beyond):
            decided = replace(decided, verdict=Verdict.TOO_NOISY, reason=noise)
        rows.append(decided)
    return Judgement(
        rows=tuple(rows), notes=tuple(notes), fail_above=fail_above, alpha=ALPHA
    )


def parse_threshold(text: str) -> float:
    """Return the relative slowdown that a text such as `5%` or `0.05` gives.

    Raises:
        InvalidArgument: it is not between 0 and 100 %; `5` is meant as 5 % more often
            than as 500 %.
    """
    digits = text.strip()
    try:
        number = float(digits.removesuffix("%"))
    except ValueError:
        number = math.nan
    if digits.endswith("%"):
        number /= 100

    if not 0 < number < 1:
        raise InvalidArgument(
            f"the threshold {text!r} is not a slowdown between 0 and 100%.",
            hint="Give it such as 5% or 0.05.",
        )
    return number


def correct_pvalues(pvalues: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's step-down method.

    Comparing a corrected one with `alpha` keeps the probability of any false positive
    among all of them at most at `alpha`. (scipy controls the false discovery rate,
    which lets a gate with many rows fail more often for nothing.)
    """
    order = np.argsort(pvalues)
    factors = np.arange(len(order), 0, -1)
    corrected = np.ones(len(order))

    raised = np.maximum.accumulate(factors * np.take(pvalues, order))
    corrected[order] = np.minimum(raised, 1.0)
    return [float(pvalue) for pvalue in corrected]


def _compare(sides: Sequence[_Side], notes: list[str]) -> Iterator[JudgedRow]:
    """Yield each row that can be compared, before a verdict; note the others."""
    saved, now = sides
    peers = {c.get("peer") for side in sides for c in side.columns.values()}
    for name in {**now.columns, **saved.columns}:
        owners = [side.name for side in sides if name in side.columns]
        if len(owners) == 1:
            notes.append(f"{name} is in the {owners[0]} only; it was not judged.")
            continue

        obstacle = _find_obstacle(name, sides)
        # A peer is the measure of others: its own times change with the machine.
        if not obstacle and name in peers:
            continue
        if not obstacle and not _have_one_peer(name, sides):
            obstacle = "it has no peer in both reports"
        if obstacle:
            notes.append(f"{name} was not judged: {obstacle}.")
            continue

        for row in {**now.find_rows(name), **saved.find_rows(name)}:
            obstacle = _find_row_obstacle(name, row, sides)
            if obstacle:
                notes.append(f"{name}, {row}: {obstacle}; it was not judged.")
            else:
                yield _compare_row(name, row, sides)


def _have_one_peer(column: str, sides: Sequence[_Side]) -> bool:
    """Return whether a column has the same peer in both reports."""
    names = {side.columns[column].get("peer") for side in sides}
    have_rows = all(side.find_peer_rows(column) for side in sides)
    return have_rows and len(names) == 1


def _find_obstacle(column: str, sides: Sequence[_Side]) -> str:
    """Return why the times of a column cannot be compared; empty if they can."""
    failures = []
    for side in sides:
        error = side.columns[column].get("error")
        if error:
            reason = one_line(str(error))
            failures.append(f"in the {side.name} it failed ({reason})")
    if failures:
        return " and ".join(failures)

    then, today = (side.columns[column].get("options") or {} for side in sides)
    for ep in {**then, **today}:
        if (then.get(ep) or {}) != (today.get(ep) or {}):
            return f"its options of {ep} differ"

    then, today = (side.report.get("settings") or {} for side in sides)
    for key, meaning in SETTINGS.items():
        if (then.get(key) or {}) != (today.get(key) or {}):
            return f"{meaning} differ"
    return ""


def _find_row_obstacle(column: str, row: str, sides: Sequence[_Side]) -> str:
    """Return why a row of a column cannot be compared; empty if it can."""
    owners = [side for side in sides if row in side.find_rows(column)]
    if len(owners) == 1:
        return f"it is in the {owners[0].name} only"

    then, today = (side.find_rows(column)[row] for side in sides)
    if then["unit"] != "s":
        return "it is not a time"
    for fact in ("threads", "batch"):
        before, after = then.get(fact), today.get(fact)
        if before != after:
            return f"its {fact} was {before} and is {after}"

    needed = PEER_ROWS.get(row, row)
    if not all(needed in side.find_peer_rows(column) for side in sides):
        return "its peer has no such row in both reports"
    return ""


def _compare_row(column: str, row: str, sides: Sequence[_Side]) -> JudgedRow:
    """Return the comparison of a row, before corrections and a verdict."""
    then, today = (side.logarithms(column, row) for side in sides)
    change, low, high, pvalue = _estimate_shift(then, today)
    return JudgedRow(
        column=column,
        row=row,
        verdict=Verdict.TOO_NOISY,
        change=raise_from_logarithm(change),
        low=raise_from_logarithm(low),
        high=raise_from_logarithm(high),
        pvalue=pvalue,
        peer=sides[0].columns[column]["peer"],
        reason="",
    )


def _estimate_shift(then: Values, today: Values) -> tuple[float, float, float, float]:
    """Return the change and the ends of its interval on logarithms, and the p-value of
    a slowdown.
    """
    change = float(stats.trim_mean(today, TRIMMED) - stats.trim_mean(then, TRIMMED))
    if min(len(then), len(today)) == 1:
        return change, -math.inf, math.inf, 1.0

    # Differences within a clock's last digit are not a spread, and no test knows them.
    spreads = [np.ptp(stats.trimboth(side, TRIMMED)) for side in (then, today)]
    if max(spreads) < RESOLUTION:
        return change, change, change, float(change <= 0)

    # The variance of equal values that are not 0 would be an error of rounding.
    origin = np.median(then if spreads[0] < spreads[1] else today)
    test = stats.ttest_ind(today - origin, then - origin, equal_var=False, trim=TRIMMED)
    low, high = test.confidence_interval(1 - 2 * ALPHA)
    pvalue = stats.t.sf(test.statistic, test.df)
    return change, float(low), float(high), float(pvalue)


def _decide(row: JudgedRow, opposite: float, fail_above: float) -> JudgedRow:
    """Return a row with its verdict.

    Args:
        row: the row, with the corrected p-value of a slowdown.
        opposite: corrected p-value of a speed-up.
        fail_above: the threshold.
    """
    if row.pvalue < ALPHA and row.change > 1 + fail_above:
        return replace(row, verdict=Verdict.SLOWER)

    # The interval of a single sample has no end, and its p-value says nothing.
    is_faster = opposite < ALPHA and row.high < 1
    if is_faster and row.change < 1 / (1 + fail_above):
        return replace(row, verdict=Verdict.FASTER)

    if row.high < 1 + 2 * fail_above:
        return replace(row, verdict=Verdict.NOT_SLOWER)
    reason = (
        f"A slowdown of {2 * fail_above:.0%} cannot be excluded: measure more turns."
    )
    return replace(row, reason=reason)


def _describe_noise(sides: Sequence[_Side]) -> tuple[str, float]:
    """Return what the watchers of busy machines said, and how many times longer the
    waiting made a row at most.
    """
    said = []
    waiting = 1.0
    for side in sides:
        noise = side.report.get("noise") or {}
        if noise.get("busy"):
            reason = one_line(str(noise.get("reason")))
            said.append(f"While the {side.name} was measured: {reason}")
            share = noise.get("share")
            if isinstance(share, float) and 0 <= share < 1:
                waiting /= 1 - share
            else:
                waiting = math.inf
    return " ".join(said), waiting
