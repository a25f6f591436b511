"""Measurement of one column: a rehearsal, a turn as often as it is asked for, and the
rows that result.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_bench.children import Request, Task, ask_child
from epctx_bench.columns import ONNXRUNTIME, Column, Row, is_cpu
from epctx_bench.page_cache import read_files
from epctx_bench.ratio import find_median, summarize
from epctx_core.errors import EpctxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from epctx_bench.settings import BenchSettings

_COMPILE_FACTS = ("cpu_seconds", "peak_bytes", "bytes_written")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Results of one turn of one column.

    Attributes:
        compile: the result of the process that compiled; None without one.
        cold: that of the one that loaded from the disk.
        use: that of the one that loaded and ran.
    """

    compile: Mapping[str, Any] | None
    cold: Mapping[str, Any]
    use: Mapping[str, Any]


class ColumnMeasurement:
    """Measurement of one column.

    Args:
        column: what is measured.
        settings: settings of all columns.
        folder: an empty folder for the context model.

    Attributes:
        error: the reason for which it was given up; None as long as it goes on.
        notes: sentences about how it was measured.
        simulated: names of its EPs that are simulated, if they took a node.
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
        self.simulated: list[str] = []
        self._uses_eps = True
        self._settings = settings
        self._folder = folder
        self._model = column.model
        self._files = column.files
        self._modules: dict[Task, list[str]] = {}
        self._turns: list[Turn] = []

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
            self._modules["use"] = []
            return

        with self._give_up_on_error():
            if self.column.compiles:
                self._rehearse_compile()
            once = replace(self._settings, runs=1)
            result = self._ask("use", model=str(self._model), settings=once)
            self._modules["use"] = result["modules"]
            self.simulated = result["simulated"] if self._uses_eps else []
            if result["real"]:
                names = " and ".join(result["real"])
                self.notes.append(f"not compared with the own session of {names}")

    def _rehearse_compile(self) -> None:
        output = self._folder / f"{self.column.model.stem}_ctx.onnx"
        result = self._ask("compile", output=str(output))
        self._modules["compile"] = result["modules"]
        self._model = output
        self._uses_eps = result["compiled"]
        self._files = tuple(self._folder / name for name in result["files"])
        if not result["compiled"]:
            self.notes.append("no EP took a node: the CPU EP runs the whole model")
            return

        left = sum(n for ep, n in result["assignments"].items() if is_cpu(ep))
        total = sum(result["assignments"].values())
        if left:
            self.notes.append(f"{left} of {total} nodes are left to the CPU EP")

    def measure_turn(self) -> None:
        """Measure the column once; nothing after an error."""
        if self.error is not None:
            return
        with self._give_up_on_error():
            compiled = self._compile_anew() if self.column.compiles else None
            loaded = {"model": str(self._model), "modules": self._modules["use"]}
            cold = self._ask("load", dropped=list(map(str, self._files)), **loaded)
            # A cold load maps files and reads some of their pages only.
            read_files(self._files)
            use = self._ask("use", **loaded)
            self._turns.append(Turn(compile=compiled, cold=cold, use=use))

    def _compile_anew(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            output = Path(folder, f"{self.column.model.stem}_ctx.onnx")
            return self._ask(
                "compile", output=str(output), modules=self._modules["compile"]
            )

    def compute_outputs(self, path: Path) -> dict[str, np.ndarray]:
        """Return the outputs by name, written to a file first.

        Raises:
            Fail: the process failed.
        """
        self._ask(
            "compute",
            model=str(self._model),
            output=str(path),
            modules=self._modules["use"],
        )
        with np.load(path) as stored:
            return {name: stored[name] for name in stored.files}

    def _ask(self, task: Task, **changes: Any) -> dict[str, Any]:
        """Return what a measuring process answers; `changes` are further attributes of
        the request.
        """
        column = self.column
        facts: dict[str, Any] = {
            "task": task,
            "engine": column.engine,
            "model": str(column.model),
            "eps": [(ep, column.options.get(ep, {})) for ep in column.eps],
            "settings": self._settings,
        }
        request = Request(**{**facts, **changes})
        if task != "compile" and column.compiles:
            # The compiled model has these lengths already.
            settings = replace(request.settings, free_dimensions={})
            request = replace(request, settings=settings)
        return ask_child(request)

    def make_rows(self) -> dict[str, Row]:
        """Return the rows of all turns; none after an error."""
        if self.error is not None or not self._turns:
            return {}
        turns = self._turns
        rows = {}
        if self.column.compiles:
            rows["compile"] = _make_compile_row([t.compile or {} for t in turns])
        rows["load_cold"] = Row(unit="s", samples=[t.cold["seconds"] for t in turns])
        rows["load_warm"] = Row(unit="s", samples=[t.use["load"] for t in turns])
        rows["first_result"] = Row(
            unit="s", samples=[t.use["first_result"] for t in turns]
        )
        for runs in zip(*(t.use["runs"] for t in turns), strict=True):
            name = "run"
            if name in rows:
                name += f"_threads_{runs[0]['threads']}"
                name += "" if runs[0]["batch"] is None else f"_batch_{runs[0]['batch']}"
            rows[name] = _make_run_row(runs)
        rows["memory"] = Row(unit="bytes", samples=[t.use["peak_bytes"] for t in turns])
        return rows

    def list_notes(self) -> list[str]:
        """Return all notes, each once."""
        kept = [f"load_cold: {t.cold['kept']}" for t in self._turns if t.cold["kept"]]

        fixed = []
        asks_for_batches = max(self._settings.batch_sizes) > 1
        if asks_for_batches and any(not t.use["open_batch"] for t in self._turns):
            fixed = ["batch sizes have no effect: the model fixes its first dimension"]
        return list(dict.fromkeys([*self.notes, *fixed, *kept]))


def _make_compile_row(results: list[Mapping[str, Any]]) -> Row:
    return Row(
        unit="s",
        samples=[result["seconds"] for result in results],
        facts={
            fact: find_median([result[fact] for result in results])
            for fact in _COMPILE_FACTS
        },
    )


def _make_run_row(results: Sequence[Mapping[str, Any]]) -> Row:
    """Return the row of one number of threads and one batch size.

    Args:
        results: its part of each turn's result.
    """
    summary = summarize([time for result in results for time in result["times"]])
    facts = {
        "p50": summary.p50,
        "p90": summary.p90,
        "p99": summary.p99,
        "throughput": find_median([result["throughput"] for result in results]),
        "threads": results[0]["threads"],
    }
    if results[0]["batch"] is not None:
        facts["batch"] = results[0]["batch"]

    medians = [find_median(result["times"]) for result in results]
    return Row(unit="s", samples=medians, facts=facts)
