"""Says each call of a hook: which EP, what it was given, how long it took, what came of it. Off unless asked for.

A host's wrapper like any other; it changes nothing and shows no value of an option.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from epctx_core.errors import concealed
from epctx_core.plugin.hookspecs import HOOKS, Hook
from epctx_core.registry.guard import describe

VARIABLE = "EPCTX_TRACE"
"""Set to anything but 0 for a line for each call."""
_LINE_END = "\n"  # behind it, one of our errors says what to do
_LONGEST = 60
_MOST_NUMBERS = 8
_log = logging.getLogger("epctx.trace")


def requested() -> bool:
    """Whether the environment asks for it; looked at once for each session and compile."""
    return os.environ.get(VARIABLE, "").strip() not in ("", "0")


def tracer() -> object:
    """Return the wrapper of every hook."""
    return type("Trace", (), {name: _tracing(hook) for name, hook in HOOKS.items()})()


def _tracing(hook: Hook) -> Callable[..., Any]:
    names = tuple(hook.arguments)[1:]

    def trace(_self: object, ep: str, *arguments: object) -> Generator[None, Any, Any]:
        given = ", ".join(f"{n}={abbreviated(a)}" for n, a in zip(names, arguments, strict=True))
        call = f"{ep}.{hook.name}({given})"
        start = time.perf_counter()
        try:
            results = yield
        except BaseException as error:
            _say(f"{call} raised {describe(error).partition(_LINE_END)[0]}", start)
            raise
        _say(f"{call} -> {abbreviated(results[0]) if results else None}", start)
        return results

    return hook.implementation(trace, wrapper=True)


def _say(what: str, start: float) -> None:
    """Tell the host's log, or standard error where the host logs nothing of this kind."""
    line = f"{concealed(what)} [{(time.perf_counter() - start) * 1000:.3f} ms]"
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s", line)
    else:
        sys.stderr.write(f"epctx.trace: {line}\n")


def abbreviated(value: object) -> str:
    """Return a short text for an argument or a result: how many of what, never their content."""
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…")
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(map(str, value))}}}"  # of options, names only: values may be secret
    if isinstance(value, tuple) and len(value) <= _MOST_NUMBERS and all(isinstance(v, int) for v in value):
        return repr(value)  # a shape
    if isinstance(value, (list, tuple)):
        kinds = dict.fromkeys(type(item).__name__ for item in value)
        return f"[{len(value)} {' | '.join(kinds)}]" if value else "[]"
    return type(value).__name__
