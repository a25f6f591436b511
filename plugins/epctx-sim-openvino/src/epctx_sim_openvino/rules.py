"""OpenVINO's version rules as tables: what a payload was made by, against the runtime that loads it.

A compiled blob belongs to one device and, but for the NPU, to one version of OpenVINO.
"""

from __future__ import annotations

from typing import Final

from epctx_sim_sdk.versions import Relation, Rules

from epctx_core.plugin import Compatibility

_NO = Compatibility.EP_UNSUPPORTED
_OPTIMAL = Compatibility.EP_SUPPORTED_OPTIMAL

_EVERY_DEVICE: Final[Rules] = {
    # Another vendor's simulated payload, or one for another device.
    ("vendor", Relation.OTHER): _NO,
    ("vendor", Relation.MISSING): _NO,
    ("device", Relation.OTHER): _NO,
    ("device", Relation.MISSING): _NO,
    # The payload's interface and format: what is newer cannot be read.
    ("api", Relation.OLDER): _OPTIMAL,
    ("api", Relation.NEWER): _NO,
    ("api", Relation.OTHER): _NO,
    ("api", Relation.MISSING): _NO,
    ("blob", Relation.OLDER): _OPTIMAL,
    ("blob", Relation.NEWER): _NO,
    ("blob", Relation.OTHER): _NO,
    ("blob", Relation.MISSING): _NO,
    # Versions of OpenVINO: no table of relations between them exists, so only the same one will do.
    ("sdk", Relation.OLDER): _NO,
    ("sdk", Relation.OLDER_MAJOR): _NO,
    ("sdk", Relation.NEWER): _NO,
    ("sdk", Relation.NEWER_MAJOR): _NO,
    ("sdk", Relation.OTHER): _NO,
    ("sdk", Relation.MISSING): _NO,
}

_NPU: Final[Rules] = {
    **_EVERY_DEVICE,
    # The NPU's blobs are made for its driver: OpenVINO itself may differ within a major version.
    ("sdk", Relation.OLDER): _OPTIMAL,
    ("sdk", Relation.NEWER): _OPTIMAL,
    ("driver", Relation.OLDER): _OPTIMAL,
    ("driver", Relation.OLDER_MAJOR): _NO,
    ("driver", Relation.NEWER): _NO,
    ("driver", Relation.NEWER_MAJOR): _NO,
    ("driver", Relation.OTHER): _NO,
    ("driver", Relation.MISSING): _NO,
}


def rules_for(device: str) -> Rules:
    """Return the table of a device."""
    return _NPU if device == "NPU" else _EVERY_DEVICE
