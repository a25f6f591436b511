"""The process of an EP from outside: started, watched, ended; and how it ended, in words.

What the EP starts may hold the process's end of the line and outlive it; so a line that the host cuts is over for
the host whoever else holds it. Knows bytes and time, no hook and no message but the one that asks to stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from epctx_core.errors import Fail
from epctx_core.ext import ProcessGroup
from epctx_isolation.channel import Channel

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import IO

    from epctx_core.plugin import Cancellation

GRACE_SECONDS = 5.0
"""How long a process may take to stop by itself when the host asks it to."""

_LAST_WORDS_SECONDS = 1.0
"""How long what an ended process said may take to arrive; longer waits whoever holds its end of the line."""
_POLLED_EVERY = 0.05
_LINES = 64
_LINE_LENGTH = 400
_SCRIPT = Path(__file__).with_name("child.py")


class ChildProcess:
    """A Python process that finds modules as this one does, with a folder of its own for temporary files.

    Attributes:
        channel: messages to and from it.

    Args:
        scratch: makes a private folder.
        limit: bytes behind one message that are taken from it; None for any.

    Raises:
        Fail: no process could be started.
    """

    def __init__(self, scratch: Callable[[], AbstractContextManager[Path]], *, limit: int | None) -> None:
        self._folder = contextlib.ExitStack()
        try:
            folder = os.fspath(self._folder.enter_context(scratch()))
            self._line = _Line()
            self._folder.callback(self._line.close)
            self._printed = _Printed()
            self._folder.callback(self._printed.close)
            self._process = self._started(folder)
        except OSError as error:
            self._folder.close()
            raise Fail(
                f"no process could be started for an isolated EP: {error}.",
                hint="ep.isolate needs sys.executable to be a Python interpreter.",
            ) from error
        source, sink = self._line.attach(self._process.first)
        self.channel = Channel(source, sink, limit=limit)
        self._ended_because = ""
        self._watch = _Watch(self)
        path = json.dumps({"path": [os.fspath(p) for p in sys.path]}).encode()
        with contextlib.suppress(OSError):  # it died at once: the first message finds out
            sink.write(struct.pack("<I", len(path)) + path)

    def _started(self, folder: str) -> ProcessGroup:
        if not sys.executable:
            raise FileNotFoundError("sys.executable is empty")
        # Not the host's group: a Ctrl-C in the terminal is the host's to handle.
        return ProcessGroup(
            [sys.executable, "-P", os.fspath(_SCRIPT)],
            stdin=self._line.far_end,
            stdout=self._line.far_end,
            stderr=self._printed.far_end,
            env={**os.environ, "TMPDIR": folder, "TEMP": folder, "TMP": folder},
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
        self._process.end()
        self._line.cut()

    def reap(self) -> bool:
        """Whether the process has ended by itself; what it started is ended then."""
        if not self._process.has_ended():
            return False
        self._process.end()
        return True

    def cut(self) -> None:
        """End every wait for the process: others hold its end of the line."""
        self._line.cut()

    def close(self) -> None:
        """Wait until the process has ended, at most `GRACE_SECONDS`, and leave nothing of it; may be called again."""
        self._line.hang_up()
        if self._process.first.returncode is None and not self._process.wait_and_end(GRACE_SECONDS):
            self._ended_because = self._ended_because or "it did not end when it was told to"
        self._watch.close()
        self._folder.close()

    def describe_end(self) -> str:
        """Return how the process ended and what it printed last; it has to be closed."""
        how = self._ended_because or f"it {self._process.ending}"
        said = "\n  ".join(self._printed.lines)
        return f"{how}. It printed:\n  {said}" if said else f"{how}."


class _Printed:
    """The last lines that a process prints, until the host has enough: whoever else can still print is not waited for.

    Attributes:
        lines: complete after `close`.
        far_end: what a process gets as its standard error.
    """

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_LINES)
        source, self.far_end = os.pipe()
        # What was printed before comes out of the pipe before it, and nobody else can print it.
        self._last = f"{uuid.uuid4().hex}\n".encode()
        self._thread = threading.Thread(
            target=self._keep_lines, args=(os.fdopen(source, "rb"),), name="epctx-stderr", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Give back the pipe and its thread when what was printed by now has been read."""
        with contextlib.suppress(OSError):
            os.write(self.far_end, b"\n" + self._last)
        os.close(self.far_end)
        self._thread.join()

    def _keep_lines(self, pipe: IO[bytes]) -> None:
        with pipe:
            while (line := pipe.readline(_LINE_LENGTH)) not in {b"", self._last}:
                text = line.decode(errors="replace").rstrip()
                if text:
                    self.lines.append(text)


@dataclass
class _WatchedCall:
    """A call that is under way, and since when the process has been asked to stop in it, or has ended."""

    deadline: float
    seconds: float
    cancel: Cancellation | None
    stopping: float | None = None
    ended: float | None = None


class _Watch:
    """A thread that looks at the clock and at the host's wish to stop, while there is something to watch."""

    def __init__(self, process: ChildProcess) -> None:
        self._process = process
        self._changed = threading.Condition()
        self._closed = False
        self._call: _WatchedCall | None = None
        self._thread = threading.Thread(target=self._run, name="epctx-watch", daemon=True)
        self._thread.start()

    def begin(self, seconds: float, cancel: Cancellation | None) -> None:
        with self._changed:
            self._call = _WatchedCall(time.monotonic() + seconds, seconds, cancel)
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
        with self._changed:
            while not self._closed:
                pause = None if self._call is None else self._look(self._call)
                self._changed.wait(pause)

    def _look(self, call: _WatchedCall) -> float:
        """Do what it is time for; return the seconds until there may be more. Has the lock, so the call is not over."""
        now = time.monotonic()
        if now > call.deadline:
            self._process.kill(f"it took longer than the {call.seconds:g} seconds that it had")
        elif call.ended is not None:
            if now > call.ended + _LAST_WORDS_SECONDS:
                self._process.cut()
        elif self._process.reap():
            call.ended = now
        elif call.stopping is not None:
            if now > call.stopping + GRACE_SECONDS:
                self._process.kill("it did not stop when the host asked it to")
        elif call.cancel is not None and call.cancel.requested:
            call.stopping = now
            # It may not be reading: what it is told must not keep the clock from being looked at.
            threading.Thread(target=self._process.ask_to_stop, name="epctx-stop", daemon=True).start()
        return min(_POLLED_EVERY, max(call.deadline - now, 0.001))


class _Line:
    """The host's end of the line: a pair of sockets where processes can be forked, as pipes would wait; else two pipes.

    Raises:
        OSError: the system gives none.
    """

    def __init__(self) -> None:
        self._pair = socket.socketpair() if os.name == "posix" else None
        self._source: IO[bytes] | None = None
        self._sink: IO[bytes] | None = None

    @property
    def far_end(self) -> int:
        """What a process gets as its standard input and output."""
        return subprocess.PIPE if self._pair is None else self._pair[1].fileno()

    def attach(self, process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
        """Return what is read from a process that has the far end, and what is written to it."""
        if self._pair is None:
            self._source, self._sink = process.stdout, process.stdin
        else:
            near, far = self._pair
            far.close()
            self._source = cast("IO[bytes]", near.makefile("rb"))
            self._sink = cast("IO[bytes]", near.makefile("wb"))
        if self._source is None or self._sink is None:
            raise AssertionError("both were asked for")
        return self._source, self._sink

    def cut(self) -> None:
        """End every wait on the line, now and later; what has arrived can still be read on Linux."""
        self._shut(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """Send nothing more, which the process understands."""
        if self._sink is not None:
            with contextlib.suppress(OSError):
                self._sink.close()
        self._shut(socket.SHUT_WR)

    def close(self) -> None:
        """Give all of it back, and let go whoever waits on it; may be called again."""
        self.cut()
        for file in (self._sink, self._source, *(self._pair or ())):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()

    def _shut(self, how: int) -> None:
        if self._pair is not None:
            with contextlib.suppress(OSError):  # it is shut already
                self._pair[0].shutdown(how)
