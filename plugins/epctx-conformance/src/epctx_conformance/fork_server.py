"""Process that has imported the kit and forks one for each job: a start takes a few
milliseconds instead of a second.

It imports no EP, so that each fork has what a new process would have. On Linux only:
elsewhere libraries do not survive a fork.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

SERVE = "--serve"
"""Argument of `epctx_conformance.other_process` that makes it such a process."""
IS_SUPPORTED = sys.platform == "linux"


class ForkServer:
    """Process that forks one for each job; started with the first one.

    Args:
        module: name of the module that is run with `SERVE`.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def run(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        seconds: float,
    ) -> int | None:
        """Run the module with these arguments in a fork; return its exit code.

        Returns:
            None if there is no server, or it ended, or this was closed: then nothing is
            known of the job.

        Raises:
            subprocess.TimeoutExpired: it took too long, and was ended.
        """
        # A check that took too long goes on after its kit was closed.
        if not IS_SUPPORTED or self._is_closed:
            return None
        if not self._lock.acquire(timeout=seconds):
            return None
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        try:
            return self._ask(request, seconds)
        except (OSError, ValueError, _ServerEnded):  # of pipes that `close` closed, too
            self._end()
            return None
        finally:
            self._lock.release()

    def _ask(self, request: Mapping[str, Any], seconds: float) -> int:
        """Send a request; return the exit code of the fork."""
        deadline = time.monotonic() + seconds
        process = self._process = self._process or self._start(request["environment"])
        if process.stdin is None or process.stdout is None:
            raise _ServerEnded
        process.stdin.write(f"{json.dumps(request)}\n".encode())
        pid = None
        try:
            pid = _read_number(process.stdout, deadline)
            return _read_number(process.stdout, deadline)
        except TimeoutError as late:
            if pid is not None:
                os.kill(pid, 9)
            # It still owes an answer to this request.
            self._end()
            raise subprocess.TimeoutExpired(self._module, seconds) from late

    def close(self) -> None:
        """End the server; none is started again."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - this interpreter and a module of the kit
            [sys.executable, "-m", self._module, SERVE],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )


class _ServerEnded(Exception):
    """The server ended before it answered."""


def _read_number(answers: IO[bytes], deadline: float) -> int:
    """Return the number in the next line of the server.

    Raises:
        TimeoutError: the deadline passed.
        _ServerEnded: there is none.
    """
    line = b""
    while not line.endswith(b"\n"):
        left = max(0.0, deadline - time.monotonic())
        if not select.select([answers], [], [], left)[0]:
            raise TimeoutError
        byte = answers.read(1)
        if not byte:
            raise _ServerEnded
        line += byte
    return int(line)


def serve() -> list[str]:
    """Fork a process for each request; return its arguments, in the fork alone.

    The server ends with its standard input.
    """
    answers = os.dup(1)
    os.dup2(2, 1)
    while line := sys.stdin.readline():
        request = json.loads(line)
        with warnings.catch_warnings():
            # Python counts numpy's threads, which numpy starts again in a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.close(answers)
            return _become(request)
        os.write(answers, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    sys.exit()


def _become(request: Mapping[str, Any]) -> list[str]:
    """Make this process the one of a request; return its arguments."""
    os.environ.clear()
    os.environ.update(request["environment"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number, key in ((1, "stdout"), (2, "stderr")):
        file = os.open(request[key], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    arguments: list[str] = request["arguments"]
    return arguments
