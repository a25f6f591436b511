"""The process of an EP from outside: started, watched, ended; and how it ended, in words.

Knows bytes and time, no hook and no message but the one that asks to stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.scratch import scratch_folder
from epctx_core.errors import Fail
from epctx_core.isolation.channel import Channel
from epctx_core.isolation.process_group import end_group, wait_and_end

if TYPE_CHECKING:
    from typing import IO

    from epctx_core.plugin.provider import Cancellation

GRACE_SECONDS = 5.0
"""How long a process may take to stop by itself when the host asks it to."""

_POLLED_EVERY = 0.05
_LINES = 64
_LINE_LENGTH = 400
_SCRIPT = Path(__file__).with_name("child.py")


class ChildProcess:
    """A Python process that finds modules as this one does, with a folder of its own for temporary files.

    Attributes:
        channel: messages to and from it.

    Args:
        limit: bytes behind one message that are taken from it; None for any.

    Raises:
        Fail: no process could be started.
    """

    def __init__(self, *, limit: int | None) -> None:
        self._folder = contextlib.ExitStack()
        try:
            self._process = self._started(os.fspath(self._folder.enter_context(scratch_folder())))
        except OSError as error:
            self._folder.close()
            raise Fail(
                f"no process could be started for an isolated EP: {error}.",
                hint="ep.isolate needs sys.executable to be a Python interpreter.",
            ) from error
        if self._process.stdin is None or self._process.stdout is None or self._process.stderr is None:
            raise AssertionError("all three were asked for")
        self._stdin = self._process.stdin
        self.channel = Channel(self._process.stdout, self._stdin, limit=limit)
        self._ended_because = ""
        self._watch = _Watch(self)
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._printed = threading.Thread(
            target=_keep_lines, args=(self._process.stderr, self._lines), name="epctx-stderr", daemon=True
        )
        self._printed.start()
        path = json.dumps({"path": [os.fspath(p) for p in sys.path]}).encode()
        with contextlib.suppress(OSError):  # it died at once: the first message finds out
            self._stdin.write(struct.pack("<I", len(path)) + path)

    def _started(self, folder: str) -> subprocess.Popen[bytes]:
        if not sys.executable:
            raise FileNotFoundError("sys.executable is empty")
        return subprocess.Popen(  # noqa: S603 - this interpreter and a script of this package
            [sys.executable, "-P", os.fspath(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": folder, "TEMP": folder, "TMP": folder},
            # A Ctrl-C in the terminal is the host's to handle.
            start_new_session=True,
        )

    @contextlib.contextmanager
    def watched(self, seconds: float, cancel: Cancellation | None) -> Iterator[None]:
        """End the process if the block takes longer, or does not end soon after the host asks it to stop."""
        self._watch.begin(seconds, cancel)
        try:
            yield
        finally:
            self._watch.end()

    def ask_to_stop(self) -> None:
        """Tell the process that the host wants it to stop."""
        with contextlib.suppress(OSError, ValueError):
            self.channel.send({"do": "cancel"})

    def kill(self, why: str) -> None:
        """End the process and what it started; the first reason given counts."""
        self._ended_because = self._ended_because or why
        if self._process.returncode is None:
            end_group(self._process)

    def close(self) -> None:
        """Wait until the process has ended, at most `GRACE_SECONDS`, and leave nothing of it; may be called again."""
        with contextlib.suppress(OSError):
            self._stdin.close()
        if self._process.returncode is None and not wait_and_end(self._process, GRACE_SECONDS):
            self._ended_because = self._ended_because or "it did not end when it was told to"
        self._watch.close()
        self._printed.join(GRACE_SECONDS)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None and not self._printed.is_alive():
                pipe.close()
        self._folder.close()

    def how_it_ended(self) -> str:
        """Return how the process ended and what it printed last; it has to be closed."""
        code = self._process.returncode
        how = self._ended_because or (
            f"it was ended by {_signal(-code)}" if code < 0 else f"it ended with exit code {code}"
        )
        said = "\n  ".join(self._lines)
        return f"{how}. It printed:\n  {said}" if said else f"{how}."


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _keep_lines(pipe: IO[bytes], lines: deque[str]) -> None:
    """Keep the last lines of what a process prints."""
    with contextlib.suppress(OSError, ValueError):
        while line := pipe.readline(_LINE_LENGTH):
            text = line.decode(errors="replace").rstrip()
            if text:
                lines.append(text)


class _Watch:
    """A thread that looks at the clock and at the host's wish to stop, while there is something to watch."""

    def __init__(self, process: ChildProcess) -> None:
        self._process = process
        self._changed = threading.Condition()
        self._closed = False
        self._call: tuple[float, float, Cancellation | None] | None = None
        self._thread = threading.Thread(target=self._run, name="epctx-watch", daemon=True)
        self._thread.start()

    def begin(self, seconds: float, cancel: Cancellation | None) -> None:
        with self._changed:
            self._call = time.monotonic() + seconds, seconds, cancel
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._call = None

    def close(self) -> None:
        with self._changed:
            self._closed, self._call = True, None
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        stopping: tuple[object, float] = (None, 0.0)
        while True:
            with self._changed:
                while self._call is None and not self._closed:
                    self._changed.wait()
                call = self._call
            if call is None:
                return
            deadline, seconds, cancel = call
            now = time.monotonic()
            if now > deadline:
                self._process.kill(f"it took longer than the {seconds:g} seconds that it had")
            elif stopping[0] is call and now > stopping[1] + GRACE_SECONDS:
                self._process.kill("it did not stop when the host asked it to")
            elif stopping[0] is not call and cancel is not None and cancel.requested:
                stopping = call, now
                # It may not be reading: what it is told must not keep the clock from being looked at.
                threading.Thread(target=self._process.ask_to_stop, daemon=True).start()
            with self._changed:
                if not self._closed:
                    self._changed.wait(min(_POLLED_EVERY, max(deadline - now, 0.001)))
