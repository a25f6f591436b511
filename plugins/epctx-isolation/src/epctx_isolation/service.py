"""The process of an EP from inside: makes the one instance and does what the host asks of it.

Hooks are called as in a host's own process, so that what an EP does wrong is noticed and named here. A thread reads
all that comes, so that the host's wish to stop is heard in the middle of work, and the end of the host ends this
process too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from epctx_core import SessionOptions
from epctx_core.errors import EpctxError, PluginError, RuntimeException
from epctx_core.ext import HOOKS, DescribedInstance, ReceivedModel
from epctx_isolation.channel import (
    Channel,
    HostError,
    Message,
    ProtocolError,
    decode_error,
    describe,
    encode_error,
)
from epctx_isolation.codecs import ANSWERS, ARGUMENTS
from epctx_isolation.values import decode_arrays, encode_arrays

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.plugin import CompiledPartition, ContextNode, GraphView, Partition
    from epctx_isolation.remote import Answer
    from epctx_isolation.stand_ins import RemotePayloadView, RemoteWriter

_LATER = 3.0
"""Seconds after a call's time at which the process ends by itself: its host should have ended it, and is gone."""

_NOTHING: Answer = ({}, ())


def serve(source: int, sink: int) -> None:
    """Do what the host asks for over a line, until it asks for the end."""
    faulthandler.enable()
    host = Host(Channel(os.fdopen(source, "rb"), os.fdopen(sink, "wb")))
    service = Service(host)
    while not _perform(service, host, host.next_message()):
        pass
    logging.shutdown()
    # The EP's threads and exit handlers may never end.
    os._exit(0)


def _perform(service: Service, host: Host, message: Message) -> bool:
    """Do what one message says; return whether it was the last."""
    if message.head["do"] == "model":
        service.received = message
        return False
    hook = message.text("hook")
    host.raised.clear()
    try:
        with _time(message.number("seconds")):
            head, blobs = service.perform(hook, message)
    except BaseException as error:  # noqa: BLE001 - all that an EP raises is the host's to judge
        _limit_memory(None)  # saying what was wrong needs some, too
        host.send({"say": "error", **_told(service, hook, error)})
        _limit_memory(service.max_bytes)
    else:
        host.send({"say": "result", **head}, blobs)
    return hook == "shutdown"


def _told(service: Service, hook: str, error: BaseException) -> dict[str, Any]:
    """Return what the host is told of an error: its own, one of the tree, or a fault of the EP."""
    # What an EP raised stands behind the error that blames it.
    origin = error.__cause__ if isinstance(error.__cause__, (HostError, MemoryError)) else error
    for number, raised in service.host.raised.items():
        if raised is origin:
            return {"host": number}
    if isinstance(origin, MemoryError) and service.max_bytes is not None:
        error = PluginError(
            f"{service.label} needed more memory in {hook} than the {service.max_bytes:,} bytes that "
            "its process may have.",
            hint="Set ep.isolate_max_bytes higher, or leave it out.",
        )
    elif not isinstance(error, EpctxError):
        blamed = RuntimeException if hook == "run" else PluginError
        said = blamed(f"{service.label} failed in {hook}: {describe(error)}")
        said.__cause__, error = error, said
    return encode_error(error)


@contextlib.contextmanager
def _time(seconds: float) -> Iterator[None]:
    """End this process some time after a call should have been over, even if native code never comes back."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + _LATER)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory(max_bytes: int | None) -> None:
    """Set what this process may take from now on; None for as much as it might when it began."""
    if sys.platform == "win32":
        return
    import resource

    # What is mapped from files does not count: weights and payloads are.
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    wanted = hard if max_bytes is None else max_bytes
    resource.setrlimit(
        resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
    )


class Service:
    """One EP instance and what the host has shown it.

    Attributes:
        instance: the EP's; made by the first call.
        max_bytes: of memory that the process may take; None for any.
        label: how messages call the EP.
        received: a model that nobody asked for yet.
        graph, nodes, writer, tokens, partitions, runnables, payloads: what codecs of one argument leave to those of others, and
            of answers.
    """

    instance: DescribedInstance
    graph: GraphView
    writer: RemoteWriter

    def __init__(self, host: Host) -> None:
        self.host = host
        self.max_bytes: int | None = None
        self.label = ""
        self.received: Message | None = None
        self._model: ReceivedModel
        self.nodes: list[ContextNode] = []
        self.tokens: list[object] = []
        self.partitions: list[Partition] = []
        self.runnables: list[CompiledPartition] = []
        self.payloads: dict[int, RemotePayloadView] = {}

    def perform(self, hook: str, message: Message) -> Answer:
        """Do what a message says; return what the host gets."""
        if hook == "__init__":
            self._start(message.head)
        elif hook == "run":
            return self._run(message)
        elif hook == "shutdown":
            self.instance.close()
        else:
            return self._call(hook, message)
        return _NOTHING

    @property
    def model(self) -> ReceivedModel:
        """The model that the host sent last, indexed when it is first needed."""
        if self.received is not None:
            message, self.received = self.received, None
            self._model = ReceivedModel(message.head, message.blobs)
        return self._model

    def _call(self, hook: str, message: Message) -> Answer:
        """Call a hook by the table of hooks."""
        row, said = HOOKS[hook], message.head["arguments"]
        given = {
            name: ARGUMENTS[kind].receive(self, message, said[name])
            for name, kind in row.arguments.items()
            if name in said
        }
        self.instance.set_engine(message.head["engine"])
        answer: Answer = ANSWERS[row.answer].send(self, self.instance.call(hook, given))
        return answer

    def _start(self, said: Mapping[str, Any]) -> None:
        logger = logging.getLogger("epctx")
        logger.addHandler(LogToHost(self.host))
        logger.setLevel(said["level"])
        logger.propagate = False
        self.label, self.max_bytes = said["label"], said["max_bytes"]
        _limit_memory(self.max_bytes)
        bytearray(1 << 20)  # with less left, native code fails in ways that do not say that it is memory
        self.instance = DescribedInstance(said, self.host.session, self._progress)

    def _progress(self, stage: str, done: int, total: int) -> None:
        self.host.tell("progress", {"stage": stage, "done": done, "total": total})

    def _run(self, message: Message) -> Answer:
        runnable = self.runnables[message.number("runnable")]
        if runnable.run is None:
            raise AssertionError("the host runs only what can")
        inputs = decode_arrays(message)
        for array in inputs:
            array.setflags(write=False)
        kinds, blobs = encode_arrays(runnable.run(inputs, None))
        return {"arrays": kinds}, blobs


class Host:
    """The other end of the channel.

    Attributes:
        session: its flag says when the host wants the EP to stop.
        raised: what the host's failures became here, by their numbers.
    """

    def __init__(self, channel: Channel) -> None:
        self.session = SessionOptions()
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
                    self.session.set_load_cancellation_flag(True)
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

    def ask(self, what: str, head: Mapping[str, Any], pieces: Iterable[Buffer] = ()) -> Message:
        """Ask the host for something and return its answer.

        Args:
            what, head: the question.
            pieces: sent one by one as the host asks for more.

        Raises:
            EpctxError, HostError: the host raised it.
        """
        with self._asking:
            self._channel.send({"say": "ask", "what": what, **head})
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
