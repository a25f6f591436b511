"""`run_batch`: all tasks of a fleet."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from epctx_batch.fleet import read_fleet
from epctx_batch.results import BatchResult, TaskResult

Progress: TypeAlias = Callable[[TaskResult, int, int], None]


def run_batch(
    path: str | PathLike[str],
    *,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> BatchResult:
    """Compile each model of a fleet for each of its targets.

    A task that fails does not stop the others. What the cache has is not compiled
    again, so a batch that was ended goes on when it is run again.

    Args:
        path: the TOML file; docs/batch.md describes it.
        scheduler: address of a Dask scheduler, such as `tcp://host:8786`, whose workers
            take the tasks; None for processes of this machine.
        progress: called with each result, and the numbers of tasks that have ended and
            of all.

    Raises:
        NoSuchFile, InvalidArgument: the file, or a model of it, does not exist or is
            wrong; nothing was compiled.
        Fail: there is no such scheduler, its workers have no epctx-batch, or Dask is
            not installed (`pip install 'epctx-batch[dask]'`).

    Examples:
        >>> result = run_batch("fleet.toml")
        >>> [task.error.message for task in result.tasks if task.error]
        []
    """
    fleet = read_fleet(Path(path))
    if scheduler is None:
        from epctx_batch.processes import run_in_processes

        results = run_in_processes(fleet)
    else:
        from epctx_batch.cluster import run_on_cluster

        results = run_on_cluster(fleet, scheduler)

    found = {}
    for result in results:
        found[result.id] = result
        if progress is not None:
            progress(result, len(found), len(fleet.tasks))
    tasks = [found[task.id] for task in fleet.tasks]
    return BatchResult(
        fleet=str(path),
        output=str(fleet.output),
        ok=all(task.state == "done" for task in tasks),
        tasks=tasks,
    )
