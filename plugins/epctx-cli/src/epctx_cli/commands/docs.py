"""`epctx docs`: list the pages of the documentation, or print one."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_cli import pages
from epctx_cli.arguments import CommandParser, add_common
from epctx_cli.exit_codes import ExitCode
from epctx_cli.pages import DocsResult, PageFacts
from epctx_core.errors import InvalidArgument, NotFound, suggestion

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_cli.pages import Page


def add_arguments(parser: CommandParser) -> None:
    """Declare the arguments of `epctx docs`."""
    parser.add_argument(
        "page",
        metavar="PAGE",
        nargs="?",
        help="the page, such as errors; another word lists the pages that have it in "
        "their title, or else in their text (default: list all)",
    )
    parser.list_further = lambda: {(): pages.read_pages()}
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print one page, or the list of those that were meant.

    Raises:
        NotFound: this installation has no pages.
    """
    all_pages = pages.read_pages()
    if not all_pages:
        raise NotFound(
            "this installation of epctx-cli has no pages of the documentation.",
            path=str(pages.FOLDERS[0]),
            hint="Install it again: pip install --force-reinstall epctx-cli",
        )
    chosen = _find(all_pages, arguments.page or "")
    text = None
    if len(chosen) == 1:
        text = chosen[0].resolve_links(all_pages)
        console.markdown(text)
    else:
        _print_list(chosen, console)
    facts = [
        PageFacts(name=page.name, title=page.title, summary=page.summary)
        for page in chosen
    ]
    console.result(DocsResult(pages=facts, text=text))
    return ExitCode.DONE


def _find(all_pages: Mapping[str, Page], word: str) -> list[Page]:
    """Return the page of a name, or else all that have the beginning of a word in their
    name or title, or else in their text.

    Raises:
        InvalidArgument: there is none.
    """
    if word in all_pages:
        return [all_pages[word]]
    begins = re.compile(rf"(?<!\w){re.escape(word)}", re.IGNORECASE)
    every = all_pages.values()
    found = [p for p in every if begins.search(f"{p.name}\n{p.title}")] or [
        page for page in every if begins.search(page.text)
    ]
    if not found:
        raise InvalidArgument(
            f"there is no page {word!r}.{suggestion(word, all_pages)}",
            hint="`epctx docs` lists the pages.",
        )
    return found


def _print_list(listed: Sequence[Page], console: Console) -> None:
    """Print the pages by their parts; their first sentences with `-v`."""
    parts: dict[str, list[Page]] = {}
    for page in listed:
        parts.setdefault(page.part, []).append(page)

    width = max(len(page.name) for page in listed)
    for part, members in parts.items():
        rows = [
            (
                page.name.ljust(width),
                f"{page.title}. {page.summary}" if console.verbose else page.title,
            )
            for page in members
        ]
        console.table(("", ""), rows, title=part)

    more = "" if console.verbose else " -v says what each is about."
    console.say(
        "\n`epctx docs PAGE` prints one, and `epctx docs WORD` lists those that have a "
        f"word.{more}"
    )
