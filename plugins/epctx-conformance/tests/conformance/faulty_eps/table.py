"""EPs with one fault each, and the checks that have to see it.

Most are the small EP with one thing changed.
"""

from __future__ import annotations

from importlib import import_module

FAULTS = {}
"""Name of a class to (the class, the names of the checks that fail, requirements)."""
THEMES = ("signatures", "claims", "kernels", "results", "contexts", "life", "sharing")
"""The modules that hold them."""


def fault(*checks, **requirements):
    """Put a class into the table."""

    def add(cls):
        FAULTS[cls.__name__] = (cls, checks, requirements)
        return cls

    return add


def all_faults():
    """Return the table, whole."""
    for theme in THEMES:
        import_module(f"conformance.faulty_eps.{theme}")
    return FAULTS
