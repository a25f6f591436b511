"""Pages of the documentation: find and read them.

A wheel has them beside this module. An editable install reads those of the repository,
where `hatch_build.py` takes them for a wheel; it runs this module without the core.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

FOLDERS = (Path(__file__).parent / "docs", Path(__file__).parents[4] / "docs")
"""Folders in which pages may be: that of a wheel, that of the repository."""

NAVIGATION = "mkdocs.yml"
"""File that lists the pages, in a wheel's folder of pages or beside that of the
repository.
"""

_LEFT_OUT = ("Contributing", "reference/")
"""Beginnings of parts and paths: of pages about the work on epctx itself, and of those
made of docstrings, which only a site shows.
"""

_NOT_SHOWN = re.compile(r"\A---\n.*?\n---\n+|^<!--.*?-->\n+", re.DOTALL | re.MULTILINE)
"""Front matter and comments, which only the site and tests read."""
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
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
        text: Markdown of that one, or of the part below the heading that was named.
    """

    pages: list[PageFacts]
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """Page of the documentation, or a part of one.

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
        return self._find_headings()[0][2]

    @property
    def summary(self) -> str:
        """The first sentence, without marks of Markdown."""
        sentence = _SENTENCE.search(_LINK.sub(r"\1", self.text))
        words = sentence[1].split() if sentence else []
        return f"{' '.join(words)}.".replace("*", "")

    def split(self) -> dict[str, Page]:
        """Return the part below each heading, with the headings below that one, by its
        anchor in links.
        """
        parts: dict[str, Page] = {}
        headings = self._find_headings()
        for heading in headings:
            start = heading.start()
            ends = [
                other.start()
                for other in headings
                if other.start() > start and len(other[1]) <= len(heading[1])
            ]
            end = min(ends, default=None)
            text = self.text[start:end].rstrip()
            parts[make_anchor(heading[2])] = replace(self, text=text)
        return parts

    def _find_headings(self) -> list[re.Match[str]]:
        # In a block of code, a comment looks like a heading.
        prose = _FENCE.sub(lambda block: "-" * len(block[0]), self.text)
        return list(_HEADING.finditer(prose))

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


def make_anchor(words: str) -> str:
    """Return the name that a heading has in links, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")


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
        if part.startswith(_LEFT_OUT) or path.startswith(_LEFT_OUT):
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
