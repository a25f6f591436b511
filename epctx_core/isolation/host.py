"""The host as an EP's process sees it: told things, asked for things, heard when it wants the EP to stop.

A thread reads all that comes, so that a wish to stop is heard in the middle of work, and the end of the host
ends this process too.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from epctx_core.isolation.channel import Channel, Message, ProtocolError
from epctx_core.isolation.failures import HostError, decode_error
from epctx_core.options import CancellationFlag

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]


class Host:
    """The other end of the channel.

    Attributes:
        cancel: set when the host wants the EP to stop.
        raised: what the host's failures became here, by their numbers.
    """

    def __init__(self, channel: Channel) -> None:
        self.cancel = CancellationFlag()
        self.raised: dict[int, Exception] = {}
        self._channel = channel
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._asking = threading.RLock()
        self._waiting: list[tuple[Mapping[str, Any], Iterable[Buffer]]] | None = None
        threading.Thread(target=self._read, name="epctx-host", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                message = self._channel.receive()
                if message.head.get("do") == "cancel":
                    self.cancel.set(True)
                else:
                    self._messages.put(message)
        except (OSError, EOFError, ProtocolError):
            _end_all()  # nobody is left to work for, and the EP may never come back

    def next_message(self) -> Message:
        """Wait for what the host wants."""
        return self._messages.get()

    def send(self, head: Mapping[str, Any], blobs: Iterable[Buffer] = ()) -> None:
        """Send a message that has no answer."""
        with self._asking:
            if self._waiting is None:
                self._channel.send(head, blobs)
            else:
                # In the middle of a question nothing else is expected; an EP may log while it makes bytes.
                self._waiting.append((head, blobs))

    def tell(self, what: str, head: Mapping[str, Any], blobs: Iterable[Buffer] = ()) -> None:
        """Tell the host something; what goes wrong there is known when the call is over."""
        self.send({"say": "tell", "what": what, **head}, blobs)

    def ask(
        self,
        what: str,
        head: Mapping[str, Any],
        blobs: Iterable[Buffer] = (),
        pieces: Iterable[Buffer] = (),
    ) -> Message:
        """Ask the host for something and return its answer.

        Args:
            what, head, blobs: the question.
            pieces: sent one by one as the host asks for more.

        Raises:
            EpctxError, HostError: the host raised it.
        """
        with self._asking:
            self._channel.send({"say": "ask", "what": what, **head}, blobs)
            self._waiting = []
            try:
                return self._answer(iter(pieces))
            finally:
                waiting, self._waiting = self._waiting, None
                for said in waiting:
                    self._channel.send(*said)

    def _answer(self, pieces: Any) -> Message:
        while True:
            message = self._messages.get()
            do = message.head["do"]
            if do == "reply":
                return message
            if do == "failed":
                error = decode_error(message) if "error" in message.head else HostError(message.text("text"))
                self.raised[message.number("host")] = error
                raise error
            try:
                piece = next(pieces, b"")
            except BaseException:
                self._channel.send({"say": "chunk"}, [b""])
                self._messages.get()
                raise
            self._channel.send({"say": "chunk"}, [piece])


def _end_all() -> None:
    """End this process, and what it started where it leads a group of its own."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


class LogToHost(logging.Handler):
    """Gives records to the host's logger of the same name."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            text = self.format(record)
            self._host.tell("log", {"logger": record.name, "level": record.levelno, "text": text})
        except Exception:  # noqa: BLE001 - as every handler: a record never fails the work
            self.handleError(record)
