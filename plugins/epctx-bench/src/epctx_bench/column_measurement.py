"""Measurement of one column: a rehearsal, a turn as often as it is asked for, and the
rows that result.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_bench.children import Request, Task, ask_child
from epctx_bench.columns import (
    ONNXRUNTIME,
    VENDOR,
    Column,
    ColumnReport,
    Row,
    is_cpu,
)
from epctx_bench.page_cache import read_files
from epctx_core.errors import EpctxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epctx_bench.settings import BenchSettings

_ROWS: tuple[tuple[str, Task, str, tuple[str, ...]], ...] = (
    ("compile", "compile", "seconds", ("cpu_seconds", "peak_bytes", "bytes_written")),
    ("load_cold", "load", "seconds", ()),
    ("load_warm", "use", "load", ()),
    ("first_result", "use", "first_result", ()),
    ("first_result_from_start", "start", "seconds", ("cpu_seconds",)),
)
"""Rows, with the task and the key of its result that give their samples, and the keys
of further numbers; a task that the column does not have gives no row.
"""


class ColumnMeasurement:
    """Measurement of one column.

    Args:
        column: what is measured.
        settings: settings of all columns.
        folder: folder for the context model, which is created.

    Attributes:
        error: the reason for which it was given up; None as long as it goes on.
        notes: sentences about how it was measured.
    """

    def __init__(
        self,
        column: Column,
        *,
        settings: BenchSettings,
        folder: Path,
    ) -> None:
        self.column = column
        self.error: str | None = None
        self.notes: list[str] = []
        self._simulated: list[str] = []
        self._uses_eps = True
        self._settings = settings
        self._folder = folder
        self._model = column.model
        self._files = column.files
        self._modules: dict[Task, list[str]] = {}
        self._turns: list[dict[Task, dict[str, Any]]] = []

    @contextmanager
    def _give_up_on_error(self) -> Iterator[None]:
        """Turn a typed error into `error`: the other columns go on."""
        try:
            yield
        except EpctxError as error:
            self.error = error.message

    def rehearse(self) -> None:
        """Compile and run once without a clock.

        The measured processes import first what these needed, and load what was
        compiled here. A session of onnxruntime needs neither: its package is imported
        before the clock runs, and the process that a rehearsal costs is a second or
        more.
        """
        if self.column.engine == ONNXRUNTIME:
            return

        with self._give_up_on_error():
            if self.column.compiles:
                self._rehearse_compile()
            result = self._ask("use", runs=1)
            self._modules["use"] = result["modules"]
            self._simulated = result["simulated"] if self._uses_eps else []

    def _rehearse_compile(self) -> None:
        self._folder.mkdir()
        result = self._compile_into(self._folder)
        self._modules["compile"] = result["modules"]
        self._model = self._name_output(self._folder)
        self._uses_eps = result["compiled"]
        self._files = tuple(self._folder / name for name in result["files"])
        if not result["compiled"]:
            self.notes.append("no EP took a node: the CPU EP runs the whole model")
            return

        assignments = result["assignments"]
        left = sum(n for ep, n in assignments.items() if is_cpu(ep))
        total = sum(assignments.values())
        if left:
            self.notes.append(f"{left} of {total} nodes are left to the CPU EP")

    def measure_turn(self) -> None:
        """Measure the column once; nothing after an error."""
        if self.error is not None:
            return
        with self._give_up_on_error():
            turn: dict[Task, dict[str, Any]] = {}
            if self.column.compiles:
                with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                    turn["compile"] = self._compile_into(Path(folder))
            turn["load"] = self._ask("load")
            # A cold load maps files and reads some of their pages only.
            read_files(self._files)
            turn["use"] = self._ask("use")
            # Options of a vendor's session in onnxruntime are made by epctx, whose
            # imports would count.
            if self.column.engine != VENDOR:
                turn["start"] = self._ask("start")
            self._turns.append(turn)

    def _name_output(self, folder: Path) -> Path:
        return folder / f"{self.column.model.stem}_ctx.onnx"

    def _compile_into(self, folder: Path) -> dict[str, Any]:
        return self._ask("compile", output=str(self._name_output(folder)))

    def _ask(self, task: Task, *, output: str = "", **changes: Any) -> dict[str, Any]:
        """Return what a measuring process answers.

        Args:
            task: its work.
            output: path of the context model that is compiled.
            **changes: settings of this process alone.
        """
        column = self.column
        compiles = task == "compile"
        if column.compiles and not compiles:
            # The compiled model has these lengths already.
            changes["free_dimensions"] = {}
        return ask_child(
            Request(
                task=task,
                engine=column.engine,
                model=str(column.model if compiles else self._model),
                output=output,
                eps=[(ep, column.options.get(ep, {})) for ep in column.eps],
                settings=replace(self._settings, **changes),
                modules=self._modules.get("compile" if compiles else "use", ()),
                dropped=[str(path) for path in self._files],
            )
        )

    def report(
        self, options: Mapping[str, Mapping[str, str]], peer: str | None
    ) -> ColumnReport:
        """Return what was measured.

        Args:
            options: the options as they may be shown.
            peer: name of the column of onnxruntime for the same model, which may be
                this one; None without one.
        """
        return ColumnReport(
            column=self.column,
            options=options,
            peer=None if peer == self.column.name else peer,
            rows={} if self.error else self._make_rows(),
            error=self.error,
            notes=list(dict.fromkeys([*self.notes, *self._list_notes()])),
            simulated=self._simulated,
        )

    def _make_rows(self) -> dict[str, Row]:
        """Return the rows of all turns."""
        turns = self._turns
        rows = {}
        for name, task, key, facts in _ROWS:
            results = [turn[task] for turn in turns if task in turn]
            if results:
                rows[name] = _make_row(results, key, facts)
        used = [turn["use"] for turn in turns]
        for runs in zip(*(each["runs"] for each in used), strict=True):
            name = "run"
            if name in rows:
                name += f"_threads_{runs[0]['threads']}"
                if runs[0]["batch"] is not None:
                    name += f"_batch_{runs[0]['batch']}"
            rows[name] = _make_run_row(runs)
        rows["memory"] = Row(
            unit="bytes", samples=[each["peak_bytes"] for each in used]
        )
        return rows

    def _list_notes(self) -> Iterator[str]:
        """Yield what the processes of each turn noticed."""
        for turn in self._turns:
            if max(self._settings.batch_sizes) > 1 and not turn["use"]["open_batch"]:
                yield "batch sizes have no effect: the model fixes its first dimension"
            if turn["load"]["kept"]:
                yield f"load_cold: {turn['load']['kept']}"


def _make_row(
    results: Sequence[Mapping[str, Any]], key: str, facts: Sequence[str]
) -> Row:
    """Return the row of one task.

    Args:
        results: the result of each turn.
        key: name of the samples.
        facts: names of further numbers.
    """
    return Row(
        unit="s",
        samples=[result[key] for result in results],
        facts={
            fact: statistics.median(result[fact] for result in results)
            for fact in facts
        },
    )


def _make_run_row(results: Sequence[Mapping[str, Any]]) -> Row:
    """Return the row of one number of threads and one batch size.

    Args:
        results: its part of each turn's result.
    """
    times = [time for result in results for time in result["times"]]
    facts = {
        **{f"p{part}": float(np.percentile(times, part)) for part in (50, 90, 99)},
        "throughput": statistics.median(result["throughput"] for result in results),
        "threads": results[0]["threads"],
    }
    if results[0]["batch"] is not None:
        facts["batch"] = results[0]["batch"]

    medians = [statistics.median(result["times"]) for result in results]
    return Row(unit="s", samples=medians, facts=facts)
