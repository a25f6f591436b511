"""The tables of pages that come from the code; `make docs` writes them anew."""

from __future__ import annotations

from pathlib import Path

from epctx_core.options.table import SESSION_OPTIONS

DOCS = Path(__file__).parent.parent.parent / "docs"


def options_table() -> str:
    """Return the table of session options, a row for each key."""
    rows = [
        (
            f"`{option.key}`",
            f"`{option.default}`" if option.default else "empty",
            option.allowed,
            option.doc,
            option.errors,
            option.cache.value,
        )
        for option in SESSION_OPTIONS.values()
    ]
    head = ("key", "default", "allowed", "meaning", "error", "cache")
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, *rows)).replace(
        "\n", "\n|" + "---|" * 6 + "\n", 1
    )


def with_tables(page: str) -> str:
    """Return the text of docs/options.md with the table as the code has it."""
    before, begin, rest = page.partition("| key | default |")
    return before + options_table() + rest[rest.index("\n\n") + 1 :] if begin else page


if __name__ == "__main__":
    path = DOCS / "options.md"
    path.write_text(with_tables(path.read_text("utf-8")), "utf-8")
