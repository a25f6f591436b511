"""Request to a measuring process, which both sides read and write as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

if TYPE_CHECKING:
    from epctx_bench.columns import Column
    from epctx_bench.settings import BenchSettings

Task: TypeAlias = "Literal['describe', 'compile', 'load', 'use', 'compute']"
"""Work of one process: describe EPs; compile; load only; load, run once, and go on
running; or compute the outputs.
"""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Work of one measuring process.

    Attributes:
        task: the work.
        engine: see `Column.engine`.
        model: path of the model that is compiled or loaded.
        output: path of the context model, or of the `.npz` file with outputs.
        eps: EP names, each with its options.
        config: session options by their key.
        modules: modules to import before the clock runs.
        dropped: files to drop from the page cache before the clock runs.
        threads, batch_sizes, runs, run_seconds, seed: see `BenchSettings`.
    """

    task: Task
    engine: str
    model: str = ""
    output: str = ""
    eps: Sequence[tuple[str, Mapping[str, str]]] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    modules: Sequence[str] = ()
    dropped: Sequence[str] = ()
    threads: Sequence[int] = (1,)
    batch_sizes: Sequence[int] = (1,)
    runs: int | None = None
    run_seconds: float = 0.0
    seed: int = 0

    @classmethod
    def of_column(
        cls, task: Task, column: Column, settings: BenchSettings, **changes: Any
    ) -> Self:
        """Return the request for a column; `changes` replaces attributes."""
        facts: dict[str, Any] = {
            "task": task,
            "engine": column.engine,
            "model": str(column.model),
            "eps": [(ep, column.options.get(ep, {})) for ep in column.eps],
            "config": settings.config,
            "threads": settings.threads,
            "batch_sizes": settings.batch_sizes,
            "runs": settings.runs,
            "run_seconds": settings.run_seconds,
            "seed": settings.seed,
        }
        return cls(**{**facts, **changes})

    def as_dict(self) -> dict[str, Any]:
        """Return the request as JSON."""
        return asdict(self)

    @property
    def name(self) -> str:
        """Name of the model's file."""
        return Path(self.model).name
