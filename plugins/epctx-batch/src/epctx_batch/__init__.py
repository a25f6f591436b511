"""Many compiles at once: models for targets, as a file lists them.

`run_batch` compiles them in processes of this machine, each result through the compile
cache. Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctx_batch.batch import run_batch
    from epctx_batch.fleet import Fleet, Task, read_fleet
    from epctx_batch.results import BatchResult, TaskError, TaskResult

__all__ = [
    "BatchResult",
    "Fleet",
    "Task",
    "TaskError",
    "TaskResult",
    "read_fleet",
    "run_batch",
]

_HOME = {
    "run_batch": "batch",
    "Fleet": "fleet",
    "Task": "fleet",
    "read_fleet": "fleet",
    "BatchResult": "results",
    "TaskError": "results",
    "TaskResult": "results",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
