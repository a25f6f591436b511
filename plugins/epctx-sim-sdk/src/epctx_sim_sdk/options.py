"""Options of vendors' EPs that have nothing to act on in a simulation."""

from __future__ import annotations

from epctx_core.plugin import ProviderOption


def without_hardware(*names: str) -> tuple[ProviderOption, ...]:
    """Return options that are accepted, and said to be without effect."""
    doc = "The simulation has none of the libraries, files and devices that it is about."
    return tuple(ProviderOption(name, str, default="", doc=doc, effect=False) for name in names)
