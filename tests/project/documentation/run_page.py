"""A page of the documentation, run as a reader pastes it: `python run_page.py PAGE`
in the folder that the page works in; with `… PAGE REASON`, the blocks that are marked
with a reason that begins so.

Blocks run in order, Python in one namespace. What a block or a command prints is
compared with what the page shows: blocks.md has the rules. Each fault is a line
of the output, and a page without faults prints nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from documentation.blocks import files, install
from support.pages import read_page

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"`[\w./-]+`:\n\n\Z")
_START = "import epctx_core as epctx\nimport numpy as np\n"
_CHANGES_ENVIRONMENT = ("pip install ", "make ", ". ")
# What differs from one machine, moment or build to the next.
_VARIABLE = (
    (re.compile(r"\b[0-9a-f]{12,}\b"), "DIGEST"),
    (re.compile(r"\b\d+ (?:second|minute)s? ago\b"), "AGO"),
    (re.compile(r"\b[\d.,]+ (?:bytes|[KMGT]iB|ms|s|seconds)\b"), "AMOUNT"),
    (re.compile(r"\b\d+\.\d+(?:\.\w+)*\b"), "NUMBER"),
)


@dataclass(frozen=True)
class Block:
    """Block of a page.

    Attributes:
        line: of the page.
        kind: the language; empty for output.
        text: its lines.
        reason: why it is not run; None if it is.
        file: whether the page has the reader write it to a file.
        is_output: whether it is what the block right before it prints.
    """

    line: int
    kind: str
    text: str
    reason: str | None
    file: bool
    is_output: bool


def read_blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = read_page(page)
    return [
        Block(
            text.count("\n", 0, found.start("kind")) + 1,
            found["kind"],
            re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            found["reason"],
            bool(_FILE.search(text, 0, found.start())),
            not found["kind"] and text[: found.start()].rstrip().endswith("```"),
        )
        for found in _BLOCK.finditer(text)
    ]


def differs(shown: str, printed: str) -> str:
    """Return the first line that a page shows and nothing printed; empty if there is
    none. A line `…` stands for any lines, and `…` in a line for any text.
    """
    patterns = [_plain(line) for line in shown.splitlines() if line.strip()]
    lines = [_plain(line) for line in printed.splitlines() if line.strip()]
    at, anywhere = 0, False
    for pattern in patterns:
        if pattern == "…":
            anywhere = True
            continue
        expected = ".*".join(map(re.escape, pattern.split("…")))
        ends = len(lines) if anywhere else min(at + 1, len(lines))
        found = next(
            (i for i in range(at, ends) if re.fullmatch(expected, lines[i])), None
        )
        if found is None:
            return pattern
        at, anywhere = found + 1, False
    if at < len(lines) and not anywhere and patterns:
        return f"nothing after this, but there is: {lines[at]}"
    return ""


def _plain(line: str) -> str:
    for pattern, word in _VARIABLE:
        line = pattern.sub(word, line)
    return " ".join(line.split())


def run_page(page: str, marked: str | None = None) -> Iterator[str]:
    """Run a page in the current folder, or its marked blocks, and yield its faults."""
    names: dict[str, object] = {"__name__": "__main__"}
    exec(_START, names)  # noqa: S102 - what blocks.md says that a reader has
    if "pyproject.toml" in files(page):
        install(page, Path.cwd())
    else:
        for name, text in files(page).items():
            Path(name).write_text(text)
    found = read_blocks(page)
    for block, following in zip_longest(found, found[1:]):
        if block.file or not _is_run(block.reason, marked):
            continue
        where = f"{page}:{block.line}"
        if block.kind == "python":
            shown = following.text if following and following.is_output else None
            yield from _run_python(block, where, names, shown)
        elif block.kind == "console":
            yield from _run_console(block.text, where)


def _is_run(reason: str | None, marked: str | None) -> bool:
    if reason is None or marked is None:
        return reason is marked
    return reason.startswith(marked)


def _run_python(
    block: Block, where: str, names: dict[str, object], shown: str | None
) -> Iterator[str]:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(block.text, where, "exec"), names)  # noqa: S102 - the page's own code
    except Exception:  # noqa: BLE001 - whatever the page raises is its fault
        yield f"{where}: {traceback.format_exc(limit=-2)}"
    else:
        if shown and (line := differs(shown, printed.getvalue())):
            yield f"{where}: the page shows: {line}\nprinted:\n{printed.getvalue()}"


def _run_console(text: str, where: str) -> Iterator[str]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        if command.startswith(_CHANGES_ENVIRONMENT):
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COLUMNS": "200"},
        )
        printed = done.stdout + done.stderr
        if (done.returncode != 0) is not ("error:" in shown):
            yield f"{where}: $ {command}\nended with {done.returncode}:\n{printed}"
        elif shown.strip() and (line := differs(shown, printed)):
            yield f"{where}: $ {command}\nthe page shows: {line}\nprinted:\n{printed}"


if __name__ == "__main__":
    for fault in run_page(*sys.argv[1:]):
        sys.stdout.write(f"{fault}\n")
