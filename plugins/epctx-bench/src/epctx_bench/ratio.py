"""Ratio of the times of two columns that were measured in turns.

Times are compared on logarithms: "twice as long" and "half as long" are then the same
distance, and the ratio of one column to another is exactly the reciprocal of the
opposite one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from epctx_core.errors import InvalidArgument

Values: TypeAlias = npt.NDArray[np.float64]
Samples: TypeAlias = Sequence[float]
"""Seconds, or another positive measure, one for each turn."""

TRIMMED = 0.2
"""Part of the samples left out at either end: one of five, so that a single outlier
among the fewest pairs that are worth measuring has no effect.
"""

CONFIDENCE = 0.95
"""Probability with which an interval contains the true ratio."""

WIDEST_EQUALITY = 1.2
"""Ratio beyond which an interval around 1 no longer means "as fast as"."""

WIDEST_MARGIN = 0.5
"""Margin of error, as a part of its ratio, beyond which the ends of the interval say
more than "8 ± 7": the interval is symmetric in the logarithm only.
"""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Ratio of our times to a peer's: below 1, ours are shorter.

    Attributes:
        estimate: the ratio.
        low: lower end of its confidence interval.
        high: upper end.
        pairs: number of pairs; the interval of a single pair is 0 to infinity.
    """

    estimate: float
    low: float
    high: float
    pairs: int

    @property
    def inverse(self) -> Ratio:
        """The ratio of the peer's times to ours: how many times faster ours are."""
        return replace(
            self,
            estimate=1 / self.estimate,
            low=1 / self.high,
            high=1 / self.low if self.low else math.inf,
        )


def check_samples(samples: Samples) -> Values:
    """Return one or more samples as an array.

    Raises:
        InvalidArgument: there are none, or one is not a positive finite number.
    """
    if not len(samples):
        raise InvalidArgument(
            "there are no samples to compare.", hint="Measure at least one turn."
        )
    for turn, sample in enumerate(samples):
        if not 0 < sample < math.inf:
            raise InvalidArgument(
                f"the sample of turn {turn} is {sample}, expected a positive finite "
                "number.",
                hint="Leave out a turn that failed, in both columns of a pair.",
            )
    return np.asarray(samples, dtype=float)


def estimate_ratio(ours: Samples, peers: Samples) -> Ratio:
    """Return the ratio of our times to a peer's, with its interval of 95 %.

    Sample i of both was taken in turn i, so what slows the machine down for a while
    is in both and cancels. The estimate is the 20 % trimmed mean of the logarithms of
    the pairs' ratios, the interval Tukey and McLaughlin's (`trimmed_mean_ci` of
    scipy). Reasons: an outlier moves neither, unlike a mean; at 5 pairs there is an
    interval, where those by ranks (Wilcoxon, the sign test) cannot reach 95 % below 6
    pairs and a bootstrap's is too narrow; and `judge` tests the same quantity by
    Yuen's test. From 2 to 4 pairs nothing is trimmed. One pair has an estimate and
    says nothing about its error: its interval is 0 to infinity. Simulated with errors
    of 5 % a sample, intervals of 95 % contain the true ratio in 91 % of 1,000 tries at
    5 pairs, in 94 to 97 % from 6 to 200.

    Turns that influence each other differently in both columns make the interval too
    narrow; more turns do not help against that, a longer pause between them does.

    Args:
        ours: our samples, one for each turn.
        peers: the peer's samples of the same turns.

    Raises:
        InvalidArgument: the numbers of samples differ or are 0, or a sample is not a
            positive finite number.
    """
    # Its import takes a second or two, and a report without comparisons needs none.
    from scipy import stats

    logarithms = pair_logarithms(ours, peers)
    center = stats.trim_mean(logarithms, TRIMMED)

    low, high = -math.inf, math.inf
    if len(logarithms) > 1:
        low, high = stats.mstats.trimmed_mean_ci(
            logarithms, limits=(TRIMMED, TRIMMED), alpha=1 - CONFIDENCE
        )
    return Ratio(
        estimate=raise_from_logarithm(center),
        low=raise_from_logarithm(low),
        high=raise_from_logarithm(high),
        pairs=len(logarithms),
    )


def raise_from_logarithm(logarithm: float) -> float:
    """Return e to the power of a number; infinity beyond what floating point holds, as
    the interval of two pairs that differ widely reaches there.
    """
    with np.errstate(over="ignore"):
        return float(np.exp(logarithm))


def pair_logarithms(ours: Samples, peers: Samples) -> Values:
    """Return the logarithm of each pair's ratio.

    Raises:
        InvalidArgument: the numbers of samples differ or are 0, or a sample is not a
            positive finite number.
    """
    if len(ours) != len(peers):
        raise InvalidArgument(
            f"{len(ours)} samples cannot be paired with {len(peers)} of the peer: "
            "sample i of both has to come from turn i.",
            hint="Measure both in the same turns.",
        )
    logarithms: Values = np.log(check_samples(ours))
    logarithms -= np.log(check_samples(peers))
    return logarithms


def describe_ratio(
    ratio: Ratio, ours: str = "loads", peer: str = "onnxruntime compiles"
) -> str:
    """Return a ratio in words.

    Args:
        ratio: our times to the peer's.
        ours: what ours do, such as "loads".
        peer: the peer and what it does.

    Returns:
        "loads 12.3 ± 0.4 times faster than onnxruntime compiles", "loads 1.50 ± 0.02
        times slower than ...", "loads 3.41 to 19.8 times faster than ..." where the
        interval is wide, "loads as fast as ... (0.97 to 1.03)" where it contains 1, or
        a statement of how little is known where it contains 1 and is wide.
    """
    faster = ratio.inverse
    shown, word = faster, "faster"
    if ratio.estimate > 1:
        shown, word = ratio, "slower"
    if ratio.pairs == 1:
        return (
            f"{ours} about {_round(shown.estimate)} times {word} than {peer} "
            "(one pair only)"
        )

    margin = (shown.high - shown.low) / 2
    if not ratio.low <= 1 <= ratio.high:
        amount = f"{_round(shown.estimate, margin)} ± {_round(margin, margin)}"
        if margin > WIDEST_MARGIN * shown.estimate:
            amount = f"{_round(shown.low)} to {_round(shown.high)}"
        return f"{ours} {amount} times {word} than {peer}"

    if max(faster.high, ratio.high) <= WIDEST_EQUALITY:
        margin = (faster.high - faster.low) / 2
        ends = f"{_round(faster.low, margin)} to {_round(faster.high, margin)}"
        return f"{ours} as fast as {peer} ({ends})"
    return (
        f"{ours} between {_round(ratio.high)} times slower and "
        f"{_round(faster.high)} times faster than {peer}: measure more turns"
    )


def _round(value: float, margin: float | None = None) -> str:
    """Return a number to the first digit of its margin of error, or to three digits;
    no more than three decimals.
    """
    if math.isinf(value):
        return "any number of"

    size = margin * 100 if margin else value
    if math.isinf(size):
        size = value
    digits = 2 - math.floor(math.log10(size)) if size else 2
    return f"{value:,.{min(max(digits, 0), 3)}f}"
