"""Processes of one machine that work on the tasks of a batch."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

from epctx_batch.results import TaskError
from epctx_batch.work import RESULT, TASK, make_failed, read_result, run_task

if TYPE_CHECKING:
    from epctx_batch.fleet import Fleet, Task
    from epctx_batch.results import TaskResult


def run_fleet(fleet: Fleet) -> Iterator[TaskResult]:
    """Yield the result of each task when it ends.

    A process that dies, such as for lack of memory, takes all of the pool with it. The
    tasks that were being worked on are begun once more, each in a process alone: one
    that dies there has failed, and no other is blamed. Those that were waiting go on.
    """
    left = {task.id: task for task in fleet.tasks}
    while left:
        yield from _run_pool(fleet, left)

        begun = [
            task for task in left.values() if (fleet.output / task.id / TASK).exists()
        ]
        # A process may die before it begins: then the first one is tried alone.
        for task in begun or [*left.values()][:1]:
            alone = {task.id: left.pop(task.id)}
            yield from _run_pool(fleet, alone)
            if alone:
                yield _make_lost(task)


def _run_pool(fleet: Fleet, left: dict[str, Task]) -> Iterator[TaskResult]:
    """Yield results of one pool, until it has done all or breaks; tasks with a result
    are removed from `left`.
    """
    for task in left.values():
        # What an earlier run left says nothing about this one.
        for name in (TASK, RESULT):
            (fleet.output / task.id / name).unlink(missing_ok=True)

    workers = min(fleet.workers or os.cpu_count() or 1, len(left))
    # Spawned: the threads of this process have no copy in the others.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {
            pool.submit(
                run_task, task, fleet.output / task.id, fleet.cache_dir, fleet.timeout
            ): task
            for task in left.values()
        }
        for future in as_completed(futures):
            task = futures[future]
            result = _get_result(future, task, fleet)
            if result is not None:
                del left[task.id]
                yield result


def _get_result(
    future: Future[TaskResult], task: Task, fleet: Fleet
) -> TaskResult | None:
    """Return the result of a task; None if its process, or another one, died."""
    try:
        return future.result()
    except BrokenProcessPool:
        # It may have ended just before.
        return read_result(fleet.output / task.id)
    except OSError as error:
        message = f"its folder cannot be written: {error}."
        return make_failed(task, TaskError(code="FAIL", message=message, hint=""))


def _make_lost(task: Task) -> TaskResult:
    message = (
        "the process that worked on it ended twice, the second time with no other "
        "task beside it. Its log may say why; a system that lacks memory ends "
        "processes, too."
    )
    return make_failed(task, TaskError(code="EP_FAIL", message=message, hint=""))
