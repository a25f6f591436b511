"""Pages of the documentation: find and read them.

A wheel has them beside this module. An editable install reads those of the repository,
where `hatch_build.py` takes them for a wheel; it runs this module without the core.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

FOLDERS = (Path(__file__).parent / "docs", Path(__file__).parents[4] / "docs")
"""Folders in which pages may be: that of a wheel, that of the repository."""

NAVIGATION = "mkdocs.yml"
"""File that lists the pages, in a wheel's folder of pages or beside that of the
repository.
"""

_LEFT_OUT = ("contributing/", "reference/api", "reference/plugin-api")
"""Beginnings of paths: of pages about the work on epctx itself, and of those made of
docstrings, which only a site shows.
"""

_NOT_SHOWN = re.compile(r"\A---\n.*?\n---\n+|^<!--.*?-->\n+", re.DOTALL | re.MULTILINE)
"""Front matter and comments, which only the site and tests read."""
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]+)\]\((?!\w+://)([^)\s#]*)[^)\s]*\)")
"""Link within the documentation: its words, and the path of a file."""
_ENTRY = re.compile(r"^  ((?: {4})*)- (\"[^\"]+\"|[^:]+):(?: (\S+))?$", re.MULTILINE)
_SENTENCE = re.compile(r"^(?!```)([^#|\s].*?)[.:](?=\s|$)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class PageFacts:
    """Page of the documentation.

    Attributes:
        name: its name for `epctx docs`.
        title: its title.
        summary: its first sentence.
        address: its address on the site of the documentation.
    """

    name: str
    title: str
    summary: str
    address: str | None = None


@dataclass(frozen=True, kw_only=True)
class DocsResult:
    """Result of `epctx docs`.

    Attributes:
        pages: all pages; the one that was named.
        text: Markdown of that one.
    """

    pages: list[PageFacts]
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """Page of the documentation.

    Attributes:
        name: as it is typed.
        text: Markdown.
        part: the part of the documentation, such as "How-to: Models"; empty for the
            front page.
    """

    name: str
    text: str
    part: str

    @property
    def title(self) -> str:
        """The first heading."""
        heading = _HEADING.search(self.text)
        return heading[1] if heading else self.name

    @property
    def summary(self) -> str:
        """The first sentence, without marks of Markdown."""
        sentence = _SENTENCE.search(_LINK.sub(r"\1", self.text))
        words = sentence[1].split() if sentence else []
        return f"{' '.join(words)}.".replace("*", "")

    def resolve_links(self, names: Collection[str]) -> str:
        """Return the text with links that lead somewhere without the other files: those
        to pages become plain words.

        Args:
            names: of all pages; those with a link are listed at the end.
        """
        text = _LINK.sub(r"\1", self.text)
        linked: dict[str, None] = {}
        for _, path in _LINK.findall(self.text):
            name = PurePosixPath(path).stem
            if name in names and name != self.name:
                linked[f"`epctx docs {name}`"] = None
        return f"{text}\n\nSee also: {', '.join(linked)}" if linked else text


def find_navigation(folder: Path) -> Path:
    """Return the file that lists the pages of a folder."""
    packed = folder / NAVIGATION
    return packed if packed.is_file() else folder.parent / NAVIGATION


def list_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of the pages for users, each with its part, in the order of the
    documentation.

    Of the navigation only entries of the form `- title: path` and `- title:` are read,
    as there are: YAML would need a library.
    """
    navigation = find_navigation(folder).read_text("utf-8")
    entries = navigation[navigation.index("\nnav:\n") :]
    titles: list[str] = []
    for indent, title, path in _ENTRY.findall(entries):
        level = len(indent) // 4
        part = ": ".join(titles[: min(level, 2)])
        titles[level:] = [title.strip('"')]
        if path.startswith(_LEFT_OUT):
            continue
        file = folder / path
        if file.is_file():
            yield file, part


def read_pages() -> dict[str, Page]:
    """Return the pages by name, in the order of the documentation; none if this
    installation has none.
    """
    folder = next(filter(Path.is_dir, FOLDERS), None)
    pages: dict[str, Page] = {}
    for file, part in list_files(folder) if folder else ():
        text = _NOT_SHOWN.sub("", file.read_text("utf-8"))
        pages[file.stem] = Page(name=file.stem, text=text.rstrip(), part=part)
    return pages
