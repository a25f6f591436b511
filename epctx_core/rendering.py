"""Reports as text, and as HTML for notebooks: a title above tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epctx_core.errors import one_line


def render(
    title: str, facts: Mapping[str, Any], *, as_html: bool = False, **tables: str
) -> str:
    """Return facts as text, or as HTML, which is escaped: models have any names.

    Args:
        title: the line above the tables.
        facts: a report as JSON; its objects, and lists of objects, are tables.
        as_html: True for HTML.
        **tables: those to show, unless they are empty, each with its columns.
    """
    blocks: list[list[Any]] = [[[title]]]
    for key, columns in tables.items():
        value = facts[key]
        names = columns.split()
        if value:
            rows = (
                value.items()
                if isinstance(value, Mapping)
                else (map(row.get, names) for row in value)
            )
            blocks.append([names, *rows])

    lay_out = _make_html if as_html else _align
    return "\n\n".join(
        lay_out([[one_line(str(cell)) for cell in row] for row in block])
        for block in blocks
    )


def _align(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _make_html(rows: list[list[str]]) -> str:
    from html import escape

    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    # No cell has "td>": it is escaped.
    lines[0] = lines[0].replace("td>", "th>")
    return f"<table><tr>{'</tr><tr>'.join(lines)}</tr></table>"
