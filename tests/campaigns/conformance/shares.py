"""Shares of the quantised twins that EPs claim and get right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conformance.twins import LAYERS

if TYPE_CHECKING:
    from conformance.twins import Index, Twin
    from epctx_onnxruntime.checking.result import Result

LEAST = {"openvino": 0.7, "qnn": 0.3, "vitisai": 1.0}
"""What the simulated EPs have to reach."""

ONLY_LAYERS = frozenset({"vitisai"})
"""EPs that are asked for the twins with a layer between quantisers, and to take every
such layer.
"""

AROUND = frozenset({"Constant", "DequantizeLinear", "QuantizeLinear"})
"""Operators that are no claim to speak of, if an EP takes nothing else."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one set of EPs does with the twins that it is asked for.

    Attributes:
        eps: their name.
        asked: number of twins.
        claimed: of how many an operator is taken, or every layer.
        right: how many of these pass on every route.
        least: the share of `right` in `asked` that there has to be.
    """

    eps: str
    asked: int
    claimed: int
    right: int
    least: float

    @property
    def reached(self) -> float:
        """The share of twins that are claimed and right."""
        return self.right / self.asked if self.asked else 0.0


def count_shares(results: Iterable[Result], twins: Mapping[str, Twin]) -> list[Share]:
    """Return the shares of all EPs that results are of.

    Args:
        results: of twins and others, on any routes.
        twins: all there are, by name.
    """
    by_eps: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        eps = result.route.partition(".")[0]
        if result.case in twins and eps not in {"onnxruntime", "cpu"}:
            by_eps.setdefault(eps, {}).setdefault(result.case, []).append(result)
    return [_count(eps, found, twins) for eps, found in by_eps.items()]


def _count(
    eps: str, results: Mapping[str, list[Result]], twins: Mapping[str, Twin]
) -> Share:
    asked = [name for name in results if eps not in ONLY_LAYERS or twins[name].layers]
    claimed = [
        name
        for name in asked
        if _is_claimed(results[name], twins[name], eps in ONLY_LAYERS)
    ]
    right = [
        name
        for name in claimed
        if all(result.outcome == "passed" for result in results[name])
    ]
    return Share(
        eps=eps,
        asked=len(asked),
        claimed=len(claimed),
        right=len(right),
        least=LEAST.get(eps, 0.0),
    )


def _is_claimed(results: Iterable[Result], twin: Twin, layers: bool) -> bool:
    for result in results:
        wanted = sum(
            count for operator, count in result.operators.items() if operator in LAYERS
        )
        if wanted < twin.layers if layers else result.operators.keys() <= AROUND:
            return False
    return True


def find_lacking(results: Iterable[Result], index: Index | None) -> list[str]:
    """Return a line for each share that is too small; of EPs that did not run on all
    twins there is none.
    """
    if index is None:
        return []
    layers = sum(bool(twin.layers) for twin in index.twins.values())
    return [
        f"{share.eps} claims and gets right {share.reached:.1%} of {share.asked} "
        f"twins, not {share.least:.0%}"
        for share in count_shares(results, index.twins)
        if share.asked == (layers if share.eps in ONLY_LAYERS else len(index.twins))
        and share.reached < share.least
    ]


def describe(results: Iterable[Result], index: Index) -> str:
    """Return in Markdown how many twins there are, why not more, and what EPs do with
    them.
    """
    layers = sum(bool(twin.layers) for twin in index.twins.values())
    reasons = Counter(_shorten(reason) for reason in index.failed.values())
    pairs = (
        f"{len(index.twins):,} got a pair of QuantizeLinear and DequantizeLinear, "
        f"{layers:,} of them around a layer"
    )
    lines = [
        f"Of {index.asked:,} twins that were tried, {pairs}. The others:",
        "",
        *(f"- {count}: {reason}" for reason, count in reasons.most_common()),
        "",
        "| EPs | twins asked | claimed | claimed and right | share | at least |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {s.eps} | {s.asked:,} | {s.claimed:,} | {s.right:,} | {s.reached:.1%} | "
        f"{s.least:.0%} |"
        for s in count_shares(results, index.twins)
    ]
    return "\n".join(lines)


def _shorten(reason: str) -> str:
    """Return a reason without the names of one model's nodes, files and types."""
    reason = re.sub(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", reason)
    reason = re.sub(
        r".*Numpy[_ ]type.*", "an element type that numpy does not have", reason
    )
    return re.sub(
        r"(\(\d+\)| with name| Name:|Load model from| initialization:|, '|x Got:).*",
        "",
        reason,
    ).rstrip(": ")
