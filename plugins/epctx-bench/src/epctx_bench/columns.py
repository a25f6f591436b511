"""Columns of a report: one for each combination of a model, EPs and their options, and
the results of each.

Knows neither how a column is measured nor how it is shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from epctx_core.errors import InvalidArgument

Eps: TypeAlias = "Sequence[str | Sequence[str]]"
"""EPs of the columns: a name, or several names in order of priority."""
Scan: TypeAlias = "Mapping[str, Mapping[str, str | Sequence[str]]]"
"""Option values by EP and key; several values make a column each."""
CPU_EP = "CPUExecutionProvider"
EPCTX = "epctx"
ONNXRUNTIME = "onnxruntime"
VENDOR = "vendor"
"""Engines: epctx; onnxruntime's CPU session; onnxruntime's session with the vendor's
EP.
"""
_SUFFIX = "ExecutionProvider"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One way to get results from one model.

    Attributes:
        model: path of the model.
        eps: EP names in order of priority; empty for the EPs of a context model, and
            for onnxruntime.
        options: option values by EP and key.
        scanned: the EP and key of each option that has several values.
        engine: `epctx`, `onnxruntime` or `vendor`.
        compiles: True if the model is compiled first.
        label: the model's name in a report.
        files: files of the model.
    """

    model: Path
    eps: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    scanned: tuple[tuple[str, str], ...] = ()
    engine: str = EPCTX
    compiles: bool = True
    label: str = ""
    files: tuple[Path, ...] = ()

    @property
    def heading(self) -> str:
        """EPs and scanned values, in few words."""
        # There is one real EP of a name, so its distribution is left out.
        eps = [*self.eps]
        if self.engine == VENDOR:
            eps = [ep.rpartition(":")[2] for ep in self.eps]
        values = [self.options[ep][key] for ep, key in self.scanned]
        return self._describe(eps, values)

    @property
    def name(self) -> str:
        """Model, EPs and scanned options; unique among the columns of one model."""
        values = []
        for ep, key in self.scanned:
            values.append(f"{key}={self.options[ep][key]}")
        return f"{self.label} {self._describe(self.eps, values)}"

    def _describe(self, eps: Sequence[str], values: Sequence[str]) -> str:
        """Return whose session it is, with EPs and values."""
        if self.engine == ONNXRUNTIME:
            return self.engine
        names = "+".join(map(shorten, eps)) or "context model"
        owner = ("in onnxruntime",) if self.engine == VENDOR else ()
        return " ".join([names, *values, *owner])


@dataclass(frozen=True, kw_only=True)
class Row:
    """Samples of one measure in one column.

    Attributes:
        unit: `s` or `bytes`.
        samples: one for each turn, in order; sample i of every column was taken in
            turn i.
        facts: further numbers, such as `p99` or `cpu_seconds`.
    """

    unit: str
    samples: Sequence[float]
    facts: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON."""
        return {"unit": self.unit, "samples": list(self.samples), **self.facts}


@dataclass(frozen=True, kw_only=True)
class ColumnReport:
    """Results of one column.

    Attributes:
        column: what was measured.
        options: its EPs' options; secret values are left out.
        peer: name of the column of onnxruntime for the same model, or None.
        rows: rows by name, see `epctx docs benchmarking`; empty after an error.
        error: the reason for which the column has no rows, or None.
        notes: sentences about how it was measured.
        simulated: names of its EPs that are simulated.
    """

    column: Column
    options: Mapping[str, Mapping[str, str]]
    peer: str | None = None
    rows: Mapping[str, Row] = field(default_factory=dict)
    error: str | None = None
    notes: Sequence[str] = ()
    simulated: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Its name, unique in the report."""
        return self.column.name

    def as_dict(self) -> dict[str, Any]:
        """Return the column as JSON."""
        return {
            "name": self.name,
            "model": str(self.column.model),
            "eps": list(self.column.eps),
            "options": dict(self.options),
            "engine": self.column.engine,
            "peer": self.peer,
            "error": self.error,
            "notes": list(self.notes),
            "simulated": list(self.simulated),
            # Readers of schema 1 expect the key.
            "check": None,
            "rows": {name: row.as_dict() for name, row in self.rows.items()},
        }


def shorten(ep: str) -> str:
    """Return an EP's name as it is typed, such as `QNN`."""
    return ep.removesuffix(_SUFFIX) or ep


def is_cpu(ep: str) -> bool:
    """Return whether an EP is the CPU EP, however it is spelled."""
    return shorten(ep).casefold() == shorten(CPU_EP).casefold()


def scan_columns(base: Column, eps: Eps, options: Scan | None) -> list[Column]:
    """Return epctx's columns of a model, a column for each value of a scan.

    Args:
        base: column of the model, without EPs.
        eps: EPs, in the order of the columns.
        options: option values; each belongs to every column that has its EP.

    Raises:
        InvalidArgument: options of an EP that has no column, or an option without a
            value.
    """
    mixes = [(each,) if isinstance(each, str) else tuple(each) for each in eps]
    known = {ep for mix in mixes for ep in mix}
    unknown = [ep for ep in options or {} if ep not in known]
    if unknown:
        raise InvalidArgument(
            f"there are options of {unknown[0]}, which no column has.",
            hint=f"Add {unknown[0]} to the EPs, or leave its options out.",
        )
    return [column for mix in mixes for column in _scan_mix(base, mix, options or {})]


def _scan_mix(base: Column, eps: tuple[str, ...], options: Scan) -> Iterator[Column]:
    """Yield a column for each combination of values."""
    values = {}
    for ep in eps:
        for key, value in options.get(ep, {}).items():
            values[ep, key] = _list_values(ep, key, value)
    scanned = tuple(name for name, each in values.items() if len(each) > 1)
    for combination in itertools.product(*values.values()):
        chosen: dict[str, dict[str, str]] = {ep: {} for ep in eps}
        for (ep, key), value in zip(values, combination, strict=True):
            chosen[ep][key] = value
        yield replace(
            base,
            eps=eps,
            options=chosen,
            scanned=scanned,
            compiles=base.compiles and not all(map(is_cpu, eps)),
        )


def _list_values(ep: str, key: str, value: str | Sequence[str]) -> list[str]:
    values = [value] if isinstance(value, str) else [str(each) for each in value]
    if not values:
        raise InvalidArgument(f"the option {key!r} of {ep} has no value.")
    return list(dict.fromkeys(values))
