"""OpenVINO's version rules as tables: what a payload was made by, against the runtime
that loads it.

A compiled blob belongs to one device and, but for the NPU, to one version of OpenVINO.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from epctx_sim_sdk.versions import (
    COMMON_RULES,
    OPTIMAL,
    VERSION,
    WORD,
    Claim,
    LoadPolicy,
    Rules,
    field_rules,
)

from epctx_sim_openvino.devices import EP

_EVERY_DEVICE: Final[Rules] = {
    **COMMON_RULES,
    **field_rules("device", WORD),
    # Versions of OpenVINO: no table of relations between them exists, so only the same
    # one will do.
    **field_rules("sdk", VERSION),
}

_NPU: Final[Rules] = {
    **_EVERY_DEVICE,
    # The NPU's blobs are made for its driver: OpenVINO itself may differ within a major
    # version.
    **field_rules("sdk", VERSION, older=OPTIMAL, newer=OPTIMAL),
    **field_rules("driver", VERSION, older=OPTIMAL),
}


def load_policy(runtime: Mapping[str, str]) -> LoadPolicy:
    """Return how payloads are judged on the device that the facts name."""
    is_npu = runtime["device"] == "NPU"
    return LoadPolicy(
        ep=EP,
        rules=_NPU if is_npu else _EVERY_DEVICE,
        runtime=runtime,
        # The NPU's driver judges the blob. Elsewhere nobody knows whether it fits
        # without the version.
        claims={"ep_sdk_version": Claim("sdk", needed=not is_npu)},
    )
