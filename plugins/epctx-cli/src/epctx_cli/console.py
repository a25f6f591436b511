"""Output of a command: its report, notes, warnings and errors, or one JSON object.

With `--json` standard output gets the object and nothing else. `tables` fits tables,
`progress` shows progress, `streams` writes. Knows no command.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TextIO

from epctx_cli import streams, text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import RenderableType

    from epctx_cli import tables
    from epctx_cli.progress import Progress
    from epctx_cli.text import Cell

SCHEMA = 1
"""Version of the JSON of every command; keys are added, never changed."""
_STYLES = {"error": "bold red", "warning": "bold yellow"}
_UNLIMITED = 100_000
"""Columns for rich, which gets lines that are laid out already."""
_BLANK_END = re.compile(r"(?: |\x1b\[[\d;]*m)+$", re.MULTILINE)
_LEAST_COLUMNS = 20
"""A narrower terminal breaks lines itself."""
_USUAL_COLUMNS = 80


class Console:
    """Standard output and standard error of one command.

    Args:
        as_json: True to write the result as JSON, and no report.
        verbose: True with `-v`.
        quiet: True with `-q`.
        tracebacks: True with `--traceback`; `-v` shows tracebacks, too.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        verbose: bool = False,
        quiet: bool = False,
        tracebacks: bool = False,
    ) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self.tracebacks = tracebacks or verbose
        self.quiet = quiet
        self._is_silent = as_json or quiet
        self._out = sys.stdout
        self._err = sys.stderr
        self._begun = False
        self._has_short_names = False
        self._result: dict[str, Any] | None = None
        self._progress: Progress | None = None

    # -- for people
    # ------------------------------------------------------------------------------

    @property
    def width(self) -> int | None:
        """Columns of the terminal that shows the report; None elsewhere, such as for a
        pipe, where nothing is shortened or wrapped.
        """
        return _width(self._out)

    def say(self, line: str = "", *, wrap: bool = True) -> None:
        """Write a line of the report; nothing with `--json` and `-q`.

        Args:
            line: prose, wrapped on a terminal; it may contain line breaks.
            wrap: False for a command, a script or a traceback, to be copied.
        """
        if not self._is_silent:
            shown = text.printable(line)
            self._report(f"{_wrap(shown, self.width) if wrap else shown}\n")

    def note(self, line: str) -> None:
        """Write a note about the result, with `--json` to standard error; nothing with
        `-q`.
        """
        if self.quiet:
            return
        if self.as_json:
            words = _wrap(text.printable(line.lstrip()), _width(self._err))
            self._write_error(f"{words}\n")
        else:
            self.say(line)

    def note_simulated(self, names: Iterable[str]) -> list[str]:
        """Write that EPs are simulated; return their names."""
        eps = list(dict.fromkeys(names))
        if eps:
            verb = "computes" if len(eps) == 1 else "compute"
            self.note(
                f"\nSimulated: {' and '.join(eps)} {verb} on this CPU, not on a "
                "vendor's hardware."
            )
        return eps

    def markdown(self, words: str) -> None:
        """Write a page of the report: laid out on a terminal, elsewhere as it is."""
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        is_shown = _is_terminal(self._out) and "utf" in encoding.lower()
        if not is_shown or self.width is None:
            self.say(words, wrap=False)
        elif not self._is_silent:
            from rich.markdown import Markdown

            # Addresses are written out: not every terminal shows hyperlinks.
            page = Markdown(
                text.printable(words), code_theme="ansi_dark", hyperlinks=False
            )
            self._report(_lay_out(page, self.width))

    def table(
        self, header: Sequence[str], rows: Sequence[Sequence[Cell]], *, title: str = ""
    ) -> None:
        """Write a table of the report after an empty line; nothing without rows.

        Numbers are aligned to the right. On a terminal prose is wrapped where the table
        is too wide; a first cell that has no room is on a line of its own; where the
        other names have none, each row is a list. Elsewhere each row is one whole line.

        Args:
            header: names of the columns; no header is shown if all are empty.
            rows: a cell for each column.
            title: a line above it.
        """
        if self._is_silent or not rows:
            return
        from epctx_cli import tables

        if self._begun:
            self.say()
        if title:
            self.say(title)

        columns = zip(*rows, strict=True)
        table = tables.Table(
            [*map(text.cell, header)],
            [tuple(map(text.cell, row)) for row in rows],
            [all(isinstance(cell, int) for cell in column) for column in columns],
        )
        self._report(self._lay_out_table(table))

    def _lay_out_table(self, table: tables.Table) -> str:
        width = self.width or sys.maxsize
        if table.has_header and not table.fits(width):
            table = self._shorten(table, width)
        rows = table.lay_out(width)
        if table.has_header:
            rows[0] = _style(self._out, rows[0], "bold")
        return "".join(f"{row}\n" for row in rows)

    def _shorten(self, table: tables.Table, width: int) -> tables.Table:
        """Return a table without endings of EPs' names, or a list if that does not
        suffice.
        """
        short = table.without_endings()
        if not short.has_room(width):
            return table.list_rows()
        if short != table and not self._has_short_names:
            self.say("Shortened: ...ExecutionProvider")
            self._has_short_names = True
        return short

    def warn(self, message: str) -> None:
        """Write a warning to standard error; nothing with `-q`."""
        if not self.quiet:
            self._block("warning", message)

    def error(self, message: str, *, traceback: str = "") -> None:
        """Write an error to standard error: one block, further lines indented.

        Args:
            message: prose, wrapped on a terminal.
            traceback: lines below it, shown as they are.
        """
        self._block("error", message, traceback)

    def debug(self, message: str) -> None:
        """Write a line to standard error, with `-v` only."""
        if self.verbose:
            self._write_error(f"{text.printable(message)}\n")

    def _block(self, kind: str, message: str, traceback: str = "") -> None:
        label = f"{kind}:"
        lines = text.indent(text.printable(f"{label} {message}"))
        block = _wrap(lines, _width(self._err)).removeprefix(f"  {label}")
        if traceback:
            block += f"\n\n{text.indent(text.printable(traceback))}"
        self._write_error(f"{_style(self._err, label, _STYLES[kind])}{block}\n")

    @contextmanager
    def progress(self, words: str = "", *, in_logs: bool = False) -> Iterator[Progress]:
        """Show progress during the block, if standard error is a terminal: a line that
        appears after a second and disappears at the end.

        Gives a function of (stage, done, total). Its method `watch` takes session
        options, and shows the stages of sessions and compiles with them. Nothing is
        shown with `--json` and `-q`.

        Args:
            words: what the command does, until a stage is known.
            in_logs: true to write a line every half minute where standard error is no
                terminal; for commands that take hours.
        """
        is_terminal = _is_terminal(self._err)
        if self._is_silent or not (is_terminal or in_logs):
            from epctx_cli.progress import Progress

            yield Progress()
            return
        from epctx_cli.progress_line import ProgressLine

        progress = ProgressLine(self._err, words, in_lines=not is_terminal)
        before = self._progress
        self._progress = progress
        try:
            with progress.shown():
                yield progress
        finally:
            self._progress = before

    def _without_progress(self) -> AbstractContextManager[None]:
        """Hide the progress while something else is written."""
        return nullcontext() if self._progress is None else self._progress.hidden()

    # -- for programs
    # ----------------------------------------------------------------------------

    def result(self, *parts: Mapping[str, Any] | DataclassInstance) -> None:
        """Set the command's result; `finish` writes it with `--json`.

        Args:
            parts: objects whose keys are side by side: by its keys, or a dataclass,
                which has an `as_dict`, or whose fields with the default None are left
                out where they have it.
        """
        self._result = {"schema": SCHEMA}
        for part in parts:
            self._result |= part if isinstance(part, Mapping) else _list_facts(part)

    def finish(self) -> None:
        """Write the result and flush both streams.

        Raises:
            UnwritableError: standard output cannot be written.
        """
        if self.as_json and self._result is not None:
            self._report(
                f"{json.dumps(_jsonable(self._result), indent=2, allow_nan=False)}\n"
            )
        streams.flush(self._out)
        with suppress(streams.UnwritableError):
            streams.flush(self._err)

    # -- streams
    # ---------------------------------------------------------------------------------

    def _report(self, words: str) -> None:
        """Write to standard output.

        Raises:
            UnwritableError: it cannot be written.
        """
        with self._without_progress():
            _in_order(self._err)
            streams.send(self._out, words)
        self._begun = True

    def _write_error(self, words: str) -> None:
        """Write to standard error; failures are ignored."""
        with self._without_progress(), suppress(streams.UnwritableError):
            _in_order(self._out)
            streams.send(self._err, words)


def _in_order(other: TextIO | None) -> None:
    """Flush the other stream first, to keep the order of both; `finish` reports a
    failure.
    """
    with suppress(OSError, ValueError):
        if other is not None:
            other.flush()


def _is_terminal(stream: TextIO | None) -> bool:
    if stream is None or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def _width(stream: TextIO | None) -> int | None:
    """Return the columns of a terminal, also of a dumb one; None for other streams."""
    if stream is None or not stream.isatty():
        return None
    columns = 0
    with suppress(ValueError):
        columns = int(os.environ.get("COLUMNS", "0"))
    # Not shutil's, which asks standard output whatever the stream is.
    with suppress(OSError, ValueError):
        if not columns:
            columns = os.get_terminal_size(stream.fileno()).columns
    return max(_LEAST_COLUMNS, columns or _USUAL_COLUMNS)


def _wrap(lines: str, width: int | None) -> str:
    """Return lines that fit a width, if there is one; long words stay whole, so that
    paths and commands can be copied.
    """
    if width is None:
        return lines
    return "\n".join(_wrap_line(line, width) for line in lines.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    from epctx_cli import tables

    if tables.count_cells(line) <= width:
        return line
    words = line.lstrip(" ")
    indent = line.removesuffix(words)
    # Lines that belong to an indented one stand below its text.
    further = f"{indent}  " if indent else ""
    rows = tables.wrap(words, width - len(further), overflow="ignore")
    return indent + f"\n{further}".join(rows)


def _style(stream: TextIO | None, words: str, style: str) -> str:
    """Return a line as a terminal shows it in a style of rich; elsewhere as it is."""
    if not _is_terminal(stream):
        return words
    from rich.text import Text

    return _lay_out(Text(words, style=style, end=""), _UNLIMITED)


def _lay_out(page: RenderableType, width: int) -> str:
    """Return what rich writes to a terminal."""
    from rich.console import Console as Layout
    from rich.theme import Theme

    written = io.StringIO()
    layout = Layout(
        file=written,
        width=width,
        force_terminal=True,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        # rich's own has a black background, on light terminals, too.
        theme=Theme({"markdown.code": "bold cyan"}),
    )
    layout.print(page, end="")
    # rich fills each line with blanks, some of them in a style.
    return _BLANK_END.sub(lambda end: end[0].replace(" ", ""), written.getvalue())


def _list_facts(value: DataclassInstance) -> dict[str, Any]:
    if hasattr(value, "as_dict"):
        return dict(value.as_dict())
    facts = {field.name: (getattr(value, field.name), field) for field in fields(value)}
    return {
        name: fact
        for name, (fact, field) in facts.items()
        if fact is not None or field.default is not None
    }


def _jsonable(value: Any) -> Any:
    """Return a value as JSON can hold it: infinity and NaN become null, bytes become
    text.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return _jsonable(_list_facts(value))
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float):
        return value if value - value == 0 else None  # infinity and NaN give NaN here
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value
