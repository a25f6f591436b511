"""Report of a measurement: its JSON, and its tables and sentences in Markdown and
HTML.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any

from epctx_bench.saved import SCHEMA, save_report
from epctx_bench.sentences import LEGEND, describe_columns, describe_machine
from epctx_bench.tables import Table, make_table
from epctx_core.errors import one_line

if TYPE_CHECKING:
    from epctx_bench.columns import ColumnReport
    from epctx_bench.noise import Noise


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
        return "\n\n".join(
            block if isinstance(block, str) else block.to_markdown()
            for block in (*self.blocks(), *self._list_warnings())
        )

    def _repr_html_(self) -> str:
        """Return the tables and sentences as a notebook shows them."""
        return "\n".join(
            f"<p>{html.escape(block)}</p>"
            if isinstance(block, str)
            else block.to_html()
            for block in (*self.blocks(), *self._list_warnings())
        )

    def blocks(self) -> Iterator[str | Table]:
        """Yield sentences and tables in order, without EPs that are simulated and
        columns that failed.
        """
        yield from describe_machine(self.machine)
        for _, group in groupby(self.columns, lambda each: each.column.model):
            columns = list(group)
            table = make_table(columns)
            if table.rows:
                yield table
            yield from map(one_line, describe_columns(columns, self.noise))

        yield LEGEND
        if self.noise.busy:
            yield one_line(self.noise.reason)

    def _list_warnings(self) -> Iterator[str]:
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
