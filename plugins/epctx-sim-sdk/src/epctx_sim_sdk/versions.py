"""SDK and driver versions, and how a vendor's table of version rules is applied.

Knows how to compare two facts. Which fact matters, and what a difference means, is
written in each vendor's package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from epctx_core.errors import InvalidArgument
from epctx_core.plugin import Compatibility

RESTORE = "Compile the source model again, or restore the payload from where it came."
"""Hint for a damaged payload."""
KIND = "ep_context_type"
"""The attribute by which the real QNN EP tells kinds of payloads apart; its common kind
goes without.
"""

SDK_VERSION = "sim-2.51.0"
DRIVER_VERSION = "sim-1.8.0"
BLOB_VERSION = "1"
"""The container format, as a fact that version rules can name."""
CONTEXT_API = "1"
"""The interface between the simulated EPs and their payloads; a change that old EPs
cannot read raises it.
"""

_VERSION = re.compile(r"sim-(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
_NUMBER = re.compile(r"\d{1,18}")
_INFO_PREFIX = "epctx-sim"
_LONGEST_INFO = 4096
_INFO_FIELD = re.compile(r"([a-z_]+)=([A-Za-z0-9_.-]*)")


class Version(NamedTuple):
    """A version of the simulated SDK or driver, such as `sim-2.51.0`; compared number
    by number.
    """

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> Version | None:
        """Return the version that a text spells, or None if it is not one of this
        SDK's.
        """
        match = _VERSION.fullmatch(text)
        return cls(*map(int, match.groups())) if match else None

    def __str__(self) -> str:
        return f"sim-{self.major}.{self.minor}.{self.patch}"


def stated_facts(
    ep: str,
    vendor: str,
    options: Mapping[str, Any],
    components: Mapping[str, str],
) -> dict[str, str]:
    """Return the facts about a compiler or runtime that all vendors have, out of
    `options.runtime_options`.

    Args:
        ep: the EP name, for the message.
        vendor: whose payloads they are.
        options: the EP's.
        components: the version of each component without an override, such as
            `sim-2.51.0`.

    Raises:
        InvalidArgument: an option is not a version of the simulated SDK.
    """
    facts = {
        "vendor": vendor,
        "api": str(options["runtime_api_version"] or CONTEXT_API),
        "blob": str(options["runtime_blob_version"] or BLOB_VERSION),
    }
    for component, default in components.items():
        option = f"runtime_{component}_version"
        facts[component] = options[option] or default
        if Version.parse(facts[component]) is None:
            raise InvalidArgument(
                f"{ep}: option {option!r} is {options[option]!r}, which is not a "
                "simulated version.",
                ep=ep,
                hint=f"Write it like {default}.",
            )
    return facts


class Relation(Enum):
    """Relation of a payload's maker to the runtime that is to load it."""

    SAME = "the same"
    OLDER = "older"
    NEWER = "newer"
    OLDER_MAJOR = "of an older major version"
    NEWER_MAJOR = "of a newer major version"
    OTHER = "another one"
    MISSING = "missing"


Rules: TypeAlias = Mapping[tuple[str, Relation], Compatibility]
"""A vendor's table: (field, relation) to verdict. What is not listed is optimal."""

WORD: Final = (Relation.OTHER, Relation.MISSING)
NUMBER: Final = (Relation.OLDER, Relation.NEWER, *WORD)
VERSION: Final = (Relation.OLDER_MAJOR, Relation.NEWER_MAJOR, *NUMBER)
"""The relations that facts of a kind can have."""

OPTIMAL: Final = Compatibility.EP_SUPPORTED_OPTIMAL
RECOMPILE: Final = Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION


def field_rules(
    field: str, kind: Collection[Relation], **accepted: Compatibility
) -> Rules:
    """Return the lines of a table for one field: every difference is unsupported but
    those accepted by name.
    """
    verdicts = {Relation[name.upper()]: verdict for name, verdict in accepted.items()}
    return {
        (field, one): verdicts.get(one, Compatibility.EP_UNSUPPORTED) for one in kind
    }


COMMON_RULES: Final[Rules] = {
    # Another vendor's simulated payload.
    **field_rules("vendor", WORD),
    # The payload's interface and format: what is newer cannot be read.
    **field_rules("api", NUMBER, older=OPTIMAL),
    **field_rules("blob", NUMBER, older=OPTIMAL),
}
"""Rules for every vendor."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The worst verdict that a table gives, and the field that caused it (empty if none
    did).
    """

    verdict: Compatibility
    field: str = ""
    found: str = ""
    needed: str = ""
    relation: Relation = Relation.SAME


def relation(fact: str | None, needed: str | None) -> Relation:
    """Compare one fact: versions as versions, whole numbers as numbers, everything else
    as text.

    A runtime without a wish (`needed` is None) is content with anything.
    """
    if needed is None or fact == needed:
        return Relation.SAME
    if fact is None:
        return Relation.MISSING
    theirs = _read_numbers(fact)
    ours = _read_numbers(needed)
    if theirs is None or ours is None or len(theirs) != len(ours):
        return Relation.OTHER
    if theirs == ours:
        return Relation.SAME

    is_older = theirs < ours
    if len(ours) > 1 and theirs[0] != ours[0]:
        return Relation.OLDER_MAJOR if is_older else Relation.NEWER_MAJOR
    return Relation.OLDER if is_older else Relation.NEWER


def _read_numbers(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a version, or the only one of a whole number."""
    if _NUMBER.fullmatch(text):
        return (int(text),)
    return Version.parse(text)


def judge(
    rules: Rules,
    made_by: Mapping[str, str],
    runtime: Mapping[str, str],
) -> Judgement:
    """Apply a vendor's table to what made a payload and to the runtime that is to load
    it.
    """
    worst = Judgement(verdict=OPTIMAL)
    for field in dict.fromkeys(field for field, _ in rules):
        fact = made_by.get(field)
        needed = runtime.get(field)
        related = relation(fact, needed)
        verdict = rules.get((field, related), OPTIMAL)
        if verdict > worst.verdict:
            worst = Judgement(
                verdict=verdict,
                field=field,
                found=fact or "missing",
                needed=needed or "",
                relation=related,
            )
    return worst


class Claim(NamedTuple):
    """Statement of a node's attribute.

    Attributes:
        fact: the field of the version rules.
        read: makes the fact out of the attribute's text.
        needed: whether a node that does not state it is judged as one that lacks it.
    """

    fact: str
    read: Callable[[str], str] = str
    needed: bool = False


@dataclass(frozen=True, kw_only=True)
class LoadPolicy:
    """Policy of a vendor for loading.

    Attributes:
        ep: the EP name.
        rules: the vendor's version rules.
        runtime: the facts about the device that loads.
        claims: by attribute, the facts that a node states beside its payload; they must
            be as acceptable as the payload's.
        without_patch: facts of which only the major and minor version count.
        lone_graph_fits: whether the only graph of a payload may have another name than
            its node.
    """

    ep: str
    rules: Rules
    runtime: Mapping[str, str]
    claims: Mapping[str, Claim]
    without_patch: Collection[str] = ()
    lone_graph_fits: bool = False

    def judge(self, made_by: Mapping[str, str]) -> Judgement:
        """Apply the rules to what made a payload and to the runtime that is to load
        it.
        """
        return judge(
            self.rules,
            self._make_comparable(made_by),
            self._make_comparable(self.runtime),
        )

    def _make_comparable(self, facts: Mapping[str, str]) -> Mapping[str, str]:
        versions = {
            field: Version.parse(facts.get(field, "")) for field in self.without_patch
        }
        return {
            **facts,
            **{field: str(v._replace(patch=0)) for field, v in versions.items() if v},
        }


def write_info(facts: Mapping[str, str]) -> str:
    """Return facts as the text that `get_compatibility_info` gives."""
    return ";".join(
        (_INFO_PREFIX, *(f"{field}={facts[field]}" for field in sorted(facts)))
    )


def read_info(info: str) -> dict[str, str] | None:
    """Return the facts of such a text; None if no simulated EP wrote it."""
    if len(info) > _LONGEST_INFO:
        return None
    prefix, *fields = info.split(";")
    if prefix != _INFO_PREFIX:
        return None
    matches = (_INFO_FIELD.fullmatch(field) for field in fields)
    return {match[1]: match[2] for match in matches if match}
