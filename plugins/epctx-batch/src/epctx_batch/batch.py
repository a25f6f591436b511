"""`run_batch`: all tasks of a fleet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from epctx_files import seal_folder

from epctx_batch.fleet import Fleet, read_fleet
from epctx_batch.results import BatchResult, TaskResult
from epctx_batch.work import HTML, store_failure
from epctx_core.ext import Publication, import_installed

Progress: TypeAlias = Callable[[TaskResult, int, int], None]


def run_batch(
    path: str | PathLike[str],
    *,
    scheduler: str | None = None,
    html: bool = False,
    progress: Progress | None = None,
) -> BatchResult:
    """Compile each model of a fleet for each of its targets.

    A task that fails does not stop the others. What the cache has is not compiled
    again, so a batch that was ended goes on when it is run again. The folder of the
    results gets a digest if all is right, see `epctx_files.verify_folder`.

    Args:
        path: the TOML file; `epctx docs batch` describes it.
        scheduler: address of a Dask scheduler, such as `tcp://host:8786`, whose workers
            take the tasks; None for processes of this machine.
        html: whether to write `index.html` into the folder of the results, a table
            of models and targets that links to a report page of each context model.
        progress: called with each result, and the numbers of tasks that have ended and
            of all.

    Raises:
        NoSuchFile, InvalidArgument: the file, or a model of it, does not exist or is
            wrong; nothing was compiled.
        Fail: there is no such scheduler, its workers have no epctx-batch, or Dask is
            not installed (`pip install 'epctx-batch[dask]'`); or the page or the digest
            cannot be written.
        PackageMissing: `html` needs epctx-report, which is not installed.

    Examples:
        >>> result = run_batch("fleet.toml")
        >>> [task.error.message for task in result.tasks if task.error]
        []
    """
    fleet = read_fleet(Path(path))
    if html:
        fleet = _prepare_pages(fleet)
    if scheduler is None:
        from epctx_batch.processes import run_in_processes

        results = run_in_processes(fleet)
    else:
        from epctx_batch.cluster import run_on_cluster

        results = run_on_cluster(fleet, scheduler)

    found = {}
    # A host whose callback raises has had enough.
    with closing(results):
        for result in results:
            found[result.id] = result
            if result.state == "failed":
                # Also of one whose process was lost, which has left none.
                with suppress(OSError):
                    store_failure(fleet.output / result.id, result)
            if progress is not None:
                progress(result, len(found), len(fleet.tasks))
    tasks = [found[task.id] for task in fleet.tasks]
    batch = BatchResult(
        fleet=str(path),
        output=str(fleet.output),
        ok=all(
            task.state == "done" and (fleet.allow_uncompiled or not task.is_plain)
            for task in tasks
        ),
        tasks=tasks,
    )
    if html:
        from epctx_batch.page import write_page

        batch = replace(batch, page=str(write_page(batch)))
    if batch.ok:
        seal_folder(fleet.output, purpose=f"epctx batch {fleet.output.name}")
    return batch


def _prepare_pages(fleet: Fleet) -> Fleet:
    """Return the fleet with tasks that make pages; raise if pages cannot be made,
    before there is anything to show.
    """
    import_installed("epctx_report.report", needed_by=HTML)
    Publication.check_folder(fleet.output)
    return replace(fleet, tasks=[replace(task, html=True) for task in fleet.tasks])
