"""End of a command's process, whatever threads of plugins are left."""

from __future__ import annotations

import os
import sys
import threading
import time

_GRACE = 5.0
"""Seconds for threads that end by themselves, such as a pool that Python stops."""


def _list_lasting_threads() -> list[str]:
    """Return the names of the threads that Python waits for before a process ends."""
    main = threading.main_thread()
    return sorted(
        t.name for t in threading.enumerate() if t is not main and not t.daemon
    )


def end_in_any_case(code: int) -> None:
    """End this process soon after its work, whatever threads are left, with a warning
    that names them.

    Returns at once; for processes of the command line, never for a host's.

    Args:
        code: its exit code.
    """
    if _list_lasting_threads():
        threading.Thread(
            target=_end, args=(code,), name="epctx end", daemon=True
        ).start()


def _end(code: int) -> None:
    time.sleep(_GRACE)
    left = _list_lasting_threads()
    if not left:  # they have ended: let Python finish
        return
    sys.stderr.write(
        f"warning: a plugin left threads that do not end: {', '.join(left)}.\n"
    )
    sys.stderr.flush()
    os._exit(code)
