"""Results of tasks, and of `epctx batch`: what `--json` prints.

The JSON Schemas in `schemas` are made from these dataclasses (`make tables`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

CPU_EP: Final = "CPUExecutionProvider"


@dataclass(frozen=True, kw_only=True)
class TaskError:
    """Error of a task that failed.

    Attributes:
        code: code of the error, as `epctx docs errors` lists them.
        message: what happened.
        hint: what to do; empty if that is not known.
    """

    code: str
    message: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """Result of one model for one target.

    Attributes:
        id: name of the task's folder.
        model: path of the model.
        target: name of the target.
        state: `done`, or `failed` for one whose compile failed or whose process ended.
        was_cached: true if the cache had the compiled model.
        seconds: duration of the task without its report page.
        nodes: number of EPContext nodes by EP; the other nodes of the context model,
            those inside subgraphs and functions included, as the CPU EP's.
        output: path of the context model; null if the task failed.
        bytes: length of the context model and its files.
        error: the error; null if the task is done.
        versions: version of each package that took part, by name.
        warnings: warnings that epctx logged meanwhile, such as why nothing was
            compiled.
    """

    id: str
    model: str
    target: str
    state: Literal["done", "failed"]
    was_cached: bool
    seconds: float
    nodes: dict[str, int]
    output: str | None
    bytes: int
    error: TaskError | None
    versions: dict[str, str]
    warnings: list[str] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """True if the task is done, and nothing was compiled."""
        return self.error is None and self.nodes.keys() <= {CPU_EP}

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """Result of `epctx batch FLEET.toml`.

    Attributes:
        fleet: the file.
        output: folder of the results.
        ok: true if all tasks are done, and each has compiled something, unless the
            file allows otherwise.
        tasks: result of each task, in the order of the file.
        page: path of the page with the table; left out without `--html`.
    """

    fleet: str
    output: str
    ok: bool
    tasks: list[TaskResult]
    page: str | None = None


@dataclass(frozen=True, kw_only=True)
class ShowResult:
    """Result of `epctx batch show ID`.

    Attributes:
        task: its result; null if it has not ended.
        options: its EPs, their options and its session options.
        log: what was printed and logged.
    """

    task: TaskResult | None
    options: dict[str, Any]
    log: str
