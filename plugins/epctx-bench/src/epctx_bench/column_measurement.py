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

from epctx_bench.children import Answer, Request, Rows, Task, ask_child
from epctx_bench.columns import (
    ONNXRUNTIME,
    VENDOR,
    Column,
    ColumnReport,
    Row,
)
from epctx_bench.page_cache import read_files
from epctx_core.errors import EpctxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epctx_bench.settings import BenchSettings


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
        self._settings = settings
        self._folder = folder
        self._model = column.model
        self._files = column.files
        self._modules: dict[Task, list[str]] = {}
        self._turns: list[Rows] = []

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
            uses_eps = True
            if self.column.compiles:
                self._folder.mkdir()
                compiled = self._compile_into(self._folder)
                self._modules["compile"] = compiled["modules"]
                self._model = self._name_output(self._folder)
                self._files = tuple(self._folder / name for name in compiled["files"])
                uses_eps = compiled["uses_eps"]
            result = self._ask("use", runs=1)
            self._modules["use"] = result["modules"]
            self._simulated = result["simulated"] if uses_eps else []

    def measure_turn(self) -> None:
        """Measure the column once; nothing after an error."""
        if self.error is not None:
            return
        with self._give_up_on_error():
            rows: Rows = {}
            if self.column.compiles:
                with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                    rows |= self._compile_into(Path(folder))["rows"]
            rows |= self._ask("load")["rows"]
            # A cold load maps files and reads some of their pages only.
            read_files(self._files)
            rows |= self._ask("use")["rows"]
            # Options of a vendor's session in onnxruntime are made by epctx, whose
            # imports would count.
            if self.column.engine != VENDOR:
                rows |= self._ask("start")["rows"]
            self._turns.append(rows)

    def _name_output(self, folder: Path) -> Path:
        return folder / f"{self.column.model.stem}_ctx.onnx"

    def _compile_into(self, folder: Path) -> Answer:
        return self._ask("compile", output=str(self._name_output(folder)))

    def _ask(self, task: Task, *, output: str = "", **changes: Any) -> Answer:
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
        answer = ask_child(
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
        self.notes += answer.get("notes", ())
        return answer

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
            notes=list(dict.fromkeys(self.notes)),
            simulated=self._simulated,
        )

    def _make_rows(self) -> dict[str, Row]:
        """Return the rows of all turns: runs behind other times, memory last."""
        names = sorted(
            self._turns[0] if self._turns else (),
            key=lambda name: (name == "memory", name.startswith("run")),
        )
        return {name: _make_row([turn[name] for turn in self._turns]) for name in names}


def _make_row(results: Sequence[Mapping[str, Any]]) -> Row:
    """Return a row.

    Args:
        results: its numbers of each turn: the sample, `seconds` or `bytes`, facts, and
            for steady runs their `times`.
    """
    sample = "seconds" if "seconds" in results[0] else "bytes"
    facts = {
        # Of an even number of turns too, it is what one of them measured.
        fact: statistics.median_low(result[fact] for result in results)
        for fact in results[0]
        if fact not in {sample, "times"}
    }
    times = [time for result in results for time in result.get("times", ())]
    if times:
        for part in (50, 90, 99):
            facts[f"p{part}"] = float(np.percentile(times, part))
    return Row(
        unit="s" if sample == "seconds" else "bytes",
        samples=[result[sample] for result in results],
        facts=facts,
    )
