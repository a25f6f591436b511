"""EPs that keep the contract, and whose reader of payloads is native code that believes
every byte.
"""

from __future__ import annotations

from conformance.lying_plugins.trusting import Believing, Trusting
from support.honest_ep import HonestProvider


class FragileProvider(Believing):
    """Ends its process at a damaged payload, and says so."""

    name = "FragileExecutionProvider"
    needs_verified_payloads = True


class GullibleProvider(Trusting):
    """Computes with a damaged payload, and says that it needs verified ones."""

    name = "GullibleExecutionProvider"
    needs_verified_payloads = True
    trusts = "digest"


class CarefulProvider(HonestProvider):
    """Says that it needs verified payloads, and survives others all the same."""

    name = "CarefulExecutionProvider"
    needs_verified_payloads = True
