"""Payloads that go through the host's callbacks instead of files; they work with every
EP, as the core owns the bytes.

Defines the arguments of the callbacks, their life time, and the errors for exceptions
that they raise.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from epctx_core.errors import Fail, InvalidArgument
from epctx_core.options.choices import is_whole
from epctx_core.registry.guard import blame_host

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.options import DataReader


class ExpiredViewError(InvalidArgument, RuntimeError):
    """Use of a callback's argument after the callback returned; a RuntimeError too, as
    in onnxruntime.
    """


class OrtEpContextData:
    """Bytes of one payload, for the write callback; usable until it returns.

    Attributes as `onnxruntime.OrtEpContextData`.
    """

    __slots__ = ("_view",)

    def __init__(self, view: memoryview) -> None:
        self._view: memoryview | None = view

    @property
    def size(self) -> int:
        """Bytes of the whole payload.

        Raises:
            ExpiredViewError: the callback has returned.
        """
        return len(_require_usable(self._view, self))

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Return a copy of a range; all that follows the offset if no length is given.

        Raises:
            InvalidArgument: the range is not inside the payload.
            ExpiredViewError: the callback has returned.
        """
        view = _require_usable(self._view, self)
        if length is None and is_whole(offset):
            length = max(len(view) - int(offset), 0)
        return bytes(view[_parse_range("read", offset, length, len(view))])

    def expire(self) -> None:
        """Release the bytes: the callback has returned."""
        self._view = None


class OrtEpContextDataBuffer:
    """Buffer that the read callback fills with a payload; usable until the callback
    returns.

    Attributes as `onnxruntime.OrtEpContextDataBuffer`.
    """

    __slots__ = ("_content", "_max_size")

    def __init__(self, max_size: int) -> None:
        self._max_size: int | None = max_size
        self._content: bytearray | None = None

    @property
    def max_size(self) -> int:
        """Largest number of bytes that may be allocated."""
        return _require_usable(self._max_size, self)

    @property
    def is_allocated(self) -> bool:
        """True once `allocate` was called."""
        _require_usable(self._max_size, self)
        return self._content is not None

    @property
    def size(self) -> int:
        """Bytes allocated; 0 before."""
        _require_usable(self._max_size, self)
        return len(self._content or b"")

    def allocate(self, size: int) -> None:
        """Allocate the bytes of the payload, once; an empty one is allowed.

        Raises:
            InvalidArgument: called before, or the size is not a whole number from 0 on.
            Fail: more than the configured maximum.
        """
        limit = _require_usable(self._max_size, self)
        if not is_whole(size) or size < 0:
            raise InvalidArgument(
                f"a payload's size must be a whole number from 0 on, not {size!r:.80}."
            )
        if self._content is not None:
            raise InvalidArgument(
                "the buffer for the payload was allocated before: allocate is called "
                "once."
            )

        if size > limit:
            raise Fail(
                f"the payload has {int(size):,} bytes, which exceeds the configured "
                f"maximum size of {limit:,}.",
                hint=(
                    "Set a larger max_data_size if that is what the payload should "
                    "have."
                ),
            )

        self._content = bytearray(size)

    def write(self, data: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Copy bytes to an offset of the payload; any object with a contiguous buffer.

        Raises:
            InvalidArgument: nothing was allocated, the bytes do not fit there, or the
                object has no such buffer.
        """
        _require_usable(self._max_size, self)
        if self._content is None:
            raise InvalidArgument(
                "the buffer for the payload is not allocated: call allocate(size) "
                "first."
            )
        try:
            view = view_bytes(data)
        except TypeError as error:
            raise InvalidArgument(
                f"write takes contiguous bytes, not this {type(data).__name__}: "
                f"{error}."
            ) from None
        self._content[_parse_range("write", offset, len(view), len(self._content))] = (
            view
        )

    def expire(self) -> bytearray | None:
        """Return the allocated bytes, if any; the callback has returned."""
        self._max_size = None
        content = self._content
        self._content = None
        return content


def view_bytes(buffer: Buffer) -> memoryview:
    """Return a view of an object's bytes; raise TypeError if they are not
    contiguous.
    """
    view = memoryview(buffer)
    # An empty buffer may have a shape that cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


def receive(reader: DataReader, name: str) -> memoryview:
    """Return a payload from the host's read callback.

    Raises:
        Fail: it raised; that is the cause, and its text is part of the message.
        InvalidArgument: it allocated nothing.
    """
    buffer = OrtEpContextDataBuffer(reader.max_size)
    try:
        with blame_host(
            f"the EPContext data read callback raised for the payload {name!r}",
            passing=(),
        ):
            reader.function(name, buffer)
    finally:
        content = buffer.expire()
    if content is None:
        raise InvalidArgument(
            "the EPContext data read callback must allocate its output buffer; for "
            f"{name!r} it did not.",
            hint=(
                "Call buffer.allocate(size) once, also for an empty payload, or raise "
                "what keeps you from it."
            ),
        )
    return memoryview(content).toreadonly()


WriteCallback = Callable[[str, OrtEpContextData], object]
"""`f(name, data)`."""


class MemorySink(io.BytesIO):
    """Bytes in memory, whose views may be garbage together with it: with `io.BytesIO`
    alone, that crashes Python 3.12.1.
    """

    def __init__(self) -> None:
        super().__init__()
        self._content = bytearray()

    def write(self, chunk: Buffer, /) -> int:
        """Append bytes.

        Raises:
            BufferError: there is a view of what was written.
        """
        view = memoryview(chunk)
        self._content += view
        return view.nbytes

    def getbuffer(self) -> memoryview:
        """Return a view of what was written."""
        return memoryview(self._content)

    def close(self) -> None:
        """Release the bytes; a view keeps them."""
        self._content = bytearray()
        super().close()


def deliver(function: WriteCallback, name: str, sink: MemorySink) -> None:
    """Call the host's write callback with all that was written to a sink, and release
    the bytes.

    Raises:
        Fail: it raised; that is the cause, and its text is part of the message.
    """
    with sink.getbuffer() as view:
        data = OrtEpContextData(view)
        try:
            with blame_host(
                f"the EPContext data write callback raised for the payload {name!r}",
                passing=(),
            ):
                function(name, data)
        finally:
            data.expire()
    sink.close()


_Value = TypeVar("_Value")


def _require_usable(value: _Value | None, owner: object) -> _Value:
    """Return a value of a callback's argument, which is None once the callback has
    returned.
    """
    if value is None:
        raise ExpiredViewError(
            f"this {type(owner).__name__} was used after its callback had returned.",
            hint="Copy what you need while the callback runs.",
        )
    return value


def _parse_range(method: str, offset: object, length: object, size: int) -> slice:
    """Return a range of a payload."""
    if is_whole(offset) and is_whole(length):
        start, end = int(offset), int(offset) + int(length)  # type: ignore[call-overload]
        if 0 <= start <= end <= size:
            return slice(start, end)
    raise InvalidArgument(
        f"{method}: {length!r:.40} bytes at {offset!r:.40} are not inside the payload "
        f"of {size:,} bytes."
    )
