"""QNN's version rules as one table: what a payload was made by, against the runtime
that loads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from epctx_sim_sdk.versions import (
    COMMON_RULES,
    NUMBER,
    OPTIMAL,
    RECOMPILE,
    VERSION,
    WORD,
    Claim,
    LoadPolicy,
    Rules,
    field_rules,
)

from epctx_sim_qnn import settings

RULES: Final[Rules] = {
    **COMMON_RULES,
    **field_rules("backend", WORD),
    # SDK and driver: an older one of the same major version is as good as the same.
    **field_rules("sdk", VERSION, older=OPTIMAL),
    # Made by a driver, and the runtime has none: refused; made without one runs on
    # both.
    **field_rules("driver", VERSION, older=OPTIMAL, missing=OPTIMAL),
    # The device: newer hardware runs what was made for older, not at its best.
    **field_rules("htp_arch", NUMBER, older=RECOMPILE),
    **field_rules(
        "soc_model", NUMBER, older=RECOMPILE, newer=RECOMPILE, missing=OPTIMAL
    ),
}
_CLAIMS = {
    "ep_sdk_version": Claim("sdk"),
    "hardware_architecture": Claim("htp_arch", settings.read_hardware_architecture),
}


def load_policy(options: Mapping[str, Any], target: str | None) -> LoadPolicy:
    """Return how payloads are judged: old writers gave a lone graph another name than
    its node.
    """
    return LoadPolicy(
        ep=settings.EP,
        rules=RULES,
        runtime=settings.runtime_facts(options, target),
        claims=_CLAIMS,
        lone_graph_fits=True,
    )
