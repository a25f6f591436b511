"""How a process ends together with all that it started: the process is the first of a session of its own.

A group of processes has its first one's number, which is free as soon as that one was waited for. So the group
is ended first. A process of epctx's own ends soon after its work, whichever threads a plugin has left. Knows processes
and time, and nothing of EPs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT if hasattr(os, "waitid") else 0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05


def wait_and_end(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a process, then end whatever is left of its group; afterwards it has a return code.

    Args:
        process: made with `start_new_session`.
        seconds: how long it may take.

    Returns:
        Whether it ended by itself.
    """
    ended = False
    try:
        ended = _ends_within(process, seconds)
    finally:
        end_group(process)
        process.wait()
    return ended


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started; nothing where it was waited for, as its number may be another's."""
    if process.returncode is not None:
        return
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def ending(code: int) -> str:
    """Return how a process ended, as its return code says it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended; it is not waited for, so that its number is its own. False where the system cannot tell."""
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, process.pid, _HAS_ENDED) is not None
    except ChildProcessError:
        process.wait()  # the host ignores SIGCHLD: the system has waited for it, and the number is free
        return True


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a process ends in time; where the system can tell, it is not waited for yet."""
    if not hasattr(os, "waitid"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.returncode is not None
    end, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while not has_ended(process):
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True


# -- processes of epctx's own ------------------------------------------------------------

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
