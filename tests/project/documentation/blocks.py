"""The code in a page: files that it has the reader write, snippets in between, and
commands.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from textwrap import indent

from support.installed import install_distribution
from support.pages import read_page

_BLOCK = re.compile(
    (
        r"(?:^(?P<adds>Add to the class in "
        r")?`(?P<file>[\w./-]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$"
    ),
    re.MULTILINE | re.DOTALL,
)


def blocks(*pages: str) -> list[re.Match[str]]:
    """Return the blocks of pages, in order, with `adds`, `file`, `kind` and `text`."""
    return [block for page in pages for block in _BLOCK.finditer(read_page(page))]


def files(*pages: str) -> dict[str, str]:
    """Return the files that a reader of pages ends with; "Add to the class in" means at
    the end, moved to the right.
    """
    found: dict[str, str] = {}
    for block in blocks(*pages):
        if block["file"]:
            text = block["text"]
            if block["adds"]:
                text = f"{found[block['file']]}\n{indent(text, '    ')}"
            found[block["file"]] = text
    return found


def snippets(page: str) -> list[str]:
    """Return the Python that belongs to no file, in order."""
    return [
        block["text"]
        for block in blocks(page)
        if block["kind"] == "python" and not block["file"]
    ]


def commands(*pages: str) -> list[str]:
    """Return the commands of pages, in order."""
    consoles = [block["text"] for block in blocks(*pages) if block["kind"] == "console"]
    return [
        line[2:]
        for text in consoles
        for line in text.splitlines()
        if line.startswith("$ ")
    ]


def sections(page: str, level: int = 2) -> dict[str, str]:
    """Return heading to text, for the headings of one level; the backquotes around a
    name are left out.
    """
    mark = "#" * level
    parts = re.split(rf"^{mark} (.+)$", read_page(page), flags=re.MULTILINE)
    return {
        title.strip().strip("`"): text
        for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def install(page: str, folder: Path) -> None:
    """Write the files of a page into a folder, with the metadata that an installation
    of its `pyproject.toml` leaves.
    """
    for name, text in files(page).items():
        (folder / name).write_text(text)
    project = tomllib.loads(files(page)["pyproject.toml"])["project"]
    install_distribution(
        folder, project["name"], project["entry-points"], version=project["version"]
    )
