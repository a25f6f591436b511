"""Ends a process that threads of a plugin would keep alive for ever. Knows no EP."""

from __future__ import annotations

import os
import sys
import threading
import time

_GRACE = 5.0
"""Seconds for what ends by itself, such as a pool that Python asks to stop."""


def lasting_threads() -> list[str]:
    """Return the names of the threads that Python waits for before a process ends."""
    main = threading.main_thread()
    return sorted(t.name for t in threading.enumerate() if t is not main and not t.daemon)


def end_in_any_case(code: int) -> None:
    """See that this process ends soon after its work, whichever threads are left; says which were.

    Returns at once; for a process of epctx's own, never for a host's.

    Args:
        code: its exit code.
    """
    if lasting_threads():
        threading.Thread(target=_end, args=(code,), name="epctx end", daemon=True).start()


def _end(code: int) -> None:
    time.sleep(_GRACE)
    left = lasting_threads()
    if not left:  # they have ended, and what Python still does at its end is not cut short
        return
    sys.stderr.write(f"warning: a plugin left threads that do not end: {', '.join(left)}.\n")
    sys.stderr.flush()
    os._exit(code)
