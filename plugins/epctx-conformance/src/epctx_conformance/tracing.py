"""Trace of EPCTX_TRACE: a line for each call of a hook, with counts and types of
arguments and never their content.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from epctx_core.ext import concealed

_LONGEST = 60
_MOST_NUMBERS = 8
_log = logging.getLogger("epctx.trace")


def trace(
    implementation: Callable[[Mapping[str, Any]], Any],
    hook: str,
    arguments: Mapping[str, Any],
) -> Any:
    """Call an EP's implementation of a hook, and trace its arguments, duration and
    result.

    The line goes to the host's log, or to standard error if the host logs nothing of
    this kind.
    """
    given = ", ".join(
        f"{name}={_abbreviate(value)}"
        for name, value in arguments.items()
        if name != "ep"
    )
    start = time.perf_counter()
    try:
        result = implementation(arguments)
    except BaseException as error:
        first, *_hint = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()
        outcome = f"raised {first}"
        raise
    else:
        outcome = f"-> {_abbreviate(result)}"
        return result
    finally:
        duration = (time.perf_counter() - start) * 1000
        call = concealed(f"{arguments['ep']}.{hook}({given}) {outcome}")
        line = f"{call} [{duration:.3f} ms]"
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", line)
        else:
            sys.stderr.write(f"epctx.trace: {line}\n")


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
