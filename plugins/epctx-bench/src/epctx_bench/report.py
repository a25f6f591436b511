"""Report of a measurement: columns with rows of samples, and its JSON."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from epctx_bench.saved import SCHEMA, save_report
from epctx_core.errors import one_line

if TYPE_CHECKING:
    from epctx_bench.columns import Column
    from epctx_bench.noise import Noise
    from epctx_bench.tables import Table


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
        name: its name, unique in the report.
        options: its EPs' options; secret values are left out.
        peer: name of the column of onnxruntime for the same model, or None.
        rows: rows by name, see `epctx docs benchmarking`; empty after an error.
        error: the reason for which the column has no rows, or None.
        notes: sentences about how it was measured.
        simulated: names of its EPs that are simulated.
        check: name of the reference, `max_abs` and `max_rel` of all outputs; None
            without a check.
    """

    column: Column
    name: str
    options: Mapping[str, Mapping[str, str]]
    peer: str | None = None
    rows: Mapping[str, Row] = field(default_factory=dict)
    error: str | None = None
    notes: Sequence[str] = ()
    simulated: Sequence[str] = ()
    check: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the column as JSON."""
        return {
            "name": self.name,
            "model": str(self.column.model),
            "eps": list(self.column.eps),
            "options": {ep: dict(values) for ep, values in self.options.items()},
            "engine": self.column.engine,
            "peer": self.peer,
            "error": self.error,
            "notes": list(self.notes),
            "simulated": list(self.simulated),
            "check": self.check
            and {
                # JSON has no infinity.
                fact: None if value == math.inf else value
                for fact, value in self.check.items()
            },
            "rows": {name: row.as_dict() for name, row in self.rows.items()},
        }


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """Results of `epctx_bench.bench`.

    Attributes:
        machine: processor, system and versions.
        settings: the settings of the measurement.
        noise: whether other programs used the processors meanwhile.
        columns: the results, by model.
    """

    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    noise: Noise
    columns: Sequence[ColumnReport]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON, see `read_schema`."""
        return {
            "schema": SCHEMA,
            "machine": dict(self.machine),
            "settings": dict(self.settings),
            "noise": self.noise.as_dict(),
            "columns": [column.as_dict() for column in self.columns],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file, for a later comparison.

        Raises:
            Fail: the file cannot be written.
        """
        save_report(self.as_dict(), path)

    def __str__(self) -> str:
        """Return the tables and sentences in Markdown."""
        blocks = [
            block if isinstance(block, str) else block.to_markdown()
            for block in self._list_blocks()
        ]
        return "\n\n".join(blocks)

    def _repr_html_(self) -> str:
        """Return the tables and sentences as a notebook shows them."""
        blocks = [
            f"<p>{html.escape(block.lstrip('# '))}</p>"
            if isinstance(block, str)
            else block.to_html()
            for block in self._list_blocks()
        ]
        return "\n".join(blocks)

    def _list_blocks(self) -> Iterator[str | Table]:
        """Yield paragraphs and tables in order."""
        from epctx_bench.sentences import LEGEND, describe_columns, describe_machine
        from epctx_bench.tables import group_by_model, make_tables, make_title

        yield ". ".join([*describe_machine(self.machine), LEGEND])
        for model, columns in group_by_model(self.columns).items():
            yield f"### {make_title(model, columns)}"
            yield from make_tables(columns)
            yield from map(one_line, describe_columns(columns, self.noise))

        if self.noise.busy:
            yield one_line(self.noise.reason)
        simulated = sorted({ep for each in self.columns for ep in each.simulated})
        if simulated:
            yield (
                f"Simulated: {', '.join(simulated)}; these times are not those of a "
                "vendor's hardware."
            )
        for column in self.columns:
            if column.error is not None:
                yield one_line(f"{column.name} failed: {column.error}")


def read_schema() -> dict[str, Any]:
    """Return the JSON Schema of `BenchReport.as_dict`."""
    text = files("epctx_bench").joinpath("schemas/bench.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
