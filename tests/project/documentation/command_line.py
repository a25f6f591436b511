"""Table of command-line.md, a row for each command; `make tables` writes it anew."""

from __future__ import annotations

import os
import re

from epctx_cli.command_table import OWN, Command
from support.pages import FILES

PAGE = FILES["command-line.md"]
BEGIN = "<!-- made by `make tables` -->\n"
MORE = {
    "batch": "batch.md",
    "bench": "benchmarking.md",
    "cache": "cache.md",
    "compare": "look-at-models.md#comparing-a-context-model-with-its-source",
    "compile": "first-context-model.md",
    "convert": "files.md#onnx-runtimes-own-format-ort",
    "diff": "files.md",
    "doctor": "real-hardware.md",
    "embed": "files.md",
    "explain": "look-at-models.md#looking-at-a-partitioning",
    "externalize": "files.md",
    "extract": "files.md",
    "gate": "serving.md#a-gate-in-ci",
    "inspect": "look-at-models.md",
    "merge": "files.md",
    "plugins": "plugins.md",
    "plugins check": "conformance.md",
    "plugins new": "write-an-ep.md",
    "report": "report.md",
    "run": "first-context-model.md",
    "schema": "json.md",
    "seal": "sealing.md",
    "share": "weight-sharing.md",
    "verify": "verify.md",
    "wrap": "native-binaries.md",
}
"""Page about a command, or about a group of them."""


def fill_page(page: str) -> str:
    """Return the text of the page with the table as the code has it."""
    before, begin, _ = page.partition(BEGIN)
    rows = ["| command | does | page | package |", "|---|---|---|---|"]
    return "\n".join([f"{before}{begin}", *rows, *map(describe, OWN), ""])


def describe(command: Command) -> str:
    """Return the row of a command or of a group of them."""
    summary = re.sub(r"(<\w+>)", r"`\1`", " ".join(command.summary.split()))
    cells = [f"`epctx {command.name}`", summary, find_page(command), command.package]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def find_page(command: Command) -> str:
    """Return the link to the page about a command; empty if there is none."""
    group = command.name.partition(" ")[0]
    page = MORE.get(command.name, MORE.get(group, ""))
    name, _, heading = page.partition("#")
    if not name:
        return ""
    address = os.path.relpath(FILES[name], PAGE.parent)
    return f"[{FILES[name].stem}]({address}{heading and f'#{heading}'})"


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text("utf-8")), "utf-8")
