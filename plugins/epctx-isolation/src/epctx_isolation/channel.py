"""Messages of a child to its host, and errors in them: JSON with raw bytes behind it.

Messages are untrusted: they are bounded before they are decoded, and nothing in them is
ever executed. An error is sent as its class, its text and its fields, never as an
object.
"""

from __future__ import annotations

import json
import struct
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from epctx_core import errors
from epctx_core.errors import (
    LONGEST_MESSAGE,
    EpctxError,
    PluginError,
    concealed,
    one_line,
)
from epctx_core.ext import parse_json

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

LONGEST_HEAD = 64 << 20
"""Bytes of JSON in a result: enough for the report about a graph of a million nodes."""
MOST_ENTRIES = 1 << 23
"""Entries of all lists and objects in a result: decoding them takes 0.8 s and 320
MiB.
"""
SMALL_HEAD = 1 << 20
"""Bytes of JSON in any other message; it has few entries, so it may not be one large
list.
"""
SMALL_ENTRIES = 1 << 12
_BYTES_FOR_ENTRY = 100
"""Memory that an entry takes at most, such as a list with nothing in it."""
MOST_BLOBS = 1 << 16
"""Blobs in one message."""
LONGEST_RECORD = 1 << 14
"""Characters of one record of a log."""
T = TypeVar("T")
_LENGTH = struct.Struct("<BI")
_RESULT = 1


class ProtocolError(Exception):
    """Malformed message, or another one than expected."""


class Source(Protocol):
    """Source of a stream of bytes, such as a file."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read some bytes into a buffer; return their number, 0 at the end."""


class Sink(Protocol):
    """Sink of a stream of bytes."""

    def sendall(self, data: Buffer, /) -> None:
        """Send all bytes."""


class Message(NamedTuple):
    """A message: its JSON object, and the bytes behind it."""

    head: Mapping[str, Any]
    blobs: Sequence[memoryview] = ()

    def text(self, key: str) -> str:
        """Return a text."""
        return self._get(key, str)

    def number(self, key: str) -> int:
        """Return a whole number that is not negative."""
        value = self._get(key, int)
        if value < 0:
            raise ProtocolError(f"{key} is {value}")
        return value

    def _get(self, key: str, cls: type[T]) -> T:
        value = self.head.get(key)
        if type(value) is not cls:  # a bool is an int, too
            raise ProtocolError(f"{key} is {value!r:.80}")
        return value


def whole_numbers(values: object) -> list[int]:
    """Return a list of whole numbers, none negative.

    Raises:
        ProtocolError: it is something else.
    """
    if type(values) is list and all(type(v) is int and v >= 0 for v in values):
        return values

    raise ProtocolError(f"{values!r:.80} is not a list of whole numbers")


def send_message(
    sink: Sink, head: Mapping[str, Any], blobs: Iterable[Buffer] = ()
) -> None:
    """Send a message to the host.

    Raises:
        OSError: the other end is closed.
    """
    views = [memoryview(blob).cast("B") for blob in blobs]
    sizes = [view.nbytes for view in views]
    text = json.dumps({**head, "sizes": sizes}).encode()
    is_result = head.get("say") == "result"
    kind = _RESULT if is_result else 0
    sink.sendall(_LENGTH.pack(kind, len(text)))
    sink.sendall(text)
    for view in views:
        sink.sendall(view)


def receive_message(source: Source, limit: int | None) -> Message:
    """Wait for the next message of a child.

    Args:
        source: the line.
        limit: most bytes of a message, and most memory that its head may take; None for
            any.

    Raises:
        EOFError: the other end is closed.
        ProtocolError: it is malformed, or larger than it may be.
    """
    kind, length = _LENGTH.unpack(read_exactly(source, _LENGTH.size))
    is_result = kind == _RESULT
    longest = LONGEST_HEAD if is_result else SMALL_HEAD
    most_entries = MOST_ENTRIES if is_result else SMALL_ENTRIES
    if limit is not None:
        longest = min(longest, limit)
        most_entries = min(most_entries, (limit - length) // _BYTES_FOR_ENTRY)
    if length > longest:
        raise ProtocolError(f"a head of {length:,} bytes, and {longest:,} are allowed")

    try:
        # Nothing else runs in this process while JSON is decoded, so what it makes is
        # counted first.
        head = parse_json(bytes(read_exactly(source, length)), most_entries)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a head that cannot be decoded: {error}") from None
    if type(head) is not dict or is_result != (head.get("say") == "result"):
        raise ProtocolError(f"a head that is not that of a message: {head!r:.80}")

    sizes = whole_numbers(head.get("sizes"))
    count = len(sizes)
    total = sum(sizes)
    if count > MOST_BLOBS or (limit is not None and total > limit - length):
        raise ProtocolError(f"{count:,} blobs of {total:,} bytes in one message")
    return Message(head, [read_exactly(source, size) for size in sizes])


def read_exactly(source: Source, size: int) -> memoryview:
    """Read so many bytes.

    Raises:
        EOFError: the other end is closed.
        ProtocolError: there is no memory for them.
    """
    try:
        # Not a bytearray: its zeros would be memory although nothing was sent yet.
        buffer = np.empty(size, np.uint8).data if size else memoryview(b"")
    except (MemoryError, ValueError):
        raise ProtocolError(f"a message of {size:,} bytes") from None
    left = buffer
    while left:
        count = source.readinto(left)
        if not count:
            raise EOFError
        left = left[count:]
    return buffer


_CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, EpctxError) and cls is not EpctxError
}
_FIELDS = ("node", "ep", "path", "hint")
_PLUGIN_FIELDS = ("hook", "distribution", "version")
_LONGEST_TRACE = 1 << 16


def make_printable(text: str, longest: int, *, keeps_lines: bool = False) -> str:
    """Return the beginning of a text, without secrets and with an escape sequence for
    whatever a terminal or a log could take for something else.

    Args:
        text: of another process.
        longest: most characters of the result.
        keeps_lines: whether the ends of lines stay.
    """
    shown = concealed(text)[:longest]
    lines = shown.split("\n") if keeps_lines else [shown]
    return "\n".join(map(one_line, lines))[:longest]


class RemoteError(Exception):
    """Cause of an error that was raised in the other process; its text is the traceback
    there.
    """


def encode_error(error: EpctxError) -> dict[str, Any]:
    """Return the fields of a message about an error."""
    fields = _FIELDS + (_PLUGIN_FIELDS if isinstance(error, PluginError) else ())
    names = (cls.__name__ for cls in type(error).__mro__)
    values = {name: getattr(error, name) for name in fields}
    shown = {
        name: concealed(str(value))[:LONGEST_MESSAGE]
        for name, value in values.items()
        if value is not None
    }
    trace = "".join(traceback.format_exception(error))
    return {
        "error": next(name for name in names if name in _CLASSES),
        "message": error.message[:LONGEST_MESSAGE],
        "fields": shown,
        "trace": concealed(trace)[-_LONGEST_TRACE:],
    }


def decode_error(message: Message) -> EpctxError:
    """Return the error of a message; its cause has the traceback of the other process.

    Raises:
        ProtocolError: the message is not about an error.
    """
    cls = _CLASSES.get(message.text("error"))
    fields = message.head.get("fields")
    if cls is None or type(fields) is not dict:
        raise ProtocolError(f"an error {message.text('error')!r:.80}")
    allowed = _FIELDS + (_PLUGIN_FIELDS if issubclass(cls, PluginError) else ())
    if not all(
        name in allowed and type(value) is str for name, value in fields.items()
    ):
        raise ProtocolError("an error with unknown fields")
    said = {"message": message.text("message"), **fields}
    texts = {
        name: make_printable(text, LONGEST_MESSAGE, keeps_lines=True)
        for name, text in said.items()
    }
    error = cls(texts.pop("message"), **texts)
    error.__cause__ = RemoteError(
        make_printable(message.text("trace"), _LONGEST_TRACE, keeps_lines=True)
    )
    return error
