"""What a command writes: its report, notes, warnings, errors, and the one JSON object.

Owns the two streams; with `--json` standard output gets the object and nothing else. Knows no command.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from epctx_cli import streams, text
from epctx_cli.progress import ProgressLine

if TYPE_CHECKING:
    from epctx_cli.text import Cell

SCHEMA = 1
"""The version of the JSON form of every command; keys are added, never changed."""
_STYLES = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m"}
_PLAIN = "\x1b[0m"


class Console:
    """The two streams of one command.

    Args:
        as_json: whether the result goes out as JSON; the report is then left out.
        verbose: whether the command was called with `-v`.
    """

    def __init__(self, *, as_json: bool = False, verbose: bool = False) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self._out, self._err = sys.stdout, sys.stderr
        self._result: dict[str, Any] | None = None
        self._progress = ProgressLine(
            self._err, active=_is_terminal(self._err), ascii_only=_ascii_only(self._err)
        )

    # -- for people ------------------------------------------------------------------------------

    def say(self, line: str = "") -> None:
        """Write a line of the report; with `--json` there is none."""
        if not self.as_json:
            self._report(f"{text.printable(line)}\n")

    def note(self, line: str) -> None:
        """Write what the user should know about the result, with `--json` to standard error."""
        write = self._tell if self.as_json else self._report
        write(f"{text.printable(line)}\n")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Write a table of the report."""
        if self.as_json:
            return
        pretty = self._pretty()
        if pretty is not None and pretty.print_table(self._out, header, rows):
            return
        for line in text.table(header, rows):
            self.say(f"  {line}")

    def tree(self, root: str, leaves: Sequence[Sequence[Cell]]) -> None:
        """Write a folder and what lies in it."""
        if self.as_json:
            return
        pretty = self._pretty()
        if pretty is not None:
            pretty.print_tree(self._out, root, leaves)
            return
        for line in text.tree(root, leaves, ascii_only=_ascii_only(self._out)):
            self.say(line)

    def warn(self, message: str) -> None:
        """Write a warning to standard error."""
        self._block("warning", message)

    def error(self, message: str) -> None:
        """Write an error to standard error: one block, further lines indented."""
        self._block("error", message)

    def debug(self, message: str) -> None:
        """Write to standard error what only `-v` shows."""
        if self.verbose:
            self._tell(f"{text.printable(message)}\n")

    def _block(self, kind: str, message: str) -> None:
        label = f"{_STYLES[kind]}{kind}:{_PLAIN}" if _wants_colour(self._err) else f"{kind}:"
        first, _, rest = text.printable(message).partition("\n")
        self._tell(f"{label} {first}\n" + (f"{text.indented(rest)}\n" if rest else ""))

    @contextmanager
    def progress(self) -> Iterator[ProgressLine]:
        """Show progress inside the block, if standard error is a terminal."""
        try:
            yield self._progress
        finally:
            self._progress.clear()

    # -- for programs ----------------------------------------------------------------------------

    def result(self, values: Mapping[str, Any]) -> None:
        """Keep the command's result; `finish` writes it if `--json` asked for it."""
        self._result = {"schema": SCHEMA, **values}

    def finish(self) -> None:
        """Write the result, and see that nothing is left in a buffer.

        Raises:
            UnwritableError: standard output cannot be written.
        """
        if self.as_json and self._result is not None:
            data = json.dumps(jsonable(self._result), indent=2, allow_nan=False)
            self._report(f"{data}\n")
        streams.flush(self._out)
        with suppress(streams.UnwritableError):
            streams.flush(self._err)

    # -- streams ---------------------------------------------------------------------------------

    def _pretty(self) -> Any:
        """Return the module that writes by rich, or None where nobody looks or rich is not installed."""
        if not (_is_terminal(self._out) and _wants_colour(self._out)):
            return None
        try:
            from epctx_cli import pretty
        except ImportError:
            return None
        self._progress.clear()
        return pretty

    def _report(self, words: str) -> None:
        """Write to standard output.

        Raises:
            UnwritableError: it cannot be written.
        """
        self._progress.clear()
        _in_order(self._err)
        streams.send(self._out, words)

    def _tell(self, words: str) -> None:
        """Write to standard error; who cannot be told has the exit code."""
        self._progress.clear()
        _in_order(self._out)
        with suppress(streams.UnwritableError):
            streams.send(self._err, words)


def _in_order(other: TextIO | None) -> None:
    """See that what was written to the other stream before is seen before; if it cannot be, that is told in the end."""
    with suppress(OSError, ValueError):
        if other is not None:
            other.flush()


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def _wants_colour(stream: TextIO | None) -> bool:
    return _is_terminal(stream) and not os.environ.get("NO_COLOR")


def _ascii_only(stream: TextIO | None) -> bool:
    try:
        "├└─█░".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def jsonable(value: Any) -> Any:
    """Return a value as JSON can hold it: what is not finite becomes null, bytes become text."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return value if value - value == 0 else None  # infinity and NaN give NaN here
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value
