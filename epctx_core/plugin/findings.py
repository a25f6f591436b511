"""What a verification finds: said by the core, and by EPs about what only they understand."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum


class Severity(Enum):
    """How much a finding matters; the values are what users read."""

    ERROR = "error"
    """The model does not load, or not everywhere, or is not what was compiled."""
    WARNING = "warning"
    """It may not do what is wanted: something is missing here, or would be better otherwise."""
    INFO = "info"
    """Good to know, such as what could not be checked."""


CONTAINER_CODES = frozenset({"container-refused", "container-not-checked"})
"""What an EP can find: that it would not load a node, or that it cannot tell."""


@dataclass(frozen=True)
class Finding:
    """One thing that is to be said about a model.

    Args:
        severity: see `Severity`.
        code: what kind of thing; docs/verify.md lists all. Those of EPs are `CONTAINER_CODES`.
        message: what was found, in which object and why that matters; one or two sentences.
        node: the node concerned, or None.
        hint: what to do about it.

    Example:
        >>> Finding(Severity.ERROR, "container-refused", "acme.bin has no graph 'a_0'.", node="a_0")
    """

    severity: Severity
    code: str
    message: str
    _: KW_ONLY
    node: str | None = None
    hint: str = ""

    def as_dict(self) -> dict[str, str | None]:
        """Return what `epctx verify --json` prints."""
        return {
            "severity": self.severity.value,
            "code": self.code,
            "node": self.node,
            "message": self.message,
            "hint": self.hint,
        }
