"""Names of the core for the packages that epctx itself ships, and for nobody else: they change without notice.

An EP or a host needs none of them; `epctx_core`, `epctx_core.plugin` and `epctx_core.errors` are the public names.
A package that imports this module requires exactly its own version of the core.

| name | used by | for |
|---|---|---|
| `HOOKS` | epctx-conformance | giving a watching implementation a hook's whole signature |
| `MarkedMethod` | epctx-conformance | the type of what `implemented_hooks` returns |
| `end_in_any_case` | epctx-conformance, epctx-cli | ending a process that threads of a plugin keep alive |
| `ending`, `wait_and_end` | epctx-cli | ending a process with all that it started, and naming the signal or exit code |
| `find_problems` | epctx-conformance | checking a class as its registration does |
| `implemented_hooks` | epctx-conformance | skipping checks of hooks that an EP does not have |
| `lasting_threads` | epctx-conformance | naming the threads that a plugin left |
| `read_manifest` | epctx-conformance | knowing which bytes of a payload are weights before damaging it |
"""

from __future__ import annotations

# What `typing` calls so; see `epctx_core`.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from epctx_core.context.manifest import read_manifest
    from epctx_core.plugin.hookspecs import HOOKS
    from epctx_core.process_group import end_in_any_case, ending, lasting_threads, wait_and_end
    from epctx_core.registry.loading import MarkedMethod, find_problems, implemented_hooks

__all__ = [
    "HOOKS", "MarkedMethod", "end_in_any_case", "ending", "find_problems", "implemented_hooks", "lasting_threads",
    "read_manifest", "wait_and_end",
]  # fmt: skip

_HOME = {
    "HOOKS": "epctx_core.plugin.hookspecs",
    "MarkedMethod": "epctx_core.registry.loading",
    "end_in_any_case": "epctx_core.process_group",
    "ending": "epctx_core.process_group",
    "find_problems": "epctx_core.registry.loading",
    "implemented_hooks": "epctx_core.registry.loading",
    "lasting_threads": "epctx_core.process_group",
    "read_manifest": "epctx_core.context.manifest",
    "wait_and_end": "epctx_core.process_group",
}


def __getattr__(name: str) -> Any:
    """Import a name from its home (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'epctx_core.ext' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
