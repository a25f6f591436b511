"""The tables of differences in `differences-*.md`, row by row."""

from __future__ import annotations

import re

from support.pages import DOCS

HEAD = "| entries | matter |"


def list_rows() -> list[list[str]]:
    """Return the cells of each row of the pages' tables of differences."""
    pages = [page.read_text("utf-8") for page in sorted(DOCS.rglob("differences-*.md"))]
    tables = [part.split("\n\n")[0] for page in pages for part in page.split(HEAD)[1:]]
    rows = [row for table in tables for row in table.splitlines()[2:]]
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows
    ]


def listed_matters() -> list[str]:
    """Return the second column of the tables, which names each difference."""
    return [row[1] for row in list_rows()]
