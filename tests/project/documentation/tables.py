"""The tables of pages that come from the code; `make tables` writes them anew."""

from __future__ import annotations

from support.pages import FILES

from epctx_core.options.table import SESSION_OPTIONS

COLUMNS = ("key", "default", "allowed", "meaning", "error", "cache")
"""Columns of the table of session options; `error` is written on the page, all others
come from the rows.
"""


def options_table(page: str) -> str:
    """Return the table of session options, a row for each key, with the errors that a
    page has.
    """
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in page.splitlines()
    ]
    errors = {
        row[0]: row[COLUMNS.index("error")] for row in rows if len(row) == len(COLUMNS)
    }
    rows = [
        [
            f"`{option.key}`",
            f"`{option.default}`" if option.default else "empty",
            option.allowed,
            option.doc,
            errors.get(f"`{option.key}`", "none"),
            option.cache.value,
        ]
        for option in SESSION_OPTIONS.values()
    ]
    lines = [f"| {' | '.join(row)} |\n" for row in (COLUMNS, *rows)]
    return "".join([lines[0], "|" + "---|" * len(COLUMNS) + "\n", *lines[1:]])


def with_tables(page: str) -> str:
    """Return the text of options.md with the table as the code has it."""
    before, begin, rest = page.partition("| key | default |")
    return (
        before + options_table(page) + rest[rest.index("\n\n") + 1 :] if begin else page
    )


if __name__ == "__main__":
    path = FILES["options.md"]
    path.write_text(with_tables(path.read_text("utf-8")), "utf-8")
