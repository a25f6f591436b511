"""Messages between a host and the process of an EP, and errors in them: JSON with raw bytes behind it.

What is read may come from anyone: lengths are bounded, and nothing in it is ever executed. An error is sent as its
class, its words and what it names, never as an object.
"""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from epctx_core import errors
from epctx_core.errors import EpctxError, PluginError

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

LONGEST_HEAD = 64 << 20
"""Bytes of JSON in one message: what a graph of a million nodes needs, and no more."""
MOST_BLOBS = 1 << 20
"""Pieces of bytes behind it."""

_LENGTH = struct.Struct("<I")
_SIZES = "sizes"


class ProtocolError(Exception):
    """What came is no message, or not the one that was expected."""


class Message(NamedTuple):
    """A message: its JSON object, and the bytes behind it."""

    head: Mapping[str, Any]
    blobs: Sequence[memoryview] = ()

    def text(self, key: str) -> str:
        """Return a text."""
        value: str = self._of_type(key, str)
        return value

    def number(self, key: str) -> int:
        """Return a whole number that is not negative."""
        value: int = self._of_type(key, int)
        if value < 0:
            raise ProtocolError(f"{key} is {value}")
        return value

    def flag(self, key: str) -> bool:
        """Return a truth value."""
        value: bool = self._of_type(key, bool)
        return value

    def items(self, key: str) -> list[Any]:
        """Return a list."""
        value: list[Any] = self._of_type(key, list)
        return value

    def numbers(self, key: str) -> list[int]:
        """Return a list of whole numbers."""
        return whole_numbers(self.items(key))

    def only_blob(self) -> memoryview:
        """Return the bytes of a message that has one piece of them."""
        if len(self.blobs) != 1:
            raise ProtocolError(f"{len(self.blobs)} pieces of bytes instead of one")
        return self.blobs[0]

    def _of_type(self, key: str, kind: type[Any]) -> Any:
        value = self.head.get(key)
        if type(value) is not kind:  # a bool is an int, too
            raise ProtocolError(f"{key} is {value!r:.80}")
        return value


def whole_numbers(values: object) -> list[int]:
    """Return a list of whole numbers, none negative.

    Raises:
        ProtocolError: it is something else.
    """
    if type(values) is not list or not all(type(v) is int and v >= 0 for v in values):
        raise ProtocolError(f"{values!r:.80} is no list of whole numbers")
    return values


class Channel:
    """One end of a line. Any thread may send; one receives.

    Args:
        source, sink: what is read and what is written.
        limit: bytes behind the JSON of one message that are taken; None for any.
    """

    def __init__(self, source: IO[bytes], sink: IO[bytes], *, limit: int | None = None) -> None:
        self._source = source
        self._sink = sink
        self._limit = limit
        self._lock = threading.Lock()

    def send(
        self, head: Mapping[str, Any], blobs: Iterable[Buffer] = (), sizes: Sequence[int] | None = None
    ) -> None:
        """Send a message.

        Args:
            head: what JSON can hold.
            blobs: the bytes behind it.
            sizes: the length of each piece, where `blobs` makes them one by one.

        Raises:
            OSError: nobody reads it.
        """
        if sizes is None:
            blobs = [memoryview(blob) for blob in blobs]
            sizes = [blob.nbytes for blob in blobs]
        text = json.dumps({**head, _SIZES: list(sizes)} if sizes else head).encode()
        with self._lock:
            self._sink.write(_LENGTH.pack(len(text)))
            self._sink.write(text)
            for blob in blobs:
                view = memoryview(blob)
                if view.nbytes:  # an empty array cannot be cast
                    self._sink.write(view.cast("B"))
            self._sink.flush()

    def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            EOFError: the other end is closed.
            ProtocolError: what came is no message.
        """
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > LONGEST_HEAD:
            raise ProtocolError(f"a head of {length:,} bytes")
        try:
            head = json.loads(bytes(self._exactly(length)))
        except (ValueError, RecursionError):
            raise ProtocolError("a head that is no JSON") from None
        if type(head) is not dict:
            raise ProtocolError("a head that is no object")
        sizes = whole_numbers(head.get(_SIZES, []))
        if len(sizes) > MOST_BLOBS:
            raise ProtocolError(f"{len(sizes):,} pieces in one message")
        if self._limit is not None and sum(sizes) > self._limit:
            raise ProtocolError(f"{sum(sizes):,} bytes in one message, and {self._limit:,} are allowed")
        return Message(head, [self._exactly(size) for size in sizes])

    def _exactly(self, size: int) -> memoryview:
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
_LONGEST = 1 << 16
"""Characters of one text of an error."""


def describe(error: BaseException) -> str:
    """Return type and text of an exception, also of one whose text can't be had."""
    with contextlib.suppress(Exception, SystemExit, GeneratorExit):  # it is a plugin's exception class
        return f"{type(error).__name__}: {error}"
    return type(error).__name__


class RemoteError(Exception):
    """What was raised in the other process; its text is the traceback there."""


class HostError(Exception):
    """What the host raised while it did something for an EP and is no error of the tree, in the EP's process."""


def encode_error(error: EpctxError) -> dict[str, Any]:
    """Return what tells the other process of an error."""
    fields: tuple[str, ...] = _FIELDS + (_PLUGIN_FIELDS if isinstance(error, PluginError) else ())
    cls = next(c.__name__ for c in type(error).__mro__ if c.__name__ in _CLASSES)
    said = {name: getattr(error, name) for name in fields}
    return {
        "error": cls,
        "message": error.message[:_LONGEST],
        "fields": {name: str(value)[:_LONGEST] for name, value in said.items() if value is not None},
        "trace": "".join(traceback.format_exception(error))[-_LONGEST:],
    }


def decode_error(message: Message) -> EpctxError:
    """Return the error that a message tells of; its cause is the traceback of the other process.

    Raises:
        ProtocolError: it tells of none.
    """
    cls, fields = _CLASSES.get(message.text("error")), message.head.get("fields")
    if cls is None or type(fields) is not dict:
        raise ProtocolError(f"an error {message.text('error')!r:.80}")
    allowed = _FIELDS + (_PLUGIN_FIELDS if issubclass(cls, PluginError) else ())
    if not all(name in allowed and type(value) is str for name, value in fields.items()):
        raise ProtocolError("an error that names something else than errors do")
    made = cls(message.text("message"), **fields)
    made.__cause__ = RemoteError(message.text("trace"))
    return made
