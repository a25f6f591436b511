"""Script of a process that runs tasks: a line of JSON for each, answered by a line with
its result.

Not run as a module, so that no module in the working folder is imported by chance.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import IO, Final

_IDLE_SECONDS: Final = 300.0
"""Seconds without a task after which the process ends; a later one gets another."""


def main() -> None:
    """Run tasks until there are no more, or the process that gives them has ended."""
    # What tasks print must not be taken for answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    orders = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    sys.path[:] = json.loads(orders.readline())["path"]
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    is_busy = threading.Event()
    reader = threading.Thread(
        target=_read, args=(orders, waiting, is_busy), name="epctx-orders", daemon=True
    )
    reader.start()

    from epctx_batch.fleet import Task
    from epctx_batch.work import run_task

    while order := _wait_for(waiting):
        result = run_task(Task(**json.loads(order)))
        is_busy.clear()
        answers.write(json.dumps(result.as_dict()).encode() + b"\n")
        answers.flush()


def _wait_for(waiting: queue.SimpleQueue[bytes]) -> bytes:
    """Return the next order; none if there are no more, or none for long, as on a Dask
    worker whose batch was lost.
    """
    try:
        return waiting.get(timeout=_IDLE_SECONDS)
    except queue.Empty:
        return b""


def _read(
    orders: IO[bytes], waiting: queue.SimpleQueue[bytes], is_busy: threading.Event
) -> None:
    """Pass orders on; at their end, end a process that works for nobody any more."""
    for line in orders:
        is_busy.set()
        waiting.put(line)
    if is_busy.is_set():
        os._exit(1)
    waiting.put(b"")


if __name__ == "__main__":
    main()
