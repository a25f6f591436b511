"""Processes of one machine that work on tasks: for a batch, or for a Dask worker."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from epctx_isolation.process_group import ProcessGroup

from epctx_batch.work import (
    RESULT,
    make_failed,
    make_task_folder,
    parse_result,
    read_result,
)

if TYPE_CHECKING:
    from epctx_batch.fleet import Fleet, Task
    from epctx_batch.results import TaskResult

_SCRIPT: Final = Path(__file__).with_name("worker.py")
_ATTEMPTS: Final = 2
_GRACE_SECONDS: Final = 5.0
"""Seconds that a process without a task has to end."""


def run_in_processes(fleet: Fleet) -> Generator[TaskResult, None, None]:
    """Yield the result of each task of a fleet when it ends."""
    workers = min(fleet.workers or os.cpu_count() or 1, len(fleet.tasks))
    with (
        ThreadPoolExecutor(workers, thread_name_prefix="epctx-batch") as threads,
        closing(Processes()) as processes,
    ):
        waiting = iter(fleet.tasks)

        def submit(count: int) -> set[Future[TaskResult]]:
            some = itertools.islice(waiting, count)
            return {threads.submit(processes.run, task) for task in some}

        try:
            # Twice as many as work, so that none waits while the host looks at results.
            futures = submit(2 * workers)
            while futures:
                ended, futures = wait(futures, return_when=FIRST_COMPLETED)
                futures |= submit(len(ended))
                for future in ended:
                    yield future.result()
        finally:
            # What was waiting is not begun when the host has had enough.
            threads.shutdown(wait=False, cancel_futures=True)


class Processes:
    """Processes that run tasks, one at a time each; they are begun when they are needed
    and kept for later tasks.

    Threads may call `run` at the same time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._is_closed = False

    def run(self, task: Task) -> TaskResult:
        """Return the result of a task.

        A process that dies, such as for lack of memory, takes no other task with it;
        its own is begun once more in another process, unless its result is there.
        """
        folder = Path(task.folder)
        # What an earlier batch left says nothing about this one.
        with suppress(OSError):  # working on the task says so
            make_task_folder(folder)
            (folder / RESULT).unlink(missing_ok=True)

        ending = ""
        for _ in range(_ATTEMPTS):
            with self._lock:
                if self._is_closed:
                    return make_failed(
                        task, "MODEL_LOAD_CANCELED", "the batch was ended before it."
                    )
                try:
                    process = self._take_idle() or _Process()
                except OSError as error:
                    return make_failed(
                        task, "FAIL", f"no process could be started for it: {error}."
                    )
                self._busy.add(process)

            result = process.run(task)

            with self._lock:
                self._busy.remove(process)
                if result is not None:
                    self._idle.append(process)
                    return result
            ending = process.close()
            if (result := read_result(folder)) is not None:
                return result
        return make_failed(
            task,
            "EP_FAIL",
            f"the process that worked on it {ending}, and so did one before it.",
            "Its log may say why; a system that lacks memory ends processes, too.",
        )

    def _take_idle(self) -> _Process | None:
        """Return a process that waits for a task; those that have waited for too long
        have ended.
        """
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            process.close()
        return None

    def close(self) -> None:
        """End all processes; tasks that they are working on fail."""
        with self._lock:
            self._is_closed = True
            for process in self._busy:
                process.kill()
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()


class _Process:
    """Process that runs `worker.py`.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self) -> None:
        # Not the host's group: the host handles a Ctrl-C in the terminal.
        self._group = ProcessGroup(
            [sys.executable, "-P", os.fspath(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._send({"path": [os.fspath(folder) for folder in sys.path]})

    @property
    def is_alive(self) -> bool:
        """True if the process has not ended."""
        return self._group.first.poll() is None

    def run(self, task: Task) -> TaskResult | None:
        """Return the result of a task, None if the process died."""
        self._send(task.as_dict())
        answer = self._group.first.stdout
        line = b"" if answer is None else answer.readline()
        try:
            result = parse_result(line)
        except ValueError:
            return None
        return result if result.id == task.id else None

    def kill(self) -> None:
        """End the process and its children at once; `run` notices."""
        self._group.end()

    def close(self) -> str:
        """End the process, and return the ending in words."""
        process = self._group.first
        if process.stdin is not None:
            with suppress(OSError):  # it died with a task unread
                process.stdin.close()
        self._group.wait_and_end(_GRACE_SECONDS)
        if process.stdout is not None:
            process.stdout.close()
        return self._group.ending

    def _send(self, message: object) -> None:
        order = self._group.first.stdin
        # If it has died, reading its answer says so.
        with suppress(OSError):
            if order is not None:
                order.write(json.dumps(message).encode() + b"\n")
                order.flush()
