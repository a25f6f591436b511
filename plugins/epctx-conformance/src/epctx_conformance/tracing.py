"""Trace of EPCTX_TRACE: a line for each call of a hook, with counts and types of
arguments and never their content.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from epctx_core.errors import concealed
from epctx_core.ext import HOOKS
from epctx_core.plugin import HookSpecs, hookimpl

_LONGEST = 60
_MOST_NUMBERS = 8
_log = logging.getLogger("epctx.trace")


def _make_wrapper(hook: str) -> Callable[..., Generator[None, Any, Any]]:
    """Return a function that traces a hook: its arguments, duration and result."""
    names = tuple(HOOKS[hook].arguments)

    # pluggy passes the arguments of the function that is wrapped.
    @functools.wraps(vars(HookSpecs)[hook])
    def traced(*values: Any) -> Generator[None, Any, Any]:
        ep, *arguments = map(_abbreviate, values)
        start = time.perf_counter()
        try:
            result = yield
        except BaseException as error:
            first, *_hint = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()
            outcome = f"raised {first}"
            raise
        else:
            outcome = f"-> {_abbreviate(result)}"
            return result
        finally:
            duration = (time.perf_counter() - start) * 1000
            told = ", ".join(map("{}={}".format, names[1:], arguments))
            call = concealed(f"{ep[1:-1]}.{hook}({told}) {outcome}")
            _tell(f"{call} [{duration:.3f} ms]")

    return hookimpl(wrapper=True)(traced)


def _tell(line: str) -> None:
    """Write a line to the host's log, or to standard error if the host logs nothing of
    this kind.
    """
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s", line)
    else:
        sys.stderr.write(f"epctx.trace: {line}\n")


class Tracer:
    """Plugin of a host that traces every hook; `EPCTX_TRACE` and the name `trace` mean
    it.
    """

    def __init__(self) -> None:
        vars(self).update((hook, _make_wrapper(hook)) for hook in HOOKS)


def _abbreviate(value: object) -> str:
    """Return a short text for an argument or a result: count and types, never
    content.
    """
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…")
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        # of options, names only: values may be secret
        return f"{{{', '.join(map(str, value))}}}"
    if (
        isinstance(value, tuple)
        and len(value) <= _MOST_NUMBERS
        and all(isinstance(v, int) for v in value)
    ):
        return repr(value)  # a shape
    if isinstance(value, (list, tuple)):
        kinds = dict.fromkeys(type(item).__name__ for item in value)
        return f"[{len(value)} {' | '.join(kinds)}]" if value else "[]"
    return type(value).__name__
