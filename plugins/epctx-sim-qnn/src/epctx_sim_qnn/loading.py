"""What QNN demands of nodes and payloads when they are loaded, for the SDK's loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_sim_sdk.loading import Claim, LoadPolicy

from epctx_sim_qnn import settings
from epctx_sim_qnn.rules import RULES

if TYPE_CHECKING:
    from epctx_core.plugin import ProviderContext

_CLAIMS = {
    "ep_sdk_version": Claim("sdk"),
    "hardware_architecture": Claim("htp_arch", settings.read_hardware_architecture),
}


def load_policy(context: ProviderContext) -> LoadPolicy:
    """Return how this EP instance loads: old writers gave a lone graph another name than its node."""
    return LoadPolicy(
        ep=settings.EP,
        rules=RULES,
        runtime=settings.runtime_facts(context.options, context.target),
        claims=_CLAIMS,
        lone_graph_fits=True,
    )
