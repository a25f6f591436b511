"""Sections of command-line.md, a command each, from the parsers of the
command line; `make tables` writes them anew.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator

from epctx_cli.arguments import CommandParser, add_common
from epctx_cli.command_table import OWN, Command
from support.pages import FILES

PAGE = FILES["command-line.md"]
BEGIN = "\n## epctx "
COLUMNS = 88
MORE = {
    "batch": "batch.md",
    "bench": "benchmarking.md",
    "cache": "cache.md",
    "convert": "files.md#onnx-runtimes-own-format-ort",
    "diff": "files.md",
    "embed": "files.md",
    "explain": "look-at-models.md#looking-at-a-partitioning",
    "externalize": "files.md",
    "extract": "files.md",
    "inspect": "look-at-models.md",
    "merge": "files.md",
    "plugins": "plugins.md",
    "report": "report.md",
    "schema": "json.md",
    "seal": "sealing.md",
    "share": "weight-sharing.md",
    "verify": "verify.md",
}
"""Page about a command, or about a group of them."""


def fill_page(page: str) -> str:
    """Return the text of the page with the sections as the code has them."""
    before = page.partition(BEGIN)[0]
    return "\n".join([before, *(describe(command) for command in OWN)]).rstrip() + "\n"


def describe(command: Command) -> str:
    """Return the section of a command; of a group that of its actions follow."""
    parser = CommandParser(prog=f"epctx {command.name}")
    parser.formatter_class = WideFormatter
    if command.target:
        command.declare(parser)
    text = parser.description or f"{command.summary[0].upper()}{command.summary[1:]}."
    more = MORE.get(command.name)
    lines = [f"## epctx {command.name}", "", escape(text)]
    if more is not None:
        name, _, heading = more.partition("#")
        address = os.path.relpath(FILES[name], PAGE.parent)
        link = f"{address}#{heading}" if heading else address
        lines[-1] += f" More: [{FILES[name].stem}]({link})."
    if command.package != "epctx-cli":
        lines[-1] += f" In the package {command.package}."
    if command.target:
        # Its further lines are below the first one's arguments.
        usage = parser.format_usage().replace(f"\n{' ' * len('usage: ')}", "\n")
        usage = usage.removeprefix("usage: ").rstrip()
        lines += ["", "```text", usage, "```", *make_table(parser)]
    return "\n".join([*lines, ""])


class WideFormatter(argparse.HelpFormatter):
    """Formats usages for a page rather than for the terminal that it is made on."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=COLUMNS)


def make_table(parser: CommandParser) -> Iterator[str]:
    """Yield a table of the arguments that not all commands have."""
    common = CommandParser()
    add_common(common)
    known = {action.dest for action in common._actions}
    actions = [action for action in parser._actions if action.dest not in known]
    if not actions:
        return
    yield from ("", "| argument | meaning |", "|---|---|")
    for action in actions:
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        form = action.metavar or "{" + ",".join(map(str, action.choices or ())) + "}"
        value = "" if action.nargs == 0 else f"`{form}`"
        if "|" in form:  # ends a cell, in code too
            value = f"<code>{form.replace('|', '&#124;')}</code>"
        help_text = (action.help or "") % vars(action)
        yield f"| {f'{names} {value}'.strip()} | {escape(help_text)} |"


def escape(text: str) -> str:
    """Return a text of a terminal as Markdown shows it."""
    text = " ".join(text.split()).replace("|", r"\|")
    return re.sub(r"(<\w+>)", r"`\1`", text)


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text("utf-8")), "utf-8")
