"""Table of models and targets, with its sums, as terminals and pages show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_cli.command import byte_size, counted

from epctx_batch.results import CPU_EP

if TYPE_CHECKING:
    from epctx_batch.results import BatchResult, TaskResult


@dataclass(frozen=True, kw_only=True)
class Table:
    """Results of a batch by model and target.

    Attributes:
        targets: names of targets, in the order of the file.
        rows: results of each model by target; the model's path is relative to the
            folder of the file if it lies there.
        tasks, done, cached, plain, failed: numbers of tasks; those from the cache, and
            those with nothing compiled (plain), are done.
        bytes: length of all context models with their files.
    """

    targets: Sequence[str]
    rows: Mapping[str, Mapping[str, TaskResult]]
    tasks: int
    done: int
    cached: int
    plain: int
    failed: int
    bytes: int


def make_table(result: BatchResult) -> Table:
    """Return the table of a batch."""
    folder = Path(result.fleet).parent.absolute()
    rows: dict[str, dict[str, TaskResult]] = {}
    for task in result.tasks:
        path = Path(task.model)
        model = path.relative_to(folder) if path.is_relative_to(folder) else path
        rows.setdefault(str(model), {})[task.target] = task

    done = [task for task in result.tasks if task.error is None]
    return Table(
        targets=list(dict.fromkeys(task.target for task in result.tasks)),
        rows=rows,
        tasks=len(result.tasks),
        done=len(done),
        cached=sum(task.was_cached for task in done),
        plain=sum(task.is_plain for task in done),
        failed=len(result.tasks) - len(done),
        bytes=sum(task.bytes for task in done),
    )


def describe_sums(table: Table) -> str:
    """Return the numbers of tasks, and the size of what they made."""
    plain = f" {table.plain:,} with nothing compiled;" if table.plain else ""
    return (
        f"{counted(table.tasks, 'task')}: {table.done:,} done, of which "
        f"{table.cached:,} were in the cache;{plain} {table.failed:,} failed; "
        f"{byte_size(table.bytes)}"
    )


def describe_nodes(task: TaskResult) -> str:
    """Return the EPContext nodes and other nodes, or the code of the error."""
    if task.error is not None:
        return f"failed: {task.error.code}"
    if task.is_plain:
        return "nothing compiled"
    contexts = sum(count for ep, count in task.nodes.items() if ep != CPU_EP)
    others = task.nodes.get(CPU_EP, 0)
    return f"{contexts} + {others} CPU" if others else f"{contexts}"
