"""An EP that works in another process, as a class like any other.

With `Isolation.COMPILE` a session's runnables are loaded here from what was compiled there; with `ALL` they
stay there, and arrays travel. Class methods of an EP are asked here: they come before there is a process.
"""

from __future__ import annotations

import logging
from typing import Any

from epctx_core.errors import InvalidArgument, NotImplementedByProvider
from epctx_core.isolation.elsewhere import HOOKS_ELSEWHERE, IsolatedEp, WorksElsewhere
from epctx_core.isolation.here import HOOKS_HERE, LoadsHere
from epctx_core.options import Isolation
from epctx_core.plugin import ExecutionProvider, Purpose
from epctx_core.plugin.hookspecs import CONTEXT_HOOKS
from epctx_core.registry.implementations import implemented_hooks

_ATTRIBUTES = (
    "name", "vendor", "api_version", "binary_suffix", "options", "dynamic_options", "keeps_functions",
    "weightless_modes", "loads_without_device",
)  # fmt: skip
_KERNELS = "get_kernel_registry"
_log = logging.getLogger("epctx.providers")


def isolated_class(ep: IsolatedEp, purpose: Purpose) -> type[ExecutionProvider]:
    """Return the class whose instances stand for an EP: its own where nothing is to be done elsewhere.

    Kernels are functions and cannot leave their process: where an EP loads payloads there, its kernels stay out.

    Raises:
        InvalidArgument: the EP has kernels, and is asked for more than to load.
        NotImplementedByProvider: it cannot load what it compiles, so that its runnables have to stay there.
    """
    loads_only = purpose is Purpose.LOAD and ep.isolation is Isolation.COMPILE
    if ep.isolation is Isolation.NONE or loads_only:
        return ep.cls
    hooks = implemented_hooks(ep.cls)
    if _KERNELS in hooks and purpose is Purpose.LOAD and "load_context" in hooks:
        _log.warning(
            "%s runs single nodes by kernels of its own, which ep.isolate=all leaves out: other EPs run these nodes.",
            ep.record.label,
        )
    elif _KERNELS in hooks:
        raise InvalidArgument(
            f"{ep.record.label} runs single nodes by kernels of its own, which ep.isolate={ep.isolation.value} "
            "cannot have in another process.",
            ep=ep.record.name,
            hint="Leave ep.isolate out, or the EP.",
        )
    loads_here = purpose is Purpose.RUN and ep.isolation is Isolation.COMPILE
    if loads_here and not hooks.keys() >= set(CONTEXT_HOOKS):
        raise NotImplementedByProvider(
            f"{ep.record.label} cannot load what it compiled, which ep.isolate=compile needs in a session.",
            ep=ep.record.name,
            hint="Set ep.isolate=all, so that it also runs in its own process.",
        )
    proxies = {**HOOKS_ELSEWHERE, **(HOOKS_HERE if loads_here else {})}
    own: dict[str, Any] = {name: getattr(ep.cls, name) for name in _ATTRIBUTES}
    own |= {hook: method for hook, method in proxies.items() if hook in hooks or hook == "shutdown"}
    base = LoadsHere if loads_here else WorksElsewhere
    return type(ep.cls.__name__, (base,), {**own, "isolated": ep})
