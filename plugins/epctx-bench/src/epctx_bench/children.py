"""Start of measuring processes, and the typed error of one that fails."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from epctx_core.errors import Fail

if TYPE_CHECKING:
    from epctx_bench.request import Request

_COMMAND = (sys.executable, "-P", "-m", "epctx_bench.child")
"""Without the current folder, which may hold a file named as a module."""
_LONGEST_REASON = 2000
"""Characters of a process's last words in an error."""
_WORDS = {
    "describe": "describing EPs",
    "compile": "compiling",
    "load": "loading",
    "use": "running",
    "compute": "computing the outputs of",
}


def ask_child(request: Request, *, timeout: float) -> dict[str, Any]:
    """Return the result of a fresh measuring process.

    Raises:
        Fail: the process failed, or did not end in time.
    """
    doing = f"{_WORDS[request.task]} {request.name}".rstrip()
    try:
        done = subprocess.run(  # noqa: S603 - this package's own module
            _COMMAND,
            input=json.dumps(request.as_dict()),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Fail(
            f"{doing} with {request.engine} did not end within {timeout:g} seconds.",
            path=request.model,
            hint="Give the measuring processes more time (child_timeout).",
        ) from error
    if done.returncode == 0:
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    reason = " ".join(done.stderr.split())[-_LONGEST_REASON:]
    raise Fail(
        f"{doing} with {request.engine} failed: its process "
        f"{_describe_end(done.returncode)} and said: {reason or 'nothing'}",
        path=request.model,
    )


def _describe_end(code: int) -> str:
    return f"ended with {code}" if code >= 0 else f"was ended by signal {-code}"
