"""Reports and questions of a child during one call, as its host takes and answers
them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from epctx_core import (
    InitializerValue,
    OrtEpContextData,
    OrtEpContextDataBuffer,
    OrtExternalInitializerInfo,
)
from epctx_core.errors import EpctxError
from epctx_core.ext import Weight
from epctx_isolation.channel import (
    LONGEST_RECORD,
    Message,
    ProtocolError,
    Sink,
    Source,
    decode_error,
    encode_error,
    make_printable,
    receive_message,
    whole_numbers,
)
from epctx_isolation.orders import HostObjects, send_order
from epctx_isolation.results import decode_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from epctx_core.plugin import Cancellation
    from epctx_isolation.limits import Progress

_LONGEST_NAME = 1 << 8
_LONGEST_FACT = 1 << 9
_MOST_SPANS = 1 << 8
"""Spans that are open at the same time."""


class Line(Source, Sink, Protocol):
    """Host's end of the line to a child."""


class Conversation:
    """Reports and questions of a child during one call.

    An exception of a function of the host goes to the child, where the core handles it
    as it would in process; if it ends the call, the host raises the same object.

    Attributes:
        progress: what an EP reported last, and the time of it.
        raised: what functions of the host raised.

    Args:
        line: the line to the child.
        objects: what of the call's arguments stayed with the host.
        limit: most bytes of one message; None for any.
        cancel: the host's wish to cancel.
        pause: told the seconds of a function of the host, which are not the child's.
    """

    def __init__(
        self,
        line: Line,
        objects: HostObjects,
        *,
        limit: int | None = None,
        cancel: Cancellation | None = None,
        pause: Callable[[float], object] = lambda _: None,
    ) -> None:
        self._pause = pause
        self.progress: Progress | None = None
        self._line = line
        self._objects = objects
        self._limit = limit
        self._cancel = cancel
        self.raised: list[Exception] = []
        self._failure: Exception | None = None
        self._end: Exception | None = None
        self._spans: dict[tuple[int, int], AbstractContextManager[object]] = {}
        self._takers: Mapping[str, Callable[[Message], Any]] = {
            "progress": self._report_progress,
            "log": self._log,
            "span": self._begin_span,
            "span_end": self._end_span,
            "read": self._read,
            "write": self._write,
            "sink": self._pass_to_sink,
            "locate": self._locate,
        }

    def answer(self, message: Message, *, asks: bool) -> None:
        """Take a report, or answer a question.

        Raises:
            ProtocolError: it is malformed.
            OSError, EOFError: the other end is closed.
            EpctxError: the call is over, as the child could not make all bytes.
        """
        kind = message.text("kind")
        if kind not in self._takers:
            raise ProtocolError(f"an unknown request {kind!r:.80}")
        answer: tuple[str, Any]
        try:
            self.raise_failure()
            answer = "reply", self._takers[kind](message)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - the host's own; the child gets it as it would in process
            answer = "failed", self._note_exception(error)
            if not asks:
                self._failure = error
        if self._end is not None:
            # Whatever a function of the host made of it.
            raise self._end
        if not asks:
            return
        try:
            send_order(self._line, answer, self._objects)
        except EpctxError as error:
            # The child waits for an answer, which a result of the host's cannot be.
            answer = "failed", self._note_exception(error)
            send_order(self._line, answer, self._objects)

    def _note_exception(self, error: Exception) -> tuple[int, Any, str, str]:
        """Note what a function of the host raised; return what the child is told."""
        self.raised.append(error)
        number = len(self.raised) - 1
        known = encode_error(error) if isinstance(error, EpctxError) else None
        return number, known, type(error).__name__, f"{error}"

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        """Have the child's time stand still while the host is at work."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._pause(time.monotonic() - begin)

    def raise_failure(self) -> None:
        """Raise what a function of the host raised that only took a report."""
        if self._failure is not None:
            raise self._failure

    def decode_error(self, message: Message) -> BaseException:
        """Return the error by which the child ended the call.

        Raises:
            ProtocolError: the message is malformed.
            Exception: a function of the host that only took a report raised it.
        """
        self.raise_failure()
        error = decode_error(message)
        if "host" in message.head:
            # One that this process raised before, or its effect.
            number = message.number("host")
            if number >= len(self.raised):
                raise ProtocolError(f"error {number} of the host")
            if message.head.get("is_same") is True:
                return self.raised[number]
            error.__cause__ = self.raised[number]
        return error

    def close(self) -> None:
        """End the spans that the child left open, also by its end; the innermost
        first.
        """
        for key in reversed([*self._spans]):
            self._spans.pop(key).__exit__(None, None, None)

    def _report_progress(self, message: Message) -> bool:
        """Pass progress on; return whether the host wants to cancel now."""
        stage = make_printable(message.text("stage"), _LONGEST_NAME)
        done = message.number("done")
        total = message.number("total")
        if message.head.get("is_of_ep") is True:
            self.progress = stage, done, total, time.monotonic()
        if function := self._objects.functions.get("progress"):
            with self._pausing():
                function(stage, done, total)
        return self._cancel is not None and self._cancel.requested

    def _log(self, message: Message) -> None:
        """Log a record with the logger of its name, if there is one: `getLogger` makes
        a logger, and another one for each dot in its name.
        """
        name = message.text("logger")
        text = message.text("text")
        logger = logging.Logger.manager.loggerDict.get(name)
        ep = name.removeprefix("epctx.ep.")
        if any(record.name == ep for record in self._objects.registry.records()):
            logger = logging.getLogger(f"epctx.ep.{ep}")
        elif not isinstance(logger, logging.Logger) or not f"{name}.".startswith(
            "epctx."
        ):
            logger = logging.getLogger("epctx")
            text = f"{name}: {text}"
        level = min(message.number("level"), logging.CRITICAL)
        logger.log(level, "%s", make_printable(text, LONGEST_RECORD))

    def _begin_span(self, message: Message) -> None:
        """Have a plugin of the host observe what the child does from now on."""
        key = message.number("observer"), message.number("number")
        facts = message.head.get("facts")
        if (
            key[0] >= len(self._objects.observers)
            or len(self._spans) >= _MOST_SPANS
            or key in self._spans
            or type(facts) is not dict
        ):
            raise ProtocolError(f"a span {key} within {len(self._spans)} others")
        # Short texts, so that what a host keeps of many spans stays small.
        shown = {
            make_printable(name, _LONGEST_NAME): _shorten(fact)
            for name, fact in facts.items()
        }
        name = make_printable(message.text("name"), _LONGEST_NAME)
        category = make_printable(message.text("category"), _LONGEST_NAME)
        span = self._objects.observers[key[0]].span(name, category, shown)
        span.__enter__()
        self._spans[key] = span

    def _end_span(self, message: Message) -> None:
        # A thread of the EP may end one after the call in which it began it.
        key = message.number("observer"), message.number("number")
        span = self._spans.pop(key, None)
        if span is not None:
            span.__exit__(None, None, None)

    def _function(self, kind: str) -> Any:
        function = self._objects.functions.get(kind)
        if function is None:
            raise ProtocolError(f"a question to a function {kind!r} that is not there")
        return function

    def _read(self, message: Message) -> bytearray | None:
        """Return a payload from the host's read callback; None if it allocated none."""
        buffer = OrtEpContextDataBuffer(message.number("most"))
        try:
            with self._pausing():
                self._function("read")(message.text("name"), buffer)
        finally:
            content = buffer.expire()
        return content

    def _write(self, message: Message) -> None:
        """Hand a payload to the host's write callback."""
        data = OrtEpContextData(memoryview(self._receive_all()))
        try:
            with self._pausing():
                self._function("write")(message.text("name"), data)
        finally:
            data.expire()

    def _pass_to_sink(self, _message: Message) -> None:
        """Hand a model to the host, chunk by chunk."""
        self._function("sink")(self._receive_chunks())

    def _locate(self, message: Message) -> Any:
        """Have the host say where it stored an initializer."""
        shape = tuple(whole_numbers(message.head.get("shape")))
        present = decode_fields(
            OrtExternalInitializerInfo | None, message.head.get("present")
        )
        data = self._receive_all()
        weight = Weight(
            message.text("name"),
            message.number("elem_type"),
            shape,
            data,
        )
        with self._pausing():
            value = InitializerValue(weight)
            return self._function("locate")(weight.name, value, present)

    def _receive_all(self) -> bytes:
        """Return all bytes of the child, which may be as many as in one message."""
        chunks = []
        size = 0
        for chunk in self._receive_chunks():
            size += chunk.nbytes
            if self._limit is not None and size > self._limit:
                raise ProtocolError(f"more than {self._limit:,} bytes in pieces")
            chunks.append(chunk)
        return b"".join(chunks)

    def _receive_chunks(self) -> Iterator[memoryview]:
        try:
            while chunk := self._receive_chunk():
                with self._pausing():
                    yield chunk[0]
        except Exception as error:
            self._end = error
            raise

    def _receive_chunk(self) -> Sequence[memoryview]:
        """Return the next bytes of the child, as one item; nothing at their end."""
        send_order(self._line, ("more", None), self._objects)
        while True:
            message = receive_message(self._line, self._limit)
            say = message.text("say")
            if say == "chunk":
                return message.blobs[:1]
            if say == "error":
                raise self.decode_error(message)
            # An EP may report while it makes bytes.
            self.answer(message, asks=False)


def _shorten(fact: object) -> object:
    """Return a fact about a span as the host's plugin gets it: a number, a short text,
    or a list of them.
    """
    if isinstance(fact, str):
        return make_printable(fact, _LONGEST_FACT)
    if isinstance(fact, list):
        flat = (item for item in fact if not isinstance(item, list | dict))
        return [_shorten(item) for item in flat]
    if isinstance(fact, dict):
        return None
    return fact
