"""VitisAI's version rules as one table: what a payload was made by, against the runtime that loads it.

Versions of components are compared by major.minor: a patch never matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from epctx_sim_sdk.versions import Judgement, Relation, Rules, Version, judge

from epctx_core.plugin import Compatibility
from epctx_sim_vitisai.settings import COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO = Compatibility.EP_UNSUPPORTED
_RECOMPILE = Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION
_OPTIMAL = Compatibility.EP_SUPPORTED_OPTIMAL

RULES: Final[Rules] = {
    # Another vendor's simulated payload.
    ("vendor", Relation.OTHER): _NO,
    ("vendor", Relation.MISSING): _NO,
    # The archive's interface and the container's format: what is newer cannot be read.
    ("api", Relation.OLDER): _OPTIMAL,
    ("api", Relation.NEWER): _NO,
    ("api", Relation.OTHER): _NO,
    ("api", Relation.MISSING): _NO,
    ("blob", Relation.OLDER): _OPTIMAL,
    ("blob", Relation.NEWER): _NO,
    ("blob", Relation.OTHER): _NO,
    ("blob", Relation.MISSING): _NO,
    # The device: neither back end runs what was made for the other.
    ("target", Relation.OTHER): _NO,
    ("target", Relation.MISSING): _NO,
    # The EP's core reads what an older one of its major version wrote, and would write it better.
    ("vaip", Relation.OLDER): _RECOMPILE,
    ("vaip", Relation.OLDER_MAJOR): _NO,
    ("vaip", Relation.NEWER): _NO,
    ("vaip", Relation.NEWER_MAJOR): _NO,
    ("vaip", Relation.OTHER): _NO,
    ("vaip", Relation.MISSING): _NO,
    # The compiler is not needed to run; its major version says which instructions it makes.
    ("xcompiler", Relation.OLDER): _RECOMPILE,
    ("xcompiler", Relation.OLDER_MAJOR): _NO,
    ("xcompiler", Relation.NEWER): _RECOMPILE,
    ("xcompiler", Relation.NEWER_MAJOR): _NO,
    ("xcompiler", Relation.OTHER): _NO,
    ("xcompiler", Relation.MISSING): _NO,
    # Runtime and driver: an older one's work runs on a newer one of its major version.
    ("xrt", Relation.OLDER): _OPTIMAL,
    ("xrt", Relation.OLDER_MAJOR): _NO,
    ("xrt", Relation.NEWER): _NO,
    ("xrt", Relation.NEWER_MAJOR): _NO,
    ("xrt", Relation.OTHER): _NO,
    ("xrt", Relation.MISSING): _NO,
}


def judge_versions(made_by: Mapping[str, str], runtime: Mapping[str, str]) -> Judgement:
    """Apply the table to what made a payload and to the runtime that is to load it."""
    return judge(RULES, by_minor(made_by), by_minor(runtime))


def by_minor(facts: Mapping[str, str]) -> dict[str, str]:
    """Return facts as the table compares them: the components' versions without their patch."""
    return {field: without_patch(text) if field in COMPONENTS else text for field, text in facts.items()}


def without_patch(text: str) -> str:
    """Return a version with the patch 0; a text that is none stays as it is."""
    version = Version.parse(text)
    return str(version._replace(patch=0)) if version else text
