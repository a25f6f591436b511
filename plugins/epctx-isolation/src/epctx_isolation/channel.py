"""Messages between a host and the process of an EP, and errors in them: JSON with raw
bytes behind it.

Messages are untrusted: lengths are bounded, and nothing in them is ever executed. An
error is sent as its class, its text and its fields, never as an object.
"""

from __future__ import annotations

import json
import struct
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

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
"""Bytes of JSON in one message: enough for a graph of a million nodes."""
SMALL_HEAD = 4 << 20
"""Bytes of JSON in a message of an EP's process that is not about a graph."""
SMALL_ENTRIES = 1 << 18
"""Entries of all lists and objects in such a message: decoding them takes 10 ms."""
MOST_ENTRIES = 1 << 23
"""The same in any message: decoding them takes 0.8 s and 320 MiB."""
_BYTES_FOR_NODE = 1 << 10
_ENTRIES_FOR_NODE = 32
"""A claim of one node has 12, a description of one about 20."""
_BYTES_FOR_ENTRY = 100
"""Memory that an entry takes at most, such as a list with nothing in it."""
MOST_BLOBS = 1 << 20
"""Blobs in one message."""

T = TypeVar("T")
LONGEST_RECORD = 1 << 14
"""Characters of one record of a log."""
_LENGTH = struct.Struct("<I")
_SIZES = "sizes"


class ProtocolError(Exception):
    """Malformed message, or another one than expected."""


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

    def flag(self, key: str) -> bool:
        """Return a truth value."""
        return self._get(key, bool)

    def items(self, key: str) -> list[Any]:
        """Return a list."""
        return self._get(key, list)

    def numbers(self, key: str) -> list[int]:
        """Return a list of whole numbers."""
        return whole_numbers(self.items(key))

    def only_blob(self) -> memoryview:
        """Return the blob of a message that has exactly one."""
        if len(self.blobs) != 1:
            raise ProtocolError(f"{len(self.blobs)} blobs instead of one")
        return self.blobs[0]

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


class Channel:
    """One end of a line. Any thread may send; one receives.

    Args:
        source, sink: files to read from and to write to.
        limit: most bytes of one received message, and most memory that its head may
            take; None for any.
    """

    def __init__(
        self, source: IO[bytes], sink: IO[bytes], *, limit: int | None = None
    ) -> None:
        self._source = source
        self._sink = sink
        self._limit = limit
        self._lock = threading.Lock()

    def send(
        self,
        head: Mapping[str, Any],
        blobs: Iterable[Buffer] = (),
        sizes: Sequence[int] | None = None,
    ) -> None:
        """Send a message.

        Args:
            head: values that JSON can hold.
            blobs: the bytes behind it.
            sizes: the length of each blob, where `blobs` yields portions of them.

        Raises:
            OSError: the other end is closed.
        """
        if sizes is None:
            blobs = [memoryview(blob) for blob in blobs]
            sizes = [blob.nbytes for blob in blobs]
        if sizes:
            head = {**head, _SIZES: list(sizes)}
        text = json.dumps(head).encode()

        with self._lock:
            self._sink.write(_LENGTH.pack(len(text)))
            self._sink.write(text)
            for blob in blobs:
                view = memoryview(blob)
                if view.nbytes:  # an empty array cannot be cast
                    self._sink.write(view.cast("B"))
            self._sink.flush()

    def receive(self, nodes: int | None = 0) -> Message:
        """Wait for the next message.

        Args:
            nodes: of the graph that the message may be about, which make its head
                longer; None if the other end is trusted.

        Raises:
            EOFError: the other end is closed.
            ProtocolError: it is malformed, or larger than it may be.
        """
        (length,) = _LENGTH.unpack(self._read_exactly(_LENGTH.size))
        head, left = self._receive_head(length, nodes)

        sizes = whole_numbers(head.get(_SIZES, []))
        if len(sizes) > MOST_BLOBS:
            raise ProtocolError(f"{len(sizes):,} blobs in one message")
        if left is not None and sum(sizes) > left:
            raise ProtocolError(
                f"{sum(sizes):,} bytes in one message, and {left:,} are allowed"
            )
        return Message(head, [self._read_exactly(size) for size in sizes])

    def _receive_head(
        self, length: int, nodes: int | None
    ) -> tuple[dict[str, Any], int | None]:
        """Return a head, and the bytes that the limit leaves for blobs."""
        longest = LONGEST_HEAD
        entry_limit = MOST_ENTRIES
        if nodes is not None:
            longest = min(longest, SMALL_HEAD + nodes * _BYTES_FOR_NODE)
            entry_limit = min(entry_limit, SMALL_ENTRIES + nodes * _ENTRIES_FOR_NODE)
        if self._limit is not None:
            longest = min(longest, self._limit)
            entry_limit = min(entry_limit, (self._limit - length) // _BYTES_FOR_ENTRY)
        if length > longest:
            raise ProtocolError(
                f"a head of {length:,} bytes, and {longest:,} are allowed"
            )

        try:
            # Nothing else runs in this process while JSON is decoded, so what it makes
            # is counted first.
            head = parse_json(bytes(self._read_exactly(length)), entry_limit)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a head that cannot be decoded: {error}") from None
        if type(head) is not dict:
            raise ProtocolError("a head that is not an object")
        return head, None if self._limit is None else self._limit - length

    def _read_exactly(self, size: int) -> memoryview:
        try:
            # Not a bytearray: its zeros would be memory although nothing was sent yet.
            buffer = np.empty(size, np.uint8).data if size else memoryview(b"")
        except (MemoryError, ValueError):
            raise ProtocolError(f"a message of {size:,} bytes") from None
        left = buffer
        while left:
            count = self._source.readinto(left)  # type: ignore[attr-defined]
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
_LONGEST = LONGEST_MESSAGE
"""Characters of one text of an error."""
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


class HostError(Exception):
    """Failure of the host while it served the EP, in the EP's process; not one of
    epctx's own errors.
    """


def encode_error(error: EpctxError) -> dict[str, Any]:
    """Return the head of a message about an error."""
    fields: tuple[str, ...] = _FIELDS + (
        _PLUGIN_FIELDS if isinstance(error, PluginError) else ()
    )
    names = (cls.__name__ for cls in type(error).__mro__)
    class_name = next(name for name in names if name in _CLASSES)
    values = {name: getattr(error, name) for name in fields}
    return {
        "error": class_name,
        "message": error.message[:_LONGEST],
        "fields": {
            name: concealed(str(value))[:_LONGEST]
            for name, value in values.items()
            if value is not None
        },
        "trace": concealed("".join(traceback.format_exception(error)))[
            -_LONGEST_TRACE:
        ],
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
    texts = {
        name: make_printable(text, _LONGEST, keeps_lines=True)
        for name, text in {"message": message.text("message"), **fields}.items()
    }
    error = cls(texts.pop("message"), **texts)
    error.__cause__ = RemoteError(
        make_printable(message.text("trace"), _LONGEST_TRACE, keeps_lines=True)
    )
    return error
