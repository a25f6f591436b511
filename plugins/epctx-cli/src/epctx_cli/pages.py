"""Pages of the documentation: find and read them.

A wheel has them beside this module. An editable install reads those of the repository,
where `hatch_build.py` takes them for a wheel; it runs this module without the core.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SITE = ""
"""Address of the site that shows these pages, with a slash at its end; nothing points
to it while it is empty.
"""

FOLDERS = (Path(__file__).parent / "docs", Path(__file__).parents[4] / "docs")
"""Folders in which pages may be: that of a wheel, that of the repository."""

NAVIGATION = "mkdocs.yml"
"""File that lists the pages in the order of the site, in a wheel's folder of pages or
beside that of the repository.
"""

_LEFT_OUT = (
    # About the work on epctx itself.
    "architecture-changes.md",
    "architecture-decisions.md",
    "architecture-stages.md",
    "architecture-words.md",
    "architecture.md",
    "benchmarks-large-models.md",
    "benchmarks-loads.md",
    "benchmarks-runs.md",
    "benchmarks-sessions.md",
    "benchmarks-vendors.md",
    "benchmarks.md",
    "blocks.md",
    "conformance-results.md",
    "conformance-suites.md",
    "fuzzing.md",
    "onnx-faults.md",
    "programs-of-others.md",
    "stress-networks.md",
    "stress.md",
    "zoo.md",
    # Only a site shows these: they are made of docstrings.
    "reference",
)

_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n+", re.DOTALL)
_COMMENT = re.compile(r"^<!--.*?-->\n+", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[(?P<words>[^\]]+)\]\((?P<target>[^)\s]+)\)")
_ENTRY = re.compile(r"(?P<indent> *)- (?P<title>\"[^\"]+\"|[^:]+):(?: (?P<path>\S+))?")
_SENTENCE = re.compile(r"(.+?)[.:](?=\s|$)")


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


class Page(NamedTuple):
    """Page of the documentation.

    Attributes:
        name: as it is typed.
        path: path below the folder of all pages.
        text: Markdown.
        part: the part of the site, empty for the front page.
    """

    name: str
    path: str
    text: str
    part: str

    @property
    def title(self) -> str:
        """The first heading."""
        return next(heading.words for heading in self.list_headings())

    @property
    def summary(self) -> str:
        """The first sentence, without marks of Markdown."""
        paragraphs = _FENCE.sub("", self.text).split("\n\n")
        prose = next(p for each in paragraphs if (p := each.strip())[:1] not in "#|")
        words = _LINK.sub(r"\g<words>", " ".join(prose.split())).replace("*", "")
        sentence = _SENTENCE.match(words)
        return f"{sentence[1]}." if sentence else words

    @property
    def address(self) -> str | None:
        """Address on the site; None as long as there is no site."""
        return self._locate("") if SITE else None

    def list_headings(self) -> Iterator[Heading]:
        """Yield the headings, in order."""
        fenced = False
        for index, line in enumerate(self.text.splitlines()):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            elif not fenced and (found := re.match(r"(#+) (.+)", line)):
                yield Heading(found[2], len(found[1]), index)

    def cut(self, heading: Heading) -> Page:
        """Return the part below a heading, with the headings below that one."""
        ends = (
            each.line
            for each in self.list_headings()
            if each.line > heading.line and each.level <= heading.level
        )
        lines = self.text.splitlines()[heading.line : next(ends, None)]
        return self._replace(text="\n".join(lines).rstrip())

    def resolve_links(self, names: dict[str, str]) -> str:
        """Return the text with links that lead somewhere without the other files: those
        to pages lead to the site, and become plain words as long as there is none.

        Args:
            names: pages by path; those with a link are listed at the end.
        """
        seen: dict[str, None] = {}

        def resolve(link: re.Match[str]) -> str:
            target = link["target"]
            if "://" in target:
                return link[0]
            path, _, _ = self._find(target).partition("#")
            if path in names and path != self.path:
                seen[f"`epctx docs {names[path]}`"] = None
            address = self._locate(target) if SITE else None
            return f"[{link['words']}]({address})" if address else link["words"]

        text = _LINK.sub(resolve, self.text)
        return f"{text}\n\nSee also: {', '.join(seen)}" if seen else text

    def _find(self, target: str) -> str:
        """Return the path, below the folder of all pages, that a link leads to."""
        if not target or target[0] == "#":
            return f"{self.path}{target}"
        return posixpath.normpath(posixpath.join(posixpath.dirname(self.path), target))

    def _locate(self, target: str) -> str | None:
        """Return the address of a link on the site; None for one to another file."""
        path, mark, anchor = self._find(target).partition("#")
        if path.startswith("..") or not path.endswith(".md"):
            return None
        folder = "" if path == "index.md" else f"{path.removesuffix('.md')}/"
        return f"{SITE}{folder}{mark}{anchor}"


class Heading(NamedTuple):
    """Heading of a page.

    Attributes:
        words: its text.
        level: 1 for the title.
        line: index of its line.
    """

    words: str
    level: int
    line: int

    @property
    def anchor(self) -> str:
        """Name in links, as code hosts and the site make it."""
        return make_anchor(self.words)


def make_anchor(words: str) -> str:
    """Return the name that a heading has in links."""
    return re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")


def list_files(folder: Path) -> list[Path]:
    """Return the files of the pages for users, by name."""
    files = [
        path
        for path in folder.rglob("*.md")
        if path.relative_to(folder).parts[0] not in _LEFT_OUT
    ]
    return sorted(files)


def read_pages() -> dict[str, Page]:
    """Return the pages by name, in the order of the site; none if this installation has
    none.
    """
    folder = next(filter(Path.is_dir, FOLDERS), FOLDERS[0])
    parts = _read_navigation(folder)
    order = {address: place for place, address in enumerate(parts)}
    found = [
        Page(path.stem, address, _read(path), parts.get(address, ""))
        for path in list_files(folder)
        if (address := path.relative_to(folder).as_posix())
    ]
    found.sort(key=lambda page: order.get(page.path, -1))
    return {page.name: page for page in found}


def _read_navigation(folder: Path) -> dict[str, str]:
    """Return the part of the site that each page is in, such as "How-to: Models", in
    the order of the site.

    Only entries of the form `- title: path` and `- title:` are read, as there are: YAML
    would need a library.
    """
    files = [folder / NAVIGATION, folder.parent / NAVIGATION]
    file = next(filter(Path.is_file, files), None)
    text = "" if file is None else file.read_text("utf-8")
    _, _, entries = text.partition("\nnav:\n")

    parts: dict[str, str] = {}
    open_parts: list[tuple[int, str]] = []
    for entry in map(_ENTRY.fullmatch, entries.splitlines()):
        if entry is None:
            break
        indent = len(entry["indent"])
        open_parts = [part for part in open_parts if part[0] < indent]
        if entry["path"]:
            parts[entry["path"]] = ": ".join(title for _, title in open_parts[:2])
        else:
            open_parts.append((indent, entry["title"].strip('"')))
    return parts


def _read(path: Path) -> str:
    """Return a page without what only the site and tests read."""
    text = _FRONT_MATTER.sub("", path.read_text("utf-8"))
    return _COMMENT.sub("", text).rstrip()
