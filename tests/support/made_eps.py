"""EPs that a function makes: no module contains their classes."""

from __future__ import annotations

from support.engine_eps import Alpha


def make_ep(name, operators):
    """Return an EP of this name that takes these operators."""
    arguments = {"name": name, "operators": operators}
    return type(
        name,
        (Alpha,),
        {
            "__module__": __name__,
            "name": name,
            "operators": frozenset(operators),
            "factory": (f"{__name__}:make_ep", arguments),
        },
    )
