"""Names in `epctx plugins new` of README.md and docs/: of no plugin that a page makes."""

from __future__ import annotations

import re

from support.folders import ROOT

PAGES = {
    path: path.read_text("utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
MADE = re.compile(r"epctx plugins new ([a-z][a-z-]*)")


def test_no_page_makes_by_hand_what_another_page_makes_of_the_template():
    words = {word for text in PAGES.values() for word in MADE.findall(text)}
    taken = {
        (path.name, name)
        for path, text in PAGES.items()
        for word in words
        for name in (
            f"{word.capitalize()}ExecutionProvider",
            f'name = "epctx-{word}"',
            f'\n{word} = "',
        )
        if name in text
    }

    assert words
    assert taken == set()
