"""Host's side of the process of an EP: start it, watch it, end it, and describe its
end.

The EP's own children may hold the process's end of the line and outlive it, so the host
can cut its end, whoever holds the other. Knows bytes and time, no hook and no message
but the one that asks to stop.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from epctx_core.errors import Fail, concealed
from epctx_isolation.channel import Channel, make_printable
from epctx_isolation.process_group import ProcessGroup

if TYPE_CHECKING:
    from epctx_core.plugin import Cancellation

GRACE_SECONDS = 5.0
"""Seconds for a process to stop by itself when the host asks it to."""

OUTPUT_SECONDS = 1.0
"""Seconds to read what an ended process has printed while others print, too."""

_LAST_WORDS_SECONDS = 1.0
"""Seconds for the last messages of an ended process to arrive; others may hold its end
of the line for longer.
"""
_POLLED_EVERY = 0.05
_LINES = 64
_LINE_LENGTH = 400
_CHUNK = 1 << 16
_SCRIPT = Path(__file__).with_name("child.py")


class ChildProcess:
    """Python process that finds modules as this one does, with a folder of its own for
    temporary files.

    Attributes:
        channel: messages to and from it.
        is_late: whether it was ended because a call took longer than it might.
        is_interrupted: whether it was ended because the host broke off a call.
        is_closed: whether `close` was called.
        turn: held by the instance that calls it.
        is_busy: whether a call is under way.
        instances: number of EP instances that were made in it.

    Args:
        scratch: makes a private folder.
        limit: most bytes of one message from it; None for any.

    Raises:
        Fail: no process could be started.
    """

    def __init__(
        self,
        scratch: Callable[[], contextlib.AbstractContextManager[Path]],
        *,
        limit: int | None,
    ) -> None:
        self._folder = contextlib.ExitStack()
        try:
            folder = os.fspath(self._folder.enter_context(scratch()))
            self._line = _Line()
            self._folder.callback(self._line.close)
            self._printed = _Printed()
            self._folder.callback(self._printed.close)
            if not sys.executable:
                raise FileNotFoundError("sys.executable is empty")
            # Not the host's group: the host handles a Ctrl-C in the terminal.
            self._process = ProcessGroup(
                [sys.executable, "-P", os.fspath(_SCRIPT)],
                stdin=self._line.far_end,
                stdout=self._line.far_end,
                stderr=self._printed.far_end,
                env={**os.environ, "TMPDIR": folder, "TEMP": folder, "TMP": folder},
            )
        except OSError as error:
            self._folder.close()
            raise Fail(
                f"no process could be started for an isolated EP: {error}.",
                hint="ep.isolate needs sys.executable to be a Python interpreter.",
            ) from error
        source, sink = self._line.attach(self._process.first)
        self.channel = Channel(source, sink, limit=limit)
        self._reason = ""
        self.is_late = self.is_interrupted = self.is_closed = self.is_busy = False
        self.turn = threading.RLock()
        self.instances = 0
        self._watch = _Watch(self)
        folders = [os.fspath(folder) for folder in sys.path]
        path = json.dumps({"path": folders}).encode()
        with contextlib.suppress(OSError):  # it died at once: the first message fails
            sink.write(struct.pack("<I", len(path)) + path)

    @contextlib.contextmanager
    def watched(
        self,
        seconds: float,
        cancel: Cancellation | None,
        excess: str = "",
        *,
        instance: int = 1,
    ) -> Iterator[None]:
        """End the process if the block takes longer, or does not end soon after the
        host asks it to stop.

        Args:
            seconds: the time that the block has.
            cancel: the host's request to stop.
            excess: the reason if it takes longer; empty for one that says the seconds.
            instance: number of the EP's instance that the request concerns.
        """
        excess = excess or f"it took longer than the {seconds:g} seconds that it had"
        self._watch.begin(seconds, cancel, excess, instance)
        try:
            yield
        finally:
            self._watch.end()

    def ask_to_stop(self, instance: int) -> None:
        """Send the process a cancellation of an instance's work."""
        with contextlib.suppress(OSError, ValueError):
            self.channel.send({"do": "cancel", "instance": instance})

    def kill(self, reason: str) -> None:
        """End the process and its children; the first reason counts."""
        self._reason = self._reason or reason
        self._process.end()
        self._line.cut()

    def kill_late(self, reason: str) -> None:
        """End the process because a call took longer than it might."""
        # It is called again until the call has noticed.
        self.is_late = self.is_late or not self._reason
        self.kill(reason)

    def reap(self) -> bool:
        """End the children of a process that has ended; return whether it has."""
        if not self._process.has_ended():
            return False
        self._process.end()
        return True

    def cut(self) -> None:
        """End every wait for the process."""
        self._line.cut()

    def kill_interrupted(self) -> None:
        """End the process because the host broke off a call."""
        self.is_interrupted = self.is_interrupted or not self._reason
        self.kill("it was ended because its call was")

    def close(self) -> None:
        """Wait for the end of the process, at most `GRACE_SECONDS`, then end and remove
        the rest, in at most `OUTPUT_SECONDS` whoever else has its pipes; may be called
        again.
        """
        self.is_closed = True
        self._line.hang_up()
        if self._process.first.returncode is None and not self._process.wait_and_end(
            GRACE_SECONDS
        ):
            self._reason = self._reason or "it did not end when the host asked it to"
        self._watch.close()
        self._folder.close()

    def describe_end(self) -> str:
        """Return the end of the process in words, with its last output; it has to be
        closed.
        """
        end = self._reason or f"it {self._process.ending}"
        # A message is one line; `output` has all. Behind a crash in native code Python
        # writes its stack.
        lines = self._printed.lines
        crash = [line for line in lines if line.startswith("Fatal Python error")]
        last = (*lines, *crash)[-1] if lines else ""
        return f"{end}. It printed: {last.strip()}" if last else f"{end}."

    @property
    def output(self) -> str:
        """Last lines that it printed; it has to be closed."""
        return "\n".join(self._printed.lines)


class _Printed:
    """Last lines that a process prints.

    Attributes:
        far_end: standard error of the process.
    """

    def __init__(self) -> None:
        self._end = b""
        source, self.far_end = os.pipe()
        stop, self._stop = os.pipe()
        self._thread = threading.Thread(
            target=self._keep_end,
            args=(open(source, "rb", buffering=0), open(stop, "rb", buffering=0)),  # noqa: SIM115, PTH123 - the thread closes them
            name="epctx-stderr",
            daemon=True,
        )
        self._thread.start()

    @property
    def lines(self) -> list[str]:
        """The lines; complete after `close`."""
        text = concealed(self._end.decode(errors="replace"))
        # The first one may have lost its beginning, and a secret in it the half.
        first = len(self._end) == _LINES * _LINE_LENGTH
        return [
            make_printable(line, _LINE_LENGTH)
            for line in text.splitlines()[first:][-_LINES:]
            if line.strip()
        ]

    def close(self) -> None:
        """Read what the ended process has printed, then release the pipe and its
        thread.

        Other processes may still print, or read the pipe themselves: their output is
        lost after `OUTPUT_SECONDS`, or as soon as there is none.
        """
        os.close(self.far_end)
        os.close(self._stop)
        # Where pipes cannot be polled the thread ends with the last such process.
        self._thread.join(None if os.name == "posix" else OUTPUT_SECONDS)

    def _keep_end(self, source: IO[bytes], stop: IO[bytes]) -> None:
        with source, stop:
            for chunk in _read_until_stopped(source, stop):
                self._end = (self._end + chunk)[-_LINES * _LINE_LENGTH :]


def _read_until_stopped(source: IO[bytes], stop: IO[bytes]) -> Iterator[bytes]:
    """Yield what comes from a pipe until it ends; once the other end of `stop` is
    closed, until it is empty, for at most `OUTPUT_SECONDS`.
    """
    if os.name != "posix":
        yield from iter(partial(source.read, _CHUNK), b"")
        return

    # Another reader may be faster after the pipe was found to have bytes.
    os.set_blocking(source.fileno(), False)
    with selectors.DefaultSelector() as selector:
        for file in (source, stop):
            selector.register(file, selectors.EVENT_READ)
        deadline = math.inf
        while time.monotonic() < deadline:
            waiting = deadline == math.inf
            ready = {k.fileobj for k, _ in selector.select(None if waiting else 0)}
            if waiting and stop in ready:
                deadline = time.monotonic() + OUTPUT_SECONDS
            if source in ready:
                chunk = source.read(_CHUNK)
                if chunk == b"":
                    return
                yield chunk or b""
            elif not waiting:
                return


class _Watch:
    """Thread that checks the time limit and the cancellation of the call that is under
    way.
    """

    def __init__(self, process: ChildProcess) -> None:
        self._process = process
        self._changed = threading.Condition()
        self._closed = False
        self._cancel: Cancellation | None = None
        self._instance = 1
        # Of the call; None between calls.
        self._deadline: float | None = None
        self._excess = ""
        # Times at which the process was asked to stop in it, and at which it was found
        # to have ended.
        self._stopping: float | None = None
        self._ended: float | None = None
        self._thread = threading.Thread(
            target=self._run, name="epctx-watch", daemon=True
        )
        self._thread.start()

    def begin(
        self, seconds: float, cancel: Cancellation | None, excess: str, instance: int
    ) -> None:
        with self._changed:
            self._instance = instance
            self._deadline = time.monotonic() + seconds
            self._excess = excess
            self._cancel = cancel
            self._stopping = None
            self._ended = None
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._deadline = None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._deadline = None
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                self._changed.wait(
                    None if self._deadline is None else self._check(self._deadline)
                )

    def _check(self, deadline: float) -> float:
        """End the process, or ask it to stop, if it is time; return the seconds until
        the next check.
        """
        now = time.monotonic()
        if now > deadline:
            self._process.kill_late(self._excess)
        elif self._ended is not None:
            if now > self._ended + _LAST_WORDS_SECONDS:
                self._process.cut()
        elif self._process.reap():
            self._ended = now
        elif self._stopping is not None:
            if now > self._stopping + GRACE_SECONDS:
                self._process.kill("it did not stop when the host asked it to")
        elif self._cancel is not None and self._cancel.requested:
            self._stopping = now
            # It may not be reading, and a send that waits must not stop the watch.
            threading.Thread(
                target=self._process.ask_to_stop,
                args=(self._instance,),
                name="epctx-stop",
                daemon=True,
            ).start()
        return min(_POLLED_EVERY, max(deadline - now, 0.001))


class _Line:
    """Host's end of the line: a pair of sockets on POSIX, since reads of pipes cannot
    be cut; else two pipes.

    Raises:
        OSError: the system provides none.
    """

    def __init__(self) -> None:
        self._pair = socket.socketpair() if os.name == "posix" else None
        self._source: IO[bytes] | None = None
        self._sink: IO[bytes] | None = None

    @property
    def far_end(self) -> int:
        """Standard input and output of the process."""
        return subprocess.PIPE if self._pair is None else self._pair[1].fileno()

    def attach(self, process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
        """Return the files to read from and to write to a process that has the far
        end.
        """
        if self._pair is None:
            self._source = process.stdout
            self._sink = process.stdin
        else:
            near, far = self._pair
            far.close()
            self._source = cast("IO[bytes]", near.makefile("rb"))
            self._sink = cast("IO[bytes]", near.makefile("wb"))
        if self._source is None or self._sink is None:
            raise AssertionError("both were asked for")
        return self._source, self._sink

    def cut(self) -> None:
        """End every wait on the line, now and later; on Linux, bytes that have arrived
        can still be read.
        """
        self._shut(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """Close the writing side, which ends the process."""
        if self._sink is not None:
            with contextlib.suppress(OSError):
                self._sink.close()
        self._shut(socket.SHUT_WR)

    def close(self) -> None:
        """Close both ends and end every wait; may be called again."""
        self.cut()
        for file in (self._sink, self._source, *(self._pair or ())):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()

    def _shut(self, side: int) -> None:
        if self._pair is not None:
            with contextlib.suppress(OSError):  # it is shut already
                self._pair[0].shutdown(side)
