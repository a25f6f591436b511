"""Payloads through the host's functions instead of files; the core owns the bytes, so every EP can have it.

Owns what a callback is handed, how long that is of use, and what becomes of what it raises. Which payload
goes through a callback is decided by whoever opens it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from epctx_core.context.payload_reader import PayloadInMemory
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.options.choices import is_whole
from epctx_core.registry.guard import describe

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.options import DataReader


class ExpiredViewError(InvalidArgument, RuntimeError):
    """A callback's argument was used after the callback had returned; a RuntimeError too, as in onnxruntime."""


class OrtEpContextData:
    """The bytes of one payload, for the write callback; of no use after it has returned.

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
        return len(_alive(self._view, self))

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Return a copy of a range; all that follows the offset if no length is given.

        Raises:
            InvalidArgument: the range is not inside the payload.
            ExpiredViewError: the callback has returned.
        """
        view = _alive(self._view, self)
        if length is None and is_whole(offset):
            length = max(len(view) - int(offset), 0)
        start, end = _range("read", offset, length, len(view))
        return bytes(view[start:end])

    def expire(self) -> None:
        """Let the bytes go: the callback has returned."""
        self._view = None


class OrtEpContextDataBuffer:
    """Where the read callback puts a payload; of no use after it has returned.

    Attributes as `onnxruntime.OrtEpContextDataBuffer`.
    """

    __slots__ = ("_content", "_expired", "_max_size")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._content: bytearray | None = None
        self._expired = False

    @property
    def max_size(self) -> int:
        """The most bytes that may be allocated."""
        self._check_alive()
        return self._max_size

    @property
    def is_allocated(self) -> bool:
        """Whether `allocate` was called."""
        self._check_alive()
        return self._content is not None

    @property
    def size(self) -> int:
        """Bytes allocated; 0 before."""
        self._check_alive()
        return len(self._content or b"")

    def allocate(self, size: int) -> None:
        """Make room for the payload, once; an empty one is allowed.

        Raises:
            InvalidArgument: called before, or no whole number from 0 on.
            Fail: more than the configured maximum.
        """
        self._check_alive()
        if not is_whole(size) or size < 0:
            raise InvalidArgument(f"a payload's size is a whole number from 0 on, not {size!r:.80}.")
        if self._content is not None:
            raise InvalidArgument("the buffer for the payload was allocated before: allocate is called once.")
        if size > self._max_size:
            raise Fail(
                f"the payload has {int(size):,} bytes, which exceeds the configured maximum size of {self._max_size:,}.",
                hint="Set a larger max_data_size if that is what the payload should have.",
            )
        self._content = bytearray(size)

    def write(self, buffer: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Copy bytes to their place in the payload; any object with a contiguous buffer.

        Raises:
            InvalidArgument: nothing was allocated, the bytes do not fit there, or there are none to take.
        """
        self._check_alive()
        if self._content is None:
            raise InvalidArgument("the buffer for the payload is not allocated: call allocate(size) first.")
        try:
            view = memoryview(buffer)
        except TypeError:
            raise InvalidArgument(f"write takes bytes, not a {type(buffer).__name__}.") from None
        if not view.c_contiguous:
            raise InvalidArgument("write takes bytes that lie together; those given do not.")
        start, end = _range("write", offset, view.nbytes, len(self._content))
        self._content[start:end] = view.cast("B") if view.nbytes else b""

    def expire(self) -> bytearray | None:
        """Return what was allocated, if anything; the callback has returned."""
        self._expired = True
        content, self._content = self._content, None
        return content

    def _check_alive(self) -> None:
        if self._expired:
            _alive(None, self)


def receive(reader: DataReader, name: str) -> PayloadInMemory:
    """Have the host's callback give a payload.

    Raises:
        Fail: it raised; that is the cause, and its text is part of the message.
        InvalidArgument: it allocated nothing.
    """
    buffer = OrtEpContextDataBuffer(reader.max_size)
    try:
        reader.function(name, buffer)
    except (Exception, SystemExit) as error:
        raise _raised("read", name, error) from error
    finally:
        content = buffer.expire()
    if content is None:
        raise InvalidArgument(
            f"the EPContext data read callback must allocate its output buffer; for {name!r} it did not.",
            hint="Call buffer.allocate(size) once, also for an empty payload, or raise what keeps you from it.",
        )
    return PayloadInMemory(name, content)


WriteCallback = Callable[[str, OrtEpContextData], object]
"""`f(name, data)`."""


class MemorySink(io.BytesIO):
    """Bytes in memory, whose views may be garbage together with it: of `io.BytesIO` alone, that crashes Python 3.12.1."""

    def __init__(self) -> None:
        super().__init__()
        self._content = bytearray()

    def write(self, piece: Buffer, /) -> int:
        """Append bytes.

        Raises:
            BufferError: there is a view of what was written.
        """
        self._content += memoryview(piece)
        return memoryview(piece).nbytes

    def getbuffer(self) -> memoryview:
        """Return a view of what was written."""
        return memoryview(self._content)

    def close(self) -> None:
        """Let the bytes go; a view keeps them."""
        self._content = bytearray()
        super().close()


class CallbackSink(MemorySink):
    """Collects a payload in memory; `deliver` hands it to the host's write callback.

    Args:
        function: the host's.
        name: what `ep_cache_context` holds.
    """

    def __init__(self, function: WriteCallback, name: str) -> None:
        super().__init__()
        self.name = name
        self._function = function

    def deliver(self) -> None:
        """Call the callback with all that was written, and let the bytes go.

        Raises:
            Fail: it raised; that is the cause, and its text is part of the message.
        """
        with self.getbuffer() as view:
            data = OrtEpContextData(view)
            try:
                self._function(self.name, data)
            except (Exception, SystemExit) as error:
                raise _raised("write", self.name, error) from error
            finally:
                data.expire()
        self.close()


class WriteFunction:
    """The write callback of a compiler: may be set and cleared, also by a finalizer of the former one."""

    __slots__ = ("_function",)

    def __init__(self) -> None:
        self._function: WriteCallback | None = None

    def set(self, function: WriteCallback) -> None:
        """Use a callback from the next compile on.

        Raises:
            InvalidArgument: it is none.
        """
        if not callable(function):
            raise InvalidArgument(
                f"the EPContext data write callback must be a function, not {function!r:.80}.",
                hint="clear_ep_context_data_write_func takes a callback away.",
            )
        self._replace(function)

    def clear(self) -> None:
        """Write files again from the next compile on."""
        self._replace(None)

    def _replace(self, function: WriteCallback | None) -> None:
        # The former one goes when this returns: by then its finalizer finds the new state.
        former, self._function = self._function, function
        del former

    def opener(self) -> Callable[[str], CallbackSink] | None:
        """Return what opens sinks for the callback as it is now, None without one."""
        return None if self._function is None else partial(CallbackSink, self._function)


def _alive(view: memoryview | None, owner: object) -> memoryview:
    if view is None:
        raise ExpiredViewError(
            f"this {type(owner).__name__} was used after its callback had returned.",
            hint="Copy what you need while the callback runs.",
        )
    return view


def _range(what: str, offset: object, length: object, size: int) -> tuple[int, int]:
    """Return start and end of a range of a payload."""
    if not is_whole(offset) or not is_whole(length):
        raise InvalidArgument(
            f"{what}: offset and length are whole numbers, not {offset!r:.40}, {length!r:.40}."
        )
    start, count = int(offset), int(length)  # type: ignore[call-overload]
    if start < 0 or count < 0 or start + count > size:
        raise InvalidArgument(
            f"{what}: {count:,} bytes at {start:,} are not inside the payload of {size:,} bytes."
        )
    return start, start + count


def _raised(what: str, name: str, error: BaseException) -> Fail:
    return Fail(
        f"the EPContext data {what} callback raised for the payload {name!r}: {describe(error)}",
        hint="The cause is below this error (`__cause__`).",
    )
