"""`bench`: measures models in columns that take turns."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from epctx_bench.children import Answer, Request, ask_child
from epctx_bench.column_measurement import ColumnMeasurement
from epctx_bench.columns import (
    EPCTX,
    ONNXRUNTIME,
    VENDOR,
    Column,
    ColumnReport,
    Eps,
    Scan,
    is_cpu,
    scan_columns,
)
from epctx_bench.machine import describe_machine
from epctx_bench.noise import Watcher
from epctx_bench.report import BenchReport
from epctx_bench.settings import BenchSettings
from epctx_core import get_available_providers, inspect_model
from epctx_core.errors import Fail, InvalidArgument

ModelPath: TypeAlias = "str | os.PathLike[str]"
Progress: TypeAlias = "Callable[[str, int, int], None]"
"""Called with the model's name, the finished parts, and all parts."""


def bench(
    models: ModelPath | Sequence[ModelPath],
    *,
    eps: Eps = (),
    provider_options: Scan | None = None,
    settings: BenchSettings | None = None,
    progress: Progress | None = None,
) -> BenchReport:
    """Measure compiling, loading and running of models.

    Every measurement takes place in a fresh process. All columns of a model take turns.

    Args:
        models: plain models, which are compiled and loaded, and context models, which
            are loaded.
        eps: EPs of the columns: a name for a column of its own, or several names in
            order of priority for one column. Empty for a column of each installed EP;
            a context model finds its EPs itself.
        provider_options: options by EP and key. An option with several values gives a
            column for each.
        settings: numbers of turns and runs, limits, and more.
        progress: called with (model, done, total).

    Returns:
        The report. A column that fails has its error there; the others go on.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: a model is missing or not a model.
        InvalidArgument: no model, no EP, or options of an EP that has no column.
        Fail: Python keeps no byte code.

    Examples:
        >>> report = bench("model.onnx", eps=["QNN"])
        >>> report.columns[0].rows["load_warm"].samples
        [0.0031, 0.0029, 0.0030, 0.0030, 0.0031]
    """
    _require_byte_code()
    settings = settings or BenchSettings()
    paths = _list_paths(models)
    # Models of one stem are labelled by their paths.
    stems = Counter(path.stem for path in paths)
    labels = [path.stem if stems[path.stem] == 1 else str(path) for path in paths]
    plans = [
        _plan_model(path, label, eps, provider_options, settings)
        for path, label in zip(paths, labels, strict=True)
    ]
    planned = [column for plan in plans for column in plan]
    described = _describe_eps(planned, settings)
    _refuse_secret_scan(planned, described)
    share = settings.time_limit / len(paths)

    columns: list[ColumnReport] = []
    # One verdict for all models: whoever disturbed one turn can disturb the next.
    with Watcher() as watcher:
        for plan in plans:
            with tempfile.TemporaryDirectory(prefix="epctx-bench-") as folder:
                measurements = [
                    ColumnMeasurement(
                        column,
                        settings=settings,
                        folder=Path(folder, str(index)),
                    )
                    for index, column in enumerate(_add_vendors(plan, described))
                ]
                _take_turns(measurements, settings, share, progress)
                columns += _report_columns(measurements, described)

    return BenchReport(
        machine=describe_machine(described["distributions"]),
        settings=settings.as_dict(),
        noise=watcher.noise,
        columns=columns,
    )


def _require_byte_code() -> None:
    """Raise Fail where Python keeps no byte code: a start takes three times as long if
    every process compiles its modules.
    """
    if sys.dont_write_bytecode or os.environ.get("PYTHONDONTWRITEBYTECODE"):
        raise Fail(
            "nothing was measured: Python keeps no byte code, so every process would "
            "compile its modules again.",
            hint="Unset PYTHONDONTWRITEBYTECODE, and leave out -B.",
        )


def _list_paths(models: ModelPath | Sequence[ModelPath]) -> list[Path]:
    given = [models] if isinstance(models, (str, os.PathLike)) else list(models)
    if not given:
        raise InvalidArgument(
            "there is no model to measure.", hint="Give at least one."
        )
    return list(dict.fromkeys(map(Path, given)))


def _plan_model(
    path: Path, label: str, eps: Eps, options: Scan | None, settings: BenchSettings
) -> list[Column]:
    """Return the columns of a model."""
    described = inspect_model(path)
    base = Column(
        model=path,
        label=label,
        files=(path, *(path.parent / name for name in described.required_files)),
        compiles=not described.ep_contexts,
    )
    if described.ep_contexts:
        return scan_columns(base, eps, options) or [base]

    columns = scan_columns(base, eps or _list_installed_eps(), options)
    if settings.onnxruntime and find_spec("onnxruntime") is not None:
        columns.append(replace(base, engine=ONNXRUNTIME, compiles=False))
    return columns


def _list_installed_eps() -> list[str]:
    installed = [name for name in get_available_providers() if not is_cpu(name)]
    if not installed:
        raise InvalidArgument(
            "no Execution Provider is installed that could compile the model.",
            hint="Install a plugin, or measure the CPU EP: --ep CPU, eps=['CPU'].",
        )
    return installed


def _describe_eps(columns: Sequence[Column], settings: BenchSettings) -> Answer:
    """Return the plugins of the EPs, their secret options, and the EPs of onnxruntime.

    A process of its own loads the plugins, which may crash it.
    """
    eps = dict.fromkeys(ep for column in columns for ep in column.eps)
    request = Request(
        task="describe",
        engine=EPCTX,
        eps=[(ep, {}) for ep in eps if not is_cpu(ep)],
        settings=settings,
    )
    if not request.eps:
        return {"distributions": [], "secret": [], "native": []}
    return ask_child(request)


def _add_vendors(columns: Sequence[Column], described: Answer) -> Iterator[Column]:
    """Yield the columns, each with onnxruntime's own session behind it where its EP is
    a vendor's in onnxruntime.
    """
    for column in columns:
        yield column
        if (
            column.compiles
            and len(column.eps) == 1
            and column.eps[0] in described["native"]
        ):
            yield replace(column, engine=VENDOR)


def _take_turns(
    measurements: Sequence[ColumnMeasurement],
    settings: BenchSettings,
    seconds: float,
    progress: Progress | None,
) -> None:
    """Rehearse all columns, then measure each once in every turn."""
    start = time.monotonic()
    total = len(measurements) * (settings.turns + 1)
    parts = itertools.count(1)

    def advance() -> None:
        if progress is not None:
            progress(measurements[0].column.model.stem, next(parts), total)

    for measurement in measurements:
        measurement.rehearse()
        advance()
    for turn in range(settings.turns):
        begun = time.monotonic()
        first = turn % len(measurements)
        # Rotated, so that no column always follows the same other one's load.
        for measurement in (*measurements[first:], *measurements[:first]):
            measurement.measure_turn()
            advance()
        now = time.monotonic()
        # The next turn takes as long as this one.
        end = now + (now - begun)
        if turn + 1 < settings.turns and end - start > seconds:
            for measurement in measurements:
                measurement.notes.append(
                    f"ended after turn {turn + 1} of {settings.turns} by the time limit"
                )
            return


def _report_columns(
    measurements: Sequence[ColumnMeasurement],
    described: Answer,
) -> Iterator[ColumnReport]:
    """Yield the reports of a model's columns."""
    peer = next(
        (m.column.name for m in measurements if m.column.engine == ONNXRUNTIME), None
    )
    for measurement in measurements:
        shown = {
            ep: {
                key: "[secret]" if _is_secret(ep, key, described) else value
                for key, value in values.items()
            }
            for ep, values in measurement.column.options.items()
        }
        yield measurement.report(shown, peer)


def _refuse_secret_scan(columns: Sequence[Column], described: Answer) -> None:
    """Raise InvalidArgument for several values of a secret option: names of columns,
    which are printed and stored, have the values.
    """
    for column in columns:
        for ep, key in column.scanned:
            if _is_secret(ep, key, described):
                raise InvalidArgument(
                    f"the option {key!r} of {ep} is secret and has several values; "
                    "columns are named after them.",
                    hint="Measure each value by a call of its own.",
                )


def _is_secret(ep: str, key: str, described: Answer) -> bool:
    # An option may be given as `ep.<ep name>.<key>`.
    return [ep, key.rpartition(".")[2]] in described["secret"]
