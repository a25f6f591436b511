"""QNN's version rules as one table: what a payload was made by, against the runtime that loads it."""

from __future__ import annotations

from typing import Final

from epctx_sim_sdk.versions import Relation, Rules

from epctx_core.plugin import Compatibility

_NO = Compatibility.EP_UNSUPPORTED
_RECOMPILE = Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION
_OPTIMAL = Compatibility.EP_SUPPORTED_OPTIMAL

RULES: Final[Rules] = {
    # Another vendor's simulated payload, or one for another QNN backend.
    ("vendor", Relation.OTHER): _NO,
    ("vendor", Relation.MISSING): _NO,
    ("backend", Relation.OTHER): _NO,
    ("backend", Relation.MISSING): _NO,
    # The payload's interface and format: what is newer cannot be read.
    ("api", Relation.OLDER): _OPTIMAL,
    ("api", Relation.NEWER): _NO,
    ("api", Relation.OTHER): _NO,
    ("api", Relation.MISSING): _NO,
    ("blob", Relation.OLDER): _OPTIMAL,
    ("blob", Relation.NEWER): _NO,
    ("blob", Relation.OTHER): _NO,
    ("blob", Relation.MISSING): _NO,
    # SDK and driver: an older one of the same major version is as good as the same.
    ("sdk", Relation.OLDER): _OPTIMAL,
    ("sdk", Relation.OLDER_MAJOR): _NO,
    ("sdk", Relation.NEWER): _NO,
    ("sdk", Relation.NEWER_MAJOR): _NO,
    ("sdk", Relation.OTHER): _NO,
    ("sdk", Relation.MISSING): _NO,
    ("driver", Relation.OLDER): _OPTIMAL,
    ("driver", Relation.OLDER_MAJOR): _NO,
    ("driver", Relation.NEWER): _NO,
    ("driver", Relation.NEWER_MAJOR): _NO,
    # Made by a driver, and the runtime has none; made without one runs on both.
    ("driver", Relation.OTHER): _NO,
    ("driver", Relation.MISSING): _OPTIMAL,
    # The device: newer hardware runs what was made for older, not at its best.
    ("htp_arch", Relation.OLDER): _RECOMPILE,
    ("htp_arch", Relation.NEWER): _NO,
    ("htp_arch", Relation.OTHER): _NO,
    ("htp_arch", Relation.MISSING): _NO,
    ("soc_model", Relation.OLDER): _RECOMPILE,
    ("soc_model", Relation.NEWER): _RECOMPILE,
    ("soc_model", Relation.OTHER): _NO,
    ("soc_model", Relation.MISSING): _OPTIMAL,
}
