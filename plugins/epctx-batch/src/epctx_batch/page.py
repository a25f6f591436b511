"""The page of a batch: one HTML file with the table of models and targets, without
scripts, that requests nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from epctx_cli.command import byte_size

from epctx_batch.table import Table, describe_nodes, describe_sums, make_table
from epctx_batch.work import LOG, PAGE
from epctx_core import __version__
from epctx_core.errors import one_line
from epctx_core.ext import Publication

if TYPE_CHECKING:
    from epctx_batch.results import BatchResult, TaskResult

INDEX: Final = "index.html"
_LONGEST_NAME: Final = 200
_LONGEST_MESSAGE: Final = 300
"""Characters of an error; its log has all of it."""


def write_page(result: BatchResult) -> Path:
    """Write the page into the folder of the results, and return its path.

    Raises:
        Fail: the file cannot be written.
    """
    folder = Path(result.output)
    with Publication(folder) as publication:
        file = publication.create(INDEX)
        for piece in assemble(result):
            file.write(piece.encode())
        publication.commit([INDEX])
    return folder / INDEX


def assemble(result: BatchResult) -> Iterator[str]:
    """Yield the page in pieces, a row at a time.

    It links to the files that tasks have at present.
    """
    table = make_table(result)
    yield _make_head(Path(result.fleet).name)
    yield f"<p>{describe_sums(table)}</p>\n"
    # Before the table: its state is what style sheets see of it without a script.
    if table.failed:
        yield (
            '<input type="checkbox" id="only-failed" autocomplete="off">'
            '<label for="only-failed">only models with failed tasks</label>\n'
        )
    yield '<div class="scrolled" tabindex="0"><table>\n<thead><tr><th>model</th>'
    yield from (f'<th scope="col">{_to_html(name)}</th>' for name in table.targets)
    yield "</tr></thead>\n<tbody>\n"
    for model, row in table.rows.items():
        yield _make_row(model, row, table, Path(result.output))
    yield (
        "</tbody></table></div>\n<footer>EPContext nodes + nodes of the CPU EP, by "
        f"model and target. Made by epctx {_to_html(__version__)}.</footer>\n"
        "</main></body>\n</html>\n"
    )


def _make_head(name: str) -> str:
    # Not read_text: it would translate line ends, and the digest is of the bytes.
    asset = resources.files(__package__) / "assets" / "batch.css"
    style = asset.read_bytes().decode()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{_to_html(name)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body><main>\n<h1>{_to_html(name)}</h1>\n"
    )


def _make_row(
    model: str, row: Mapping[str, TaskResult], table: Table, folder: Path
) -> str:
    is_bad = any(task.error is not None for task in row.values())
    cells = [
        _make_cell(row[target], folder) if target in row else "<td>-</td>"
        for target in table.targets
    ]
    mark = ' class="bad"' if is_bad else ""
    return f'<tr{mark}><th scope="row">{_to_html(model)}</th>{"".join(cells)}</tr>\n'


def _make_cell(task: TaskResult, folder: Path) -> str:
    words = _link(task, folder, _to_html(describe_nodes(task)))
    if task.error is not None:
        message = _to_html(task.error.message, _LONGEST_MESSAGE)
        return f'<td class="bad">{words}<small>{message}</small></td>'
    duration = "from the cache" if task.was_cached else f"{task.seconds:,.2f} s"
    return f"<td>{words}<small>{byte_size(task.bytes)}, {duration}</small></td>"


def _link(task: TaskResult, folder: Path, words: str) -> str:
    """Return a link to the task's page, to its log if it has none, or no link if the
    task has no folder.
    """
    for name in (PAGE, LOG) if task.error is None else (LOG,):
        if (folder / task.id / name).is_file():
            return f'<a href="{html.escape(quote(f"{task.id}/{name}"))}">{words}</a>'
    return words


def _to_html(text: str, longest: int = _LONGEST_NAME) -> str:
    """Return a text of anyone as text of the page, shortened in its middle."""
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}…{text[-half:]}"
    return html.escape(one_line(text))
