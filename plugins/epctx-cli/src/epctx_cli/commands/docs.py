"""`epctx docs`: list the pages of the documentation, or print one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
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
        metavar="PAGE[#HEADING]",
        nargs="?",
        help=(
            "the page, such as errors, or a part of it, such as errors#pluginerror "
            "(default: list all)"
        ),
    )
    parser.list_further = lambda: {(): pages.read_pages()}
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print one page, or the list.

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
    if arguments.page is None:
        _print_list(all_pages, console)
        return ExitCode.DONE

    page = _choose(all_pages, arguments.page)
    text = page.resolve_links({each.path: each.name for each in all_pages.values()})
    console.markdown(text)
    facts = _describe(all_pages[page.name])
    console.result(DocsResult(pages=[facts], text=text))
    return ExitCode.DONE


def _print_list(all_pages: Mapping[str, Page], console: Console) -> None:
    facts = [_describe(page) for page in all_pages.values()]
    console.table(
        ("page", "about"),
        [(each.name, f"{each.title}. {each.summary}") for each in facts],
    )
    console.say(
        "\n`epctx docs PAGE` prints one, `epctx docs PAGE#HEADING` a part of it."
    )
    if pages.SITE:
        console.say(f"All pages with a search: {pages.SITE}")
    console.result(DocsResult(pages=facts))


def _describe(page: Page) -> PageFacts:
    return PageFacts(
        name=page.name, title=page.title, summary=page.summary, address=page.address
    )


def _choose(all_pages: Mapping[str, Page], argument: str) -> Page:
    """Return the page that an argument names, or the part below its heading.

    Raises:
        InvalidArgument: there is no such page or heading.
    """
    name, _, words = argument.partition("#")
    page = all_pages.get(name)
    if page is None:
        raise InvalidArgument(
            f"there is no page {name!r}.{suggestion(name, all_pages)}",
            hint="`epctx docs` lists the pages.",
        )
    if not words:
        return page

    headings = {each.anchor: each for each in page.list_headings()}
    anchor = pages.make_anchor(words)
    if anchor not in headings:
        raise InvalidArgument(
            f"the page {name!r} has no heading {words!r}."
            f"{suggestion(anchor, headings)}",
            hint=f"Headings: {', '.join(headings)}.",
        )
    return page.cut(headings[anchor])
