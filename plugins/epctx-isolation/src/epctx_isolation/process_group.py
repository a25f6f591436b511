"""Process with all its children, ended together, marked as one that epctx started, and
without onnxruntime's telemetry, unless the user set its variable; epctx-batch and
epctx-cli use such processes, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

_HAS_ENDED = 0
if hasattr(os, "waitid"):
    _HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_PAUSE = 0.001


class ProcessGroup:
    """Process in a session of its own, together with all its children.

    The number of a process group is that of its first process, which is free once that
    one was waited for. So the group is ended before.

    Attributes:
        first: the process; waiting for it directly gives the group up.

    Args:
        command: the program and its arguments.
        env: its environment.
        options: as for `subprocess.Popen`.

    Raises:
        OSError: it could not be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] = os.environ,
        **options: Any,
    ) -> None:
        self.first: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 - as its caller says
            command,
            start_new_session=True,
            env={"ORT_DISABLE_TELEMETRY": "1", "EPCTX_CHILD": "1", **env},
            **options,
        )

    def wait_and_end(self, seconds: float) -> bool:
        """Wait for the process, then end its group; afterwards it has a return code.

        Args:
            seconds: maximum time to wait.

        Returns:
            Whether it ended by itself.
        """
        limit = time.monotonic() + seconds
        ended = False
        try:
            while not (ended := self.has_ended()) and time.monotonic() < limit:
                time.sleep(_PAUSE)
        finally:
            self.end()
            self.first.wait()
        return ended

    def end(self) -> None:
        """End the process and its children; do nothing if it was waited for, as its
        number may be another process's.
        """
        if self.first.returncode is not None:
            return
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self.first.pid, signal.SIGKILL)
            else:
                self.first.kill()

    def has_ended(self) -> bool:
        """Return whether the process has ended; if the system allows it, without
        waiting for it, so that it keeps its number.
        """
        if not hasattr(os, "waitid"):
            return self.first.poll() is not None
        try:
            return os.waitid(os.P_PID, self.first.pid, _HAS_ENDED) is not None
        except ChildProcessError:
            # the host ignores SIGCHLD: the system has waited for it, and the number is
            # free
            self.first.wait()
            return True

    @property
    def ending(self) -> str:
        """End of the process by its return code, such as `was ended by SIGSEGV`."""
        if self.first.returncode >= 0:
            return f"ended with exit code {self.first.returncode}"
        try:
            return f"was ended by {signal.Signals(-self.first.returncode).name}"
        except ValueError:
            return f"was ended by signal {-self.first.returncode}"
