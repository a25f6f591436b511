"""SDK and driver versions, and how a vendor's table of version rules is applied.

Knows how to compare two facts. Which fact matters, and what a difference means, is written in each vendor's package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from epctx_core.errors import InvalidArgument, InvalidGraph
from epctx_core.plugin import Compatibility

RESTORE = "Compile the source model again, or restore the payload from where it came."
"""What helps where a payload is damaged."""
KIND = "ep_context_type"
"""The attribute by which the real QNN EP tells kinds of payloads apart; its common kind goes without."""

SDK_VERSION = "sim-2.51.0"
DRIVER_VERSION = "sim-1.8.0"
BLOB_VERSION = "1"
"""The container format, as a fact that version rules can name."""

_VERSION = re.compile(r"sim-(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
_NUMBER = re.compile(r"\d{1,18}")
_INFO_PREFIX = "epctx-sim"
_LONGEST_INFO = 4096
_INFO_FIELD = re.compile(r"([a-z_]+)=([A-Za-z0-9_.-]*)")


class Version(NamedTuple):
    """A version of the simulated SDK or driver, such as `sim-2.51.0`; compared number by number."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """Return the version that a text spells, or None if it is not one of this SDK's."""
        match = _VERSION.fullmatch(text)
        return cls(*map(int, match.groups())) if match else None

    def __str__(self) -> str:
        return f"sim-{self.major}.{self.minor}.{self.patch}"


def runtime_version(given: str, default: str, *, option: str, ep: str) -> str:
    """Return the version that the simulated runtime claims to have.

    Args:
        given: what the host set, such as `sim-2.51.0`; empty for the default.
        default: the version without an override.
        option: the option's name, for the message.
        ep: the EP type, for the message.

    Raises:
        InvalidArgument: not a version of the simulated SDK.
    """
    if given and Version.parse(given) is None:
        raise InvalidArgument(
            f"{ep}: option {option!r} is {given!r}, which is not a simulated version.",
            ep=ep,
            hint=f"Write it like {default}.",
        )
    return given or default


class Relation(Enum):
    """How what made a payload relates to the runtime that is to load it."""

    SAME = "the same"
    OLDER = "older"
    NEWER = "newer"
    OLDER_MAJOR = "of an older major version"
    NEWER_MAJOR = "of a newer major version"
    OTHER = "another one"
    MISSING = "missing"


Rules: TypeAlias = Mapping[tuple[str, Relation], Compatibility]
"""A vendor's table: (field, relation) to verdict. What is not listed is optimal."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The worst verdict that a table gives, and the field that caused it (empty if none did)."""

    verdict: Compatibility
    field: str = ""
    found: str = ""
    needed: str = ""
    relation: Relation = Relation.SAME


def relation(found: str | None, needed: str | None) -> Relation:
    """Compare one fact: versions as versions, whole numbers as numbers, everything else as text.

    A runtime without a wish (`needed` is None) is content with anything.
    """
    if needed is None or found == needed:
        return Relation.SAME
    if found is None:
        return Relation.MISSING
    if _NUMBER.fullmatch(found) and _NUMBER.fullmatch(needed):
        return _order((int(found),), (int(needed),), Relation.OLDER, Relation.NEWER)
    theirs, ours = Version.parse(found), Version.parse(needed)
    if theirs is None or ours is None:
        return Relation.OTHER
    if theirs.major != ours.major:
        return _order((theirs.major,), (ours.major,), Relation.OLDER_MAJOR, Relation.NEWER_MAJOR)
    return _order(theirs, ours, Relation.OLDER, Relation.NEWER)


def _order(found: tuple[int, ...], needed: tuple[int, ...], older: Relation, newer: Relation) -> Relation:
    if found == needed:
        return Relation.SAME
    return older if found < needed else newer


def judge(rules: Rules, made_by: Mapping[str, str], runtime: Mapping[str, str]) -> Judgement:
    """Apply a vendor's table to what made a payload and to the runtime that is to load it."""
    worst = Judgement(verdict=Compatibility.EP_SUPPORTED_OPTIMAL)
    for field in dict.fromkeys(field for field, _ in rules):
        found, needed = made_by.get(field), runtime.get(field)
        related = relation(found, needed)
        verdict = rules.get((field, related), Compatibility.EP_SUPPORTED_OPTIMAL)
        if verdict > worst.verdict:
            worst = Judgement(
                verdict=verdict, field=field, found=found or "missing", needed=needed or "", relation=related
            )
    return worst


def refuse_unsupported(judgement: Judgement, *, ep: str, node: str, subject: str) -> None:
    """Do nothing, unless the verdict is UNSUPPORTED.

    Args:
        judgement: from `judge`.
        ep: the EP type, for the message.
        node: the EPContext node, for the message.
        subject: what carries the facts, such as `the payload a_qnn.bin`.

    Raises:
        InvalidGraph: naming the field, what was found and what is needed.
    """
    if judgement.verdict is not Compatibility.EP_UNSUPPORTED:
        return
    raise InvalidGraph(
        f"{ep} cannot load node {node!r}: {subject} has {judgement.field} {judgement.found}"
        f" ({judgement.relation.value}), but this simulated runtime needs {judgement.needed}.",
        node=node,
        ep=ep,
        hint=f"Compile the source model again for {judgement.field} {judgement.needed},"
        " or give the EP the options that describe the runtime it was made for.",
    )


def write_info(facts: Mapping[str, str]) -> str:
    """Return facts as the text that `get_compatibility_info` gives."""
    return ";".join((_INFO_PREFIX, *(f"{field}={facts[field]}" for field in sorted(facts))))


def read_info(info: str) -> dict[str, str] | None:
    """Return the facts of such a text; None if no simulated EP wrote it."""
    if len(info) > _LONGEST_INFO:
        return None
    prefix, *fields = info.split(";")
    if prefix != _INFO_PREFIX:
        return None
    matches = (_INFO_FIELD.fullmatch(field) for field in fields)
    return {match[1]: match[2] for match in matches if match}
