"""Gate: judges whether a measurement is slower than a saved one.

*What is compared.* Machines differ and drift, so times of another day say little. A
column with a peer is judged by the ratio of its times to the peer's, then against now:
both were taken in the same turns, and what slowed the machine down is in both. A
column without a peer is judged by its own times, only if processor, cores, operating
system and Python are the same, and the result calls itself weaker. A column that is
another's peer is not judged.

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

*Noise.* A row is `too noisy` if a report says that its machine was busy, or if the
interval reaches beyond twice the threshold: so a true slowdown of twice the threshold
is called `not slower` with a probability of at most `alpha`, however few turns there
are. A noisy row does not fail; `Judgement.undecided` says that there are some.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from scipy import stats

from epctx_bench.ratio import (
    TRIMMED,
    Values,
    check_samples,
    find_median,
    pair_logarithms,
    raise_from_logarithm,
)
from epctx_bench.saved import Report, check_report
from epctx_core.errors import InvalidArgument, one_line

MACHINE_FACTS = ("cpu", "cores", "os", "python")
"""Facts of a report's machine that have to be equal where times are compared without a
peer. Versions of packages are not among them: they are what is compared.
"""

PEER_ROWS = {"compile": "load_warm"}
"""Rows that are compared with another row of the peer: onnxruntime compiles when it
creates its session.
"""

FAIL_ABOVE = 0.05
"""Relative slowdown that a significant one has to exceed to fail, by default."""

LARGEST_ALPHA = 0.5
"""Level from which an interval of 1 - 2 `alpha` would be empty."""

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
        high: upper end; infinity where a side has a single sample.
        pvalue: of the one-sided test of a slowdown, corrected by Holm.
        peer: the peer's column whose times were compared with; None if the row was
            judged by its own times, which is weaker.
        reason: why the row is too noisy; else empty.
    """

    column: str
    row: str
    verdict: Verdict
    change: float
    low: float
    high: float
    pvalue: float
    peer: str | None
    reason: str

    def __str__(self) -> str:
        amount = f"{_describe_change(self.change)} ({_describe_interval(self)})"
        against = f"relative to {self.peer}" if self.peer else "by its own times alone"
        text = f"{self.column}, {self.row}: {self.verdict}, {amount}, {against}."
        if self.reason:
            text += f" {self.reason}"
        if not self.peer:
            text += (
                " Without a peer a slower machine looks like a slower program: this "
                "verdict is weaker."
            )
        return text


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Comparison of a report with a saved one.

    Attributes:
        rows: the compared rows, in the order of the report.
        notes: sentences on what was not compared, and why.
        fail_above: relative slowdown from which a significant one fails.
        alpha: probability of a false failure in all rows together.
    """

    rows: tuple[JudgedRow, ...]
    notes: tuple[str, ...]
    fail_above: float
    alpha: float

    @property
    def failed(self) -> bool:
        """True if a row is slower."""
        return any(row.verdict is Verdict.SLOWER for row in self.rows)

    @property
    def undecided(self) -> bool:
        """True if no row is slower, but some are too noisy to say so, or none could be
        compared.
        """
        noisy = any(row.verdict is Verdict.TOO_NOISY for row in self.rows)
        return (noisy or not self.rows) and not self.failed

    def lines(self) -> list[str]:
        """Return the judgement as sentences, one a line; the last one sums it up."""
        return [*map(str, self.rows), *self.notes, self._sum_up()]

    def as_dict(self) -> dict[str, Any]:
        """Return the judgement as JSON; an end of an interval that is infinite is
        None.
        """
        rows = []
        for row in self.rows:
            values = asdict(row)
            rows.append(
                {
                    key: None if value == math.inf else value
                    for key, value in values.items()
                }
            )
        return {
            "failed": self.failed,
            "undecided": self.undecided,
            "fail_above": self.fail_above,
            "alpha": self.alpha,
            "rows": rows,
            "notes": list(self.notes),
        }

    def _sum_up(self) -> str:
        if not self.rows:
            return "UNDECIDED: nothing could be compared with the saved report."

        counts = {
            verdict: sum(row.verdict is verdict for row in self.rows)
            for verdict in Verdict
        }
        found = ", ".join(
            f"{count} {verdict}" for verdict, count in counts.items() if count
        )
        rows = "row" if len(self.rows) == 1 else "rows"
        text = (
            f"{len(self.rows)} {rows} compared: {found}. A row fails if it is slower "
            f"by more than {self.fail_above * 100:.3g}% and that is significant at "
            f"{self.alpha}."
        )
        # It exits like a success, so it must not read like one.
        return f"UNDECIDED, which is not passed. {text}" if self.undecided else text


@dataclass(frozen=True, kw_only=True)
class _Shift:
    """Comparison of one row before the number of rows is known.

    Attributes:
        column: name of the column.
        row: name of the row.
        peer: the peer's column, if there is one.
        change: estimate on logarithms.
        low: lower end of its interval.
        high: upper end.
        pvalues: of the tests of a slowdown and of a speed-up.
    """

    column: str
    row: str
    peer: str | None
    change: float
    low: float
    high: float
    pvalues: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One of the two reports.

    Attributes:
        report: the report.
        name: what sentences call it.
    """

    report: Report
    name: str

    @property
    def columns(self) -> dict[str, Mapping[str, Any]]:
        """The columns by name."""
        return {column["name"]: column for column in self.report["columns"]}

    @property
    def peers(self) -> set[str | None]:
        """The columns that others are compared with."""
        return {column.get("peer") for column in self.report["columns"]}

    def rows(self, column: str) -> Mapping[str, Mapping[str, Any]]:
        """Return the rows of a column by name."""
        rows: Mapping[str, Mapping[str, Any]] = self.columns[column]["rows"]
        return rows

    def samples(self, column: str, row: str) -> list[float]:
        """Return the samples of a row; none where the row is missing."""
        samples: list[float] = self.rows(column).get(row, {}).get("samples", [])
        return samples

    def peer(self, column: str, row: str) -> str | None:
        """Return the peer of a column, if it was measured in this row."""
        peer: str | None = self.columns[column].get("peer")
        if peer not in self.columns or self.columns[peer].get("error"):
            return None
        return peer if self.peer_samples(peer, row) else None

    def peer_samples(self, peer: str, row: str) -> list[float]:
        """Return the samples that a row of another column is compared with."""
        return self.samples(peer, PEER_ROWS.get(row, row))

    def logarithms(self, column: str, row: str, peer: str | None) -> Values:
        """Return the logarithms of a row's times, or of their ratios to the peer's.

        Raises:
            InvalidArgument: the samples cannot be paired, or one of them is not a
                positive finite number.
        """
        ours = self.samples(column, row)
        try:
            if peer:
                return pair_logarithms(ours, self.peer_samples(peer, row))
            logarithms: Values = np.log(check_samples(ours))
        except InvalidArgument as error:
            raise InvalidArgument(
                f"{column}, {row} of the {self.name}: {error.message}", hint=error.hint
            ) from error
        return logarithms


def judge(
    saved: Report, now: Report, *, fail_above: float = FAIL_ABOVE, alpha: float = 0.01
) -> Judgement:
    """Return whether a report is slower than a saved one.

    Columns and rows that only one of them has are named in the notes and do not fail.

    Args:
        saved: the earlier report.
        now: the report to judge.
        fail_above: relative slowdown that a significant one has to exceed to fail.
        alpha: probability of a false failure, for all rows together.

    Raises:
        InvalidArgument: a report is not of schema 1 or has samples that are not
            positive finite numbers, or an argument is out of range.
    """
    _check_arguments(fail_above, alpha)
    for report, name in ((saved, "saved"), (now, "new")):
        check_report(report, f"the {name} report")

    notes: list[str] = []
    sides = (
        _Side(report=saved, name="saved report"),
        _Side(report=now, name="new report"),
    )
    shifts = list(_compare(*sides, alpha, notes))
    noise = _describe_noise(saved, now)

    slower = correct_pvalues([shift.pvalues[0] for shift in shifts])
    faster = correct_pvalues([shift.pvalues[1] for shift in shifts])
    rows = tuple(
        _give_verdict(shift, pvalues, noise, (fail_above, alpha))
        for shift, pvalues in zip(shifts, zip(slower, faster, strict=True), strict=True)
    )
    return Judgement(rows=rows, notes=tuple(notes), fail_above=fail_above, alpha=alpha)


def parse_threshold(text: str) -> float:
    """Return the relative slowdown that a text such as `5%` or `0.05` gives.

    Raises:
        InvalidArgument: it is not a number above 0, or 1 and more without a percent
            sign.
    """
    digits = text.strip()
    is_percent = digits.endswith("%")
    try:
        number = float(digits.removesuffix("%"))
    except ValueError:
        number = math.nan

    if not 0 < number < math.inf:
        raise InvalidArgument(
            f"the threshold {text!r} is not a slowdown above 0.",
            hint="Give it such as 5% or 0.05.",
        )
    if not is_percent and number >= 1:
        # `5` is meant as 5 % more often than as 500 %.
        raise InvalidArgument(
            f"the threshold {text!r} means {number:.0%} without a percent sign.",
            hint=f"Give {digits}%, or a part such as 0.05.",
        )
    return number / 100 if is_percent else number


def require_peers(saved: Report) -> None:
    """Check, before a measurement without peers, that a saved report needs none.

    Raises:
        InvalidArgument: it has columns that were measured beside a peer.
    """
    peers = sorted(
        {column["peer"] for column in saved["columns"] if column.get("peer")}
    )
    if peers:
        raise InvalidArgument(
            f"the saved report has the peer {peers[0]}, and this measurement leaves "
            "peers out; ratios need it in both.",
            hint="Measure onnxruntime too.",
        )


def correct_pvalues(pvalues: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's step-down method.

    Comparing a corrected one with `alpha` keeps the probability of any false positive
    among all of them at most at `alpha`. (scipy controls the false discovery rate,
    which lets a gate with many rows fail more often for nothing.)
    """
    corrected = [1.0] * len(pvalues)
    largest = 0.0
    order = sorted(range(len(pvalues)), key=pvalues.__getitem__)

    for rank, index in enumerate(order):
        largest = max(largest, min((len(order) - rank) * pvalues[index], 1.0))
        corrected[index] = largest
    return corrected


def _check_arguments(fail_above: float, alpha: float) -> None:
    """Check the threshold and the level."""
    if not 0 < fail_above < math.inf:
        raise InvalidArgument(
            f"fail_above is {fail_above}, expected a relative slowdown such as 0.05."
        )
    if not 0 < alpha < LARGEST_ALPHA:
        raise InvalidArgument(f"alpha is {alpha}, expected a probability such as 0.01.")


def _compare(
    saved: _Side, now: _Side, alpha: float, notes: list[str]
) -> Iterator[_Shift]:
    """Yield the comparison of each row that can be compared; note the others."""
    notes += [
        f"{name} is in the saved report only; it was not judged."
        for name in saved.columns
        if name not in now.columns
    ]
    for name in now.columns:
        if name not in saved.columns:
            notes.append(f"{name} is in the new report only; it was not judged.")
            continue

        reason = _describe_errors(name, saved, now) or _find_other_settings(
            name, saved, now
        )
        if reason:
            notes.append(f"{name} was not judged: {reason}.")
            continue

        # A peer is the measure of others: its own times change with the machine.
        if name in saved.peers | now.peers:
            continue

        for row in dict.fromkeys((*saved.rows(name), *now.rows(name))):
            compared = _compare_row((name, row), saved, now, alpha)
            if isinstance(compared, str):
                notes.append(f"{name}, {row}: {compared}; it was not judged.")
            else:
                yield compared


def _find_other_settings(column: str, saved: _Side, now: _Side) -> str:
    """Return what was measured otherwise in a column; empty if nothing was."""
    then, today = (side.columns[column].get("options", {}) for side in (saved, now))
    for ep in {**then, **today}:
        if (then.get(ep) or {}) != (today.get(ep) or {}):
            return f"its options of {ep} differ"

    for key, meaning in (
        ("config", "the session options"),
        ("free_dimensions", "the lengths of open dimensions"),
    ):
        before, after = (
            side.report.get("settings", {}).get(key) or {} for side in (saved, now)
        )
        if before != after:
            return f"{meaning} differ"
    return ""


def _compare_row(
    key: tuple[str, str], saved: _Side, now: _Side, alpha: float
) -> _Shift | str:
    """Return the comparison of a row of a column, or why there is none."""
    column, row = key
    for side in (saved, now):
        if not side.samples(column, row):
            other = now if side is saved else saved
            return f"it is in the {other.name} only"

    then, today = saved.rows(column)[row], now.rows(column)[row]
    if then["unit"] != "s":
        return "it is not a time"
    for fact in ("threads", "batch"):
        if then.get(fact) != today.get(fact):
            return f"its {fact} was {then.get(fact)} and is {today.get(fact)}"

    peer = saved.peer(column, row)
    if peer is None or peer != now.peer(column, row):
        peer = None
        differing = _find_differing_facts(saved.report, now.report)
        if differing:
            return (
                "it has no peer in both reports, and its own times are comparable on "
                f"one machine only; the reports differ in, or lack, {differing}"
            )

    change, low, high, pvalues = _estimate_shift(
        saved.logarithms(column, row, peer), now.logarithms(column, row, peer), alpha
    )
    return _Shift(
        column=column,
        row=row,
        peer=peer,
        change=change,
        low=low,
        high=high,
        pvalues=pvalues,
    )


def _estimate_shift(
    then: Values, today: Values, alpha: float
) -> tuple[float, float, float, tuple[float, float]]:
    """Return the change, the ends of its interval, and the p-values of a slowdown and
    of a speed-up, all on logarithms.
    """
    change = float(stats.trim_mean(today, TRIMMED) - stats.trim_mean(then, TRIMMED))
    if min(len(then), len(today)) == 1:
        return change, -math.inf, math.inf, (1.0, 1.0)

    # Differences within a clock's last digit are not a spread, and no test knows them.
    spreads = [np.ptp(stats.trimboth(side, TRIMMED)) for side in (then, today)]
    if max(spreads) < RESOLUTION:
        return change, change, change, (float(change <= 0), float(change >= 0))

    # The variance of equal values that are not 0 would be an error of rounding.
    origin = find_median(then if spreads[0] < spreads[1] else today)
    then, today = then - origin, today - origin
    test = stats.ttest_ind(today, then, equal_var=False, trim=TRIMMED)
    low, high = test.confidence_interval(1 - 2 * alpha)
    slower, faster = (
        float(tail(test.statistic, test.df)) for tail in (stats.t.sf, stats.t.cdf)
    )
    return change, float(low), float(high), (slower, faster)


def _give_verdict(
    shift: _Shift, pvalues: tuple[float, float], noise: str, limits: tuple[float, float]
) -> JudgedRow:
    """Return the verdict on a row, by corrected p-values.

    Args:
        shift: the comparison of the row.
        pvalues: of a slowdown and of a speed-up.
        noise: why the machine was too busy; else empty.
        limits: the threshold and the level.
    """
    fail_above, alpha = limits
    threshold = math.log1p(fail_above)
    reason = noise
    verdict = Verdict.TOO_NOISY

    if not noise and pvalues[0] < alpha and shift.change > threshold:
        verdict = Verdict.SLOWER
    elif not noise and pvalues[1] < alpha and shift.change < -threshold:
        verdict = Verdict.FASTER
    elif not noise and shift.high < math.log1p(2 * fail_above):
        verdict = Verdict.NOT_SLOWER
    elif not noise:
        reason = (
            f"A slowdown of {2 * fail_above:.0%} cannot be excluded: measure more "
            "turns."
        )
    return JudgedRow(
        column=shift.column,
        row=shift.row,
        verdict=verdict,
        change=raise_from_logarithm(shift.change),
        low=raise_from_logarithm(shift.low),
        high=raise_from_logarithm(shift.high),
        pvalue=pvalues[0],
        peer=shift.peer,
        reason=reason,
    )


def _describe_errors(column: str, saved: _Side, now: _Side) -> str:
    """Return which sides of a column could not be measured; else an empty text."""
    return " and ".join(
        f"in the {side.name} it failed ({one_line(str(error))})"
        for side in (saved, now)
        if (error := side.columns[column].get("error"))
    )


def _describe_noise(saved: Report, now: Report) -> str:
    """Return what the watchers of busy machines said; else an empty text."""
    reasons = (
        f"While the {name} was measured: {one_line(str(noise.get('reason')))}"
        for report, name in ((saved, "saved report"), (now, "new report"))
        if (noise := report.get("noise")) and noise.get("busy")
    )
    return " ".join(reasons)


def _find_differing_facts(saved: Report, now: Report) -> str:
    """Return the facts that two machines differ in, or that a report lacks."""
    then, today = (report.get("machine") or {} for report in (saved, now))
    return ", ".join(
        fact
        for fact in MACHINE_FACTS
        if then.get(fact) is None or then.get(fact) != today.get(fact)
    )


def _describe_change(change: float) -> str:
    """Return a ratio of now to then as a percentage."""
    return f"{change - 1:+.1%}"


def _describe_interval(row: JudgedRow) -> str:
    if row.high == math.inf:
        return "one sample, so no interval"
    return f"{_describe_change(row.low)} to {_describe_change(row.high)}"
