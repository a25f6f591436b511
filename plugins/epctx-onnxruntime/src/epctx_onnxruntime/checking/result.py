"""Result of one case on one route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Result:
    """Outcome of one case on one route.

    Attributes:
        outcome: passed; wrong: other results than the case expects; refused: an error
            of ours; raised: one that is not; crashed, hung: by the process; differs:
            passed, but in other bits than the direct route; unclaimed: not run, as EPs
            take nothing, so that a context model has no payload.
        reason: for a person.
        kind: the part of the reason that another text does not change: an error's
            class, or the difference. "aliasing": a second run changed the first one's
            outputs; "inputs": a run changed its inputs.
        claimed: number of nodes that EPs took.
        operators: the same by operator.
        bits: digest of the outputs.
        notes: what else a campaign's own function found; what JSON can hold.
    """

    case: str
    route: str
    outcome: str
    reason: str = ""
    kind: str = ""
    claimed: int = 0
    operators: Mapping[str, int] = field(default_factory=dict)
    bits: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return what is not empty."""
        return {key: value for key, value in asdict(self).items() if value}
