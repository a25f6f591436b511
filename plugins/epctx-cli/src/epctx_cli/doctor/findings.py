"""What an examination found: one thing with what it means and what to do. Knows no examination."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Weight(Enum):
    """How much a finding matters."""

    PROBLEM = "problem"
    """Something does not work until it is mended."""
    NOTE = "note"
    """Everything works; it may still surprise somebody."""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One finding.

    Attributes:
        weight: whether it has to be mended.
        what: a sentence.
        remedy: what to do, or empty.
    """

    weight: Weight
    what: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return its form in JSON."""
        return {"severity": self.weight.value, "message": self.what, "hint": self.remedy}


def problem(what: str, remedy: str = "") -> Remark:
    """Return a finding that has to be mended."""
    return Remark(weight=Weight.PROBLEM, what=what, remedy=remedy)


def note(what: str, remedy: str = "") -> Remark:
    """Return a finding that is good to know."""
    return Remark(weight=Weight.NOTE, what=what, remedy=remedy)
