"""Output of a command: its report, notes, warnings and errors, or one JSON object.

With `--json` standard output gets the object and nothing else. rich lays out tables,
`progress` draws progress, `streams` writes. Knows no command.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from typing import TYPE_CHECKING, Any, TextIO

from epctx_cli import streams, text

if TYPE_CHECKING:
    import rich.console

    from epctx_cli.progress import Progress
    from epctx_cli.text import Cell

SCHEMA = 1
"""Version of the JSON of every command; keys are added, never changed."""
_STYLES = {"error": "bold red", "warning": "bold yellow"}
_UNLIMITED = 100_000
"""Columns: rich does not wrap lines, so that names stay whole; the terminal does."""


class Console:
    """Standard output and standard error of one command.

    Args:
        as_json: True to write the result as JSON, and no report.
        verbose: True with `-v`.
        quiet: True with `-q`.
    """

    def __init__(
        self, *, as_json: bool = False, verbose: bool = False, quiet: bool = False
    ) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self.quiet = quiet
        self._out = sys.stdout
        self._err = sys.stderr
        self._begun = False
        self._result: dict[str, Any] | None = None
        self._progress: Progress | None = None

    # -- for people
    # ------------------------------------------------------------------------------

    def say(self, line: str = "") -> None:
        """Write a line of the report; nothing with `--json`."""
        if not self.as_json:
            self._report(f"{text.printable(line)}\n")

    def note(self, line: str) -> None:
        """Write a note about the result, with `--json` to standard error; nothing with
        `-q`.
        """
        if self.quiet:
            return
        if self.as_json:
            self._write_error(f"{text.printable(line.lstrip())}\n")
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

    def table(
        self, header: Sequence[str], rows: Sequence[Sequence[Cell]], *, title: str = ""
    ) -> None:
        """Write a table of the report after an empty line; nothing without rows.

        Numbers are aligned to the right.

        Args:
            header: names of the columns; no header is shown if all are empty.
            rows: a cell for each column.
            title: a line above it.
        """
        if self.as_json or not rows:
            return
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        shown = Table(
            box=None, show_header=any(header), pad_edge=False, padding=(0, 2, 0, 0)
        )
        for index, name in enumerate(header):
            right = all(isinstance(row[index], int) for row in rows)
            shown.add_column(Text(name), justify="right" if right else "left")
        for row in rows:
            shown.add_row(*(Text(text.cell(value)) for value in row))
        if self._begun:
            self.say()
        if title:
            self.say(title)
        self._report(_lay_out(self._out, Padding(shown, (0, 0, 0, 2), expand=False)))

    def tree(self, root: str, leaves: Sequence[tuple[str, str]]) -> None:
        """Write a folder after an empty line, and its files: the name of each and its
        size.
        """
        if self._begun:
            self.say()
        self.say(root)
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        branch = end = "+--"
        if "└├─".encode(encoding, "ignore"):
            branch = "├──"
            end = "└──"
        width = max((len(name) for name, _ in leaves), default=0)
        for index, (name, size) in enumerate(leaves, 1):
            line = end if index == len(leaves) else branch
            self.say(f"{line} {name:<{width}}  {size}")

    def warn(self, message: str) -> None:
        """Write a warning to standard error."""
        self._block("warning", message)

    def error(self, message: str) -> None:
        """Write an error to standard error: one block, further lines indented."""
        self._block("error", message)

    def debug(self, message: str) -> None:
        """Write a line to standard error, with `-v` only."""
        if self.verbose:
            self._write_error(f"{text.printable(message)}\n")

    def _block(self, kind: str, message: str) -> None:
        label = f"{kind}:"
        if _is_terminal(self._err):
            from rich.text import Text

            label = _lay_out(self._err, Text(label, style=_STYLES[kind])).rstrip("\n")
        first, _, rest = text.printable(message).partition("\n")
        block = f"{label} {first}\n"
        if rest:
            block += f"{text.indent(rest)}\n"
        self._write_error(block)

    @contextmanager
    def progress(self, words: str = "") -> Iterator[Progress]:
        """Show progress during the block, if standard error is a terminal: a line that
        appears after a second and disappears at the end.

        Gives a function of (stage, done, total). Its method `watch` takes session
        options, and shows the stages of sessions and compiles with them. Nothing is
        shown with `--json` and `-q`.

        Args:
            words: what the command does, until a stage is known.
        """
        from epctx_cli.progress import Progress

        is_shown = _is_terminal(self._err) and not (self.as_json or self.quiet)
        progress = Progress(self._err if is_shown else None, words)
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

    def result(self, values: Mapping[str, Any]) -> None:
        """Set the command's result; `finish` writes it with `--json`."""
        self._result = {"schema": SCHEMA, **values}

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


def _layout(stream: TextIO | None, **options: Any) -> rich.console.Console:
    from rich.console import Console as Layout

    # No markup, no emoji codes: models contain any names.
    if os.environ.get("NO_COLOR"):
        options["color_system"] = None
    return Layout(
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        **options,
    )


def _lay_out(stream: TextIO | None, shown: rich.console.RenderableType) -> str:
    """Return text that a stream can show, without spaces at the ends of lines."""
    written = io.StringIO()
    layout = _layout(written, width=_UNLIMITED, force_terminal=_is_terminal(stream))
    layout.print(shown)
    lines = written.getvalue().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _jsonable(value: Any) -> Any:
    """Return a value as JSON can hold it: infinity and NaN become null, bytes become
    text.
    """
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float):
        return value if value - value == 0 else None  # infinity and NaN give NaN here
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value
