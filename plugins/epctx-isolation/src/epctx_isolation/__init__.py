"""Sessions and compiles in processes of their own: a compiler that crashes or hangs
ends its process and not the host's.

The core finds this module by the entry point `process` of the group `epctx.isolation`;
see `epctx_core.plugin.ProcessIsolation`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctx_isolation.functions import IsolatedFunctions
    from epctx_isolation.reading import try_reading
    from epctx_isolation.session import call, load, share

__all__ = ["IsolatedFunctions", "call", "load", "share", "try_reading"]

_HOME = dict.fromkeys(("call", "load", "share"), "epctx_isolation.session") | {
    "IsolatedFunctions": "epctx_isolation.functions",
    "try_reading": "epctx_isolation.reading",
}


def __getattr__(name: str) -> Any:
    # Each needs another half of the core, and the process that reads needs neither.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
