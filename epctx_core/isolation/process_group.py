"""How a process ends together with all that it started: the process is the first of a session of its own.

A group of processes has its first one's number, which is free as soon as that one was waited for. So the group
is ended first. Knows processes and time, and nothing of EPs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

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
    """End a process and what it started; it may have ended, but must not have been waited for."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a process ends in time; where the system can tell, it is not waited for yet."""
    if not hasattr(os, "waitid"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.returncode is not None
    end, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True
