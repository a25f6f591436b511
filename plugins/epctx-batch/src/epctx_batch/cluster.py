"""Tasks of a batch on the workers of a Dask cluster.

Its scheduler places them, begins those of lost workers again, and shows them on its
dashboard.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, cast

from epctx_batch.processes import Processes
from epctx_batch.work import make_failed
from epctx_core.errors import Fail, quote

try:
    from distributed import (
        CancelledError,
        Client,
        KilledWorker,
        Worker,
        WorkerPlugin,
        as_completed,
        get_worker,
    )
    from distributed.comm.addressing import resolve_address
except ImportError as error:
    raise Fail(
        f"a scheduler needs Dask, which cannot be imported: {error}.",
        hint="pip install 'epctx-batch[dask]'",
    ) from error

if TYPE_CHECKING:
    from epctx_batch.fleet import Fleet, Task
    from epctx_batch.results import TaskResult

_IN_FLIGHT: Final = 10_000
"""Tasks that the scheduler knows at a time: it needs about a kilobyte for each."""
_log = logging.getLogger("epctx.batch")


def run_on_cluster(fleet: Fleet, scheduler: str) -> Generator[TaskResult, None, None]:
    """Yield the result of each task of a fleet when it ends.

    Workers see the files of the batch at the same paths as this process.

    Args:
        fleet: the batch.
        scheduler: address of the scheduler.

    Raises:
        Fail: there is no such scheduler, or its workers have no epctx-batch.
    """
    # Batches at the same time have processes and keys of their own.
    name = f"epctx-batch-{uuid.uuid4().hex[:8]}"
    with _connect(scheduler) as client, _prepare(client, name, scheduler):
        _warn_of_missing(client, fleet)
        waiting = iter(fleet.tasks)
        tasks = {}

        def submit(task: Task) -> Any:
            future = client.submit(
                run_on_worker,
                task,
                name,
                key=f"{name}-{task.id}",
                pure=False,
                resources=dict(task.resources) or None,
            )
            tasks[future] = task
            return future

        first = [submit(task) for task in itertools.islice(waiting, _IN_FLIGHT)]
        ended = as_completed(first, loop=client.loop)
        del first
        for future in ended:
            yield _get_result(future, tasks.pop(future))
            # The scheduler forgets it, so a worker that is lost later does not matter.
            future.release()
            for task in itertools.islice(waiting, 1):
                ended.add(submit(task))


def run_on_worker(task: Task, plugin: str) -> TaskResult:
    """Return the result of a task, in a process beside the Dask worker that this runs
    in.
    """
    found = cast("_TaskProcesses", get_worker().plugins[plugin])
    return found.processes.run(task)


class _TaskProcesses(WorkerPlugin):
    """Processes of a Dask worker for the tasks of a batch."""

    processes: Processes

    def setup(self, worker: Worker) -> None:  # noqa: ARG002 - Dask's signature
        self.processes = Processes()

    def teardown(self, worker: Worker) -> None:  # noqa: ARG002 - Dask's signature
        self.processes.close()


@contextmanager
def _connect(scheduler: str) -> Iterator[Client]:
    try:
        # A client of an address that cannot be resolved would wait for itself.
        resolve_address(scheduler)
        client = Client(scheduler, set_as_default=False)
    except (OSError, ValueError) as error:
        raise Fail(
            f"there is no Dask scheduler at {scheduler!r}: {error}.",
            hint="Give the address that `dask scheduler` prints, such as tcp://host:8786.",
        ) from error
    with client:
        yield client


@contextmanager
def _prepare(client: Client, name: str, scheduler: str) -> Iterator[None]:
    """Give workers processes for tasks; those that join later, too."""
    for is_last in (False, False, False, True):
        try:
            client.register_plugin(_TaskProcesses(), name=name)
            break
        except Exception as error:
            # A worker that is lost meanwhile fails the call for all of them.
            if isinstance(error, OSError) and not is_last:
                continue
            raise Fail(
                f"the workers of {scheduler!r} cannot run tasks of epctx: {error}.",
                hint=(
                    "Install the same epctx-batch on all of them, with the EPs' "
                    "packages."
                ),
            ) from error
    try:
        yield
    except CancelledError as error:
        raise Fail(
            f"the scheduler {scheduler!r} was lost; results until then are in the "
            "folder of the results.",
            hint="Run the batch again: what the cache has is not compiled again.",
        ) from error
    finally:
        # A scheduler that is lost removes nothing, and a worker that is lost or joins
        # meanwhile may have no plugin.
        with suppress(Exception):
            client.unregister_worker_plugin(name)


def _warn_of_missing(client: Client, fleet: Fleet) -> None:
    """Log a warning about tasks that wait for what no worker has at present."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    if not workers:
        _log.warning("the scheduler has no worker yet; tasks wait for one.")
        return
    lacking = Counter(
        f"{name}={amount:g}"
        for task in fleet.tasks
        for name, amount in task.resources.items()
        if all(worker["resources"].get(name, 0) < amount for worker in workers)
    )
    for resource, count in lacking.items():
        _log.warning(
            "%d tasks wait for a worker with %s; no worker has that now "
            "(dask worker --resources %s).",
            count,
            resource,
            resource,
        )


def _get_result(future: Any, task: Task) -> TaskResult:
    try:
        result: TaskResult = future.result()
    except KilledWorker as error:
        return make_failed(
            task,
            "EP_FAIL",
            f"the workers that worked on it were lost: {quote(error)}",
            "Dask's setting distributed.scheduler.allowed-failures limits how often.",
        )
    except CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a worker sends
        # Such as one with another version of a package; the other tasks go on.
        return make_failed(
            task,
            "FAIL",
            f"its worker failed: {type(error).__name__}: {quote(error)}",
            "Install the same packages on all workers as here.",
        )
    return result
