"""`run_batch`: all tasks of a fleet."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from epctx_batch.fleet import read_fleet
from epctx_batch.pool import run_fleet
from epctx_batch.results import BatchResult, TaskResult

Progress: TypeAlias = Callable[[TaskResult, int, int], None]


def run_batch(
    path: str | PathLike[str], *, progress: Progress | None = None
) -> BatchResult:
    """Compile each model of a fleet for each of its targets.

    A task that fails does not stop the others. What the cache has is not compiled
    again, so a batch that was ended goes on when it is run again.

    Call it below `if __name__ == "__main__":`, as all that begins processes.

    Args:
        path: the TOML file; docs/batch.md describes it.
        progress: called with each result, and the numbers of tasks that have ended and
            of all.

    Raises:
        NoSuchFile, InvalidArgument: the file, or a model of it, does not exist or is
            wrong; nothing was compiled.

    Example:
        >>> result = run_batch("fleet.toml")
        >>> [task.error.message for task in result.tasks if task.error]
        []
    """
    fleet = read_fleet(Path(path))
    found = {}
    for result in run_fleet(fleet):
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
