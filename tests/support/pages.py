"""Pages of the documentation by name."""

from __future__ import annotations

from support.folders import ROOT

DOCS = ROOT / "docs"
FILES = {page.name: page for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]}
"""Page by the name of its file, which no other folder has; README.md is the
repository's.
"""


def read_page(name: str) -> str:
    """Return the text of a page."""
    return FILES[name].read_text("utf-8")
