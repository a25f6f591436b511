"""VitisAI's version rules as one table: what a payload was made by, against the runtime
that loads it.

Versions of components are compared by major.minor: a patch never matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from epctx_sim_sdk.versions import (
    COMMON_RULES,
    OPTIMAL,
    RECOMPILE,
    VERSION,
    WORD,
    Claim,
    LoadPolicy,
    Rules,
    field_rules,
)

from epctx_sim_vitisai.settings import COMPONENTS, EP, runtime_facts

RULES: Final[Rules] = {
    **COMMON_RULES,
    # The device: neither back end runs what was made for the other.
    **field_rules("target", WORD),
    # The EP's core reads what an older one of its major version wrote, and would write
    # it better.
    **field_rules("vaip", VERSION, older=RECOMPILE),
    # The compiler is not needed to run; its major version says which instructions it
    # makes.
    **field_rules("xcompiler", VERSION, older=RECOMPILE, newer=RECOMPILE),
    # Runtime and driver: an older one's work runs on a newer one of its major version.
    **field_rules("xrt", VERSION, older=OPTIMAL),
}


def load_policy(options: Mapping[str, Any], target: str | None) -> LoadPolicy:
    """Return how payloads are judged."""
    return LoadPolicy(
        ep=EP,
        rules=RULES,
        runtime=runtime_facts(options, target),
        claims={
            f"version_of_{component}": Claim(component) for component in COMPONENTS
        },
        without_patch=COMPONENTS,
    )
