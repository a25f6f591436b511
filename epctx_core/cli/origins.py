"""Where the EPs of a command come from, and which of them only simulate hardware. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from epctx_core.registry.records import means


def origins(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return what is known about EPs that were used; all are imported by now.

    Args:
        names: as the user or a session says them; the CPU EP, which is built in, is left out.
    """
    from epctx_core.registry import default_registry

    found = []
    for name in names:
        if name.casefold() in ("cpu", "cpuexecutionprovider"):
            continue
        record = default_registry.resolve(name)
        cls = default_registry.load(record)
        found.append(
            {
                "name": cls.name,
                "distribution": record.distribution,
                "version": record.version,
                "vendor": cls.vendor,
                "simulated": "simulated" in cls.vendor.lower(),
            }
        )
    return found


def simulated(asked: Sequence[str], used: Iterable[str]) -> list[str]:
    """Return which EPs of a session are simulated.

    Args:
        asked: the EPs that the user named; they say which distribution is meant where several bring one.
        used: the EPs of the session, for a user who named none.
    """
    present = list(used)
    named = [name for name in asked if any(means(name.rpartition(":")[2], ep) for ep in present)]
    return [origin["name"] for origin in origins(named or present) if origin["simulated"]]


def simulated_words(names: Sequence[str]) -> str:
    """Say that what a session did is no vendor's work."""
    verb = "computes" if len(names) == 1 else "compute"
    return f"Simulated: {' and '.join(names)} {verb} on this CPU, not on a vendor's hardware."
