"""The notebooks of the documentation, executed as a reader does.

`python notebooks.py NOTEBOOK`, in `.venv-docs` with `tests` on the path, executes one
in a new folder and compares what its cells show with the outputs stored in it, by the
rules of blocks.md. Each fault is a line of the output. Without an argument all
notebooks are executed, and their outputs are stored: `make notebooks`.

In a cell with the tag `measured` only the headings of tables are compared: cells and
sentences of a measurement depend on the machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from documentation.run_page import differs
from support.pages import DOCS

NOTEBOOKS = sorted(DOCS.glob("notebooks/*.ipynb"))
MEASURED = "measured"
_SECONDS = 300
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read_cells(notebook: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook, as JSON has them."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text("utf-8"))["cells"]
    return cells


def execute(notebook: Path) -> Any:
    """Return a notebook with the outputs of its cells, and nothing else that differs
    from one execution to the next.

    Raises:
        CellExecutionError: a cell raises.
    """
    import nbformat
    from nbclient import NotebookClient

    read = nbformat.read(notebook, as_version=4)
    with TemporaryDirectory() as folder:
        work = Path(folder, "notebook")
        work.mkdir()
        # Neither settings of the user nor files of other kernels.
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "XDG_CACHE_HOME"):
            os.environ[name] = f"{folder}/{name.lower()}"
        NotebookClient(
            read,
            timeout=_SECONDS,
            kernel_name="python3",
            coalesce_streams=True,
            record_timing=False,
            resources={"metadata": {"path": str(work)}},
        ).execute()

    read.metadata = nbformat.from_dict(_METADATA)
    for cell in read.cells:
        cell.metadata = {k: v for k, v in cell.metadata.items() if k == "tags"}
        for output in cell.get("outputs", ()):
            # Readers see the HTML; what repr gives beside it has digests and times.
            if "text/html" in output.get("data", ()):
                output.data.pop("text/plain", None)
    return read


def compare(stored: list[dict[str, Any]], shown: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each cell that does not show what is stored."""
    for number, (cell, executed) in enumerate(zip(stored, shown, strict=True), start=1):
        measured = MEASURED in cell["metadata"].get("tags", ())
        outputs = zip_longest(cell.get("outputs", ()), executed.get("outputs", ()))
        for before, now in outputs:
            old, new = (write_text(each, measured=measured) for each in (before, now))
            line = differs(old, new)
            # Nothing is stored, or nothing is shown: a page without output says nothing.
            if not line and bool(old.strip()) is not bool(new.strip()):
                line = old or new
            if line:
                yield f"cell {number}: the notebook shows: {line}\nexecuted:\n{new}"


def write_text(output: dict[str, Any] | None, *, measured: bool = False) -> str:
    """Return an output as lines of text; without the results of a measurement."""
    if output is None:
        return ""
    if output["output_type"] == "stream":
        return f"{output['name']}:\n{_join(output['text'])}"
    if output["output_type"] == "error":
        return f"{output['ename']}: {output['evalue']}"
    data = output["data"]
    if "text/html" in data:
        return "\n".join(_Lines(_join(data["text/html"]), measured=measured).lines)
    return _join(data["text/plain"])


def _join(text: str | list[str]) -> str:
    """Return a text; files have it as a list of lines."""
    return text if isinstance(text, str) else "".join(text)


class _Lines(HTMLParser):
    """Lines of HTML: rows of tables, and paragraphs."""

    def __init__(self, text: str, *, measured: bool) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._measured = measured
        self._headings: list[str] = []
        self._row: list[str] = []
        self._text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "table":
            self._headings = []
        if tag in {"td", "th", "p", "tr"}:
            self._text = ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "th"}:
            column = len(self._row)
            if tag == "th":
                self._headings.append(self._text)
            # A column of bytes has bare numbers, and its heading has the unit.
            elif self._headings[column : column + 1] and self._headings[
                column
            ].endswith("bytes"):
                self._text += " bytes"
            self._row.append(self._text)
        elif tag == "tr":
            shown = self._row[:1] if self._measured else self._row
            self.lines.append(" | ".join(shown))
            self._row = []
        elif tag == "p" and not self._measured:
            self.lines.append(self._text)


def main(arguments: list[str]) -> None:
    """Compare one notebook, or store the outputs of all."""
    for name in [name for name in os.environ if name.startswith("EPCTX_")]:
        del os.environ[name]
    if arguments:
        notebook = DOCS / arguments[0]
        for fault in compare(read_cells(notebook), execute(notebook).cells):
            sys.stdout.write(f"{notebook.name}, {fault}\n")
        return

    import nbformat

    for notebook in NOTEBOOKS:
        nbformat.write(execute(notebook), notebook)


if __name__ == "__main__":
    main(sys.argv[1:])
