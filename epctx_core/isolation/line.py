"""The line between a host and an EP's process: bytes both ways, and an end to every wait on it when the host says so.

Knows no message. What the EP starts may hold the process's end of the line and outlive it; so a line that the
host cuts is over for the host whoever else holds it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from typing import IO


class Line:
    """The host's end: a pair of sockets where processes can be forked, which pipes would leave waiting; else two pipes.

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
