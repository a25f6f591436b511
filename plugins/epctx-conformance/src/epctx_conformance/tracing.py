"""Line for each call of a hook, which EPCTX_TRACE asks for: how many of what, never their content."""

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


def traced(
    implementation: Callable[[Mapping[str, Any]], Any], hook: str, arguments: Mapping[str, Any]
) -> Any:
    """Call an EP's implementation of a hook, and tell what it was given, how long it took and what came of it.

    The line goes to the host's log, or to standard error where the host logs nothing of this kind.
    """
    given = ", ".join(f"{name}={_abbreviated(value)}" for name, value in arguments.items() if name != "ep")
    start = time.perf_counter()
    try:
        answer = implementation(arguments)
    except BaseException as error:
        first, *_hint = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()
        outcome = f"raised {first}"
        raise
    else:
        outcome = f"-> {_abbreviated(answer)}"
        return answer
    finally:
        duration = (time.perf_counter() - start) * 1000
        said = concealed(f"{arguments['ep']}.{hook}({given}) {outcome}")
        line = f"{said} [{duration:.3f} ms]"
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", line)
        else:
            sys.stderr.write(f"epctx.trace: {line}\n")


def _abbreviated(value: object) -> str:
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
