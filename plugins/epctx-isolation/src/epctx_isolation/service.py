"""EP's side of its own process: makes the one instance and does the calls of the host.

Hooks are called as in a host's own process, so that mistakes of an EP are noticed and
named here. A thread reads all messages, so that a cancellation arrives in the middle of
work, and the end of the host ends this process too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import pkgutil
import queue
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from epctx_core import PluginRecord, PluginState, Registry, SessionOptions
from epctx_core.errors import (
    EpctxError,
    PluginError,
    RuntimeException,
    conceal,
    concealed,
    describe,
)
from epctx_core.ext import HOOKS, CpuEngine, ProviderChoice, ProviderSession
from epctx_core.plugin import EnginePolicy, ModelIdentity, Purpose, WeightlessMode
from epctx_isolation.channel import (
    LONGEST_RECORD,
    Channel,
    HostError,
    Message,
    ProtocolError,
    decode_error,
    encode_error,
)
from epctx_isolation.codecs import ARGUMENTS, RESULTS
from epctx_isolation.model_copy import ReceivedModel, RemotePayloadView, RemoteWriter
from epctx_isolation.values import decode_arrays, encode_arrays

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.plugin import (
        CompiledPartition,
        ContextNode,
        ExecutionProvider,
        GraphView,
        Partition,
        Workspace,
    )
    from epctx_isolation.remote import Reply

_LATER = 3.0
"""Seconds after the deadline of a call until the process ends by itself: the host
should have ended it, and is gone.
"""


def serve(source: int, sink: int) -> None:
    """Do the calls of the host until it calls `shutdown`."""
    faulthandler.enable()
    channel = Channel(os.fdopen(source, "rb"), os.fdopen(sink, "wb"))
    host = Host(channel)
    services: dict[int, Service] = {}
    while not _perform(services, host, host.next_message()):
        pass
    logging.shutdown()
    # The EP's threads and exit handlers may never end.
    os._exit(0)


def _perform(services: dict[int, Service], host: Host, message: Message) -> bool:
    """Do one message; return whether it was the last.

    Args:
        services: the instances by their numbers: one, or those of a share group.
        host, message: the message and its sender.
    """
    number = message.number("instance")
    service = services.get(number) or services.setdefault(number, Service(host))
    if message.head["do"] == "model":
        service.received = message
        return False
    hook = message.text("hook")
    host.raised.clear()
    host.begin(number)
    try:
        with _time(message.number("seconds")):
            head, blobs = service.perform(hook, message)
    except BaseException as error:  # noqa: BLE001 - the host handles all that an EP raises
        limit_memory(None)  # the report of an error needs memory, too
        host.send({"say": "error", **_describe_error(service, hook, error)})
        limit_memory(service.max_bytes)
    else:
        host.send({"say": "result", **head}, blobs)
    if hook != "shutdown":
        return False
    del services[number]
    return not message.flag("stays")


def _describe_error(
    service: Service, hook: str, error: BaseException
) -> dict[str, Any]:
    """Return the head of a message about an error: the host's own, one of epctx's, or a
    fault of the EP.
    """
    # The error that an EP raised is the cause of the one that blames it.
    origin = (
        error.__cause__
        if isinstance(error.__cause__, (HostError, MemoryError))
        else error
    )
    for number, raised in service.host.raised.items():
        if raised is origin:
            return {"host": number}
    if isinstance(origin, MemoryError) and service.max_bytes is not None:
        error = PluginError(
            f"{service.record.label} needed more memory in {hook} than the "
            f"{service.max_bytes:,} bytes that its process may have.",
            hint="Set ep.isolate_max_bytes higher, or leave it out.",
        )
    elif not isinstance(error, EpctxError):
        blamed = RuntimeException if hook == "run" else PluginError
        fault = blamed(f"{service.record.label} failed in {hook}: {describe(error)}")
        fault.__cause__ = error
        error = fault
    return encode_error(error)


@contextlib.contextmanager
def _time(seconds: float) -> Iterator[None]:
    """End this process some time after a call should have been over, even if native
    code never comes back.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + _LATER)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def limit_memory(max_bytes: int | None) -> None:
    """Set the memory that this process may take from now on; None for the limit with
    which it started.
    """
    if sys.platform == "win32":
        return
    import resource

    # Files that are mapped, such as weights and payloads, do not count.
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = hard if max_bytes is None else max_bytes
    resource.setrlimit(
        resource.RLIMIT_DATA,
        (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard),
    )


class Service:
    """The EP instance, and the parts of the model that the host showed it.

    Attributes:
        session: owner of the instance.
        record: the plugin's.
        max_bytes: of memory that the process may take; None for any.
        received: a model that is not indexed yet.
        graph, nodes, writer, tokens, partitions, runnables, payloads: arguments and
            results that codecs of others refer to.
    """

    record: PluginRecord
    graph: GraphView
    writer: RemoteWriter

    def __init__(self, host: Host) -> None:
        self.host = host
        self.session = ProviderSession(
            host.session,
            Registry(entry_points=False),
            progress=self._report_progress,
            host_plugins=(),  # they wrap the hooks of the proxy
        )
        self._span_numbers = count()
        self.max_bytes: int | None = None
        self.received: Message | None = None
        self._engine = CpuEngine(EnginePolicy())
        self._model: ReceivedModel
        self.nodes: list[ContextNode] = []
        self.tokens: list[object] = []
        self.partitions: list[Partition] = []
        self.runnables: list[CompiledPartition] = []
        self.payloads: dict[int, RemotePayloadView] = {}

    def perform(self, hook: str, message: Message) -> Reply:
        """Do a call of the host; return its result."""
        if hook == "__init__":
            self._start(message.head)
        elif hook == "run":
            return self._run(message)
        elif hook == "shutdown":
            self.session.close()
        else:
            row = HOOKS[hook]
            plain = message.head["arguments"]
            codecs = {name: ARGUMENTS[row.arguments[name]] for name in plain}
            arguments = {
                name: codec.receive(self, message, plain[name])
                for name, codec in codecs.items()
            }
            self._set_engine(message.head["engine"])
            result = self.session.instances.call(self.record.name, hook, **arguments)
            return RESULTS[row.result].send(self, result)  # type: ignore[no-any-return]
        return {}, ()

    @property
    def model(self) -> ReceivedModel:
        """The model that the host sent last, indexed when it is first needed."""
        if self.received is not None:
            message = self.received
            self.received = None
            self._model = ReceivedModel(message.head, message.blobs)
        return self._model

    def _set_engine(self, settings: Mapping[str, Any]) -> None:
        # In place: what was prepared with it has the same policy.
        for name, value in settings.items():
            setattr(self._engine.policy, name, value)

    def _start(self, head: Mapping[str, Any]) -> None:
        """Make the instance with the context that an instance in the host's process
        would have.
        """
        logger = logging.getLogger("epctx")
        if not logger.handlers:
            logger.addHandler(LogToHost(self.host))
        logger.setLevel(head["level"])
        logger.propagate = False
        self.record = PluginRecord(**head["record"], state=PluginState.DISCOVERED)
        self.max_bytes = head["max_bytes"]
        limit_memory(self.max_bytes)
        bytearray(
            1 << 20
        )  # with less left, native code fails in ways that do not say that it is memory
        self._set_engine(head["engine"])
        self.session.weightless = WeightlessMode(head["weightless"])
        cls = self._find_class(head["factory"])
        # The host conceals them too, but not what a text that is cut here has left.
        options = head["options"]
        secrets = (str(options[o.name]) for o in cls.options if o.secret)
        conceal(secrets, self)
        choice = ProviderChoice(
            record=self.record, cls=cls, options=MappingProxyType(options)
        )
        context = self.session.context_of(
            choice,
            Purpose(head["purpose"]),
            ModelIdentity(**head["model"]),
            self._engine,
        )
        config = MappingProxyType(head["session_config"])
        # Instances of a share group have one.
        self.host.workspace = self.host.workspace or context.workspace
        context = replace(
            context,
            session_config=config,
            intra_op_num_threads=head["threads"],
            workspace=self.host.workspace,
            span=self._observe if head["observed"] else context.span,
        )
        self.session.add(choice, cls, context)

    def _find_class(
        self, factory: tuple[str, Mapping[str, Any]] | None
    ) -> type[ExecutionProvider]:
        """Return the EP's class: imported, or made again by the function that made it.

        Raises:
            PluginError: there is no such class or function, or it makes another EP.
        """
        try:
            if factory is None:
                return pkgutil.resolve_name(self.record.entry_point)  # type: ignore[no-any-return]
            function, arguments = factory
            cls: type[ExecutionProvider] = pkgutil.resolve_name(function)(**arguments)
        except Exception as error:
            raise self._refuse_class(describe(error)) from error
        if cls.name != self.record.name:
            raise self._refuse_class(f"{function} made {cls.name!r}")
        return cls

    def _refuse_class(self, reason: str) -> PluginError:
        return PluginError(
            f"{self.record.label} cannot be used in a process of its own: {reason}.",
            ep=self.record.name,
            distribution=self.record.distribution,
            version=self.record.version,
            hint=(
                "Define its class in a module that can be imported, not in a script "
                "or a function; or say with the class attribute `factory` which "
                "function makes it. ep.isolate and ep.compile_timeout need that."
            ),
        )

    def _report_progress(self, stage: str, done: int, total: int) -> None:
        self.host.notify("progress", {"stage": stage, "done": done, "total": total})

    @contextlib.contextmanager
    def _observe(self, name: str, /, **facts: object) -> Iterator[None]:
        """Have the host's plugins observe a block; facts are sent as one short text."""
        number = next(self._span_numbers)
        text = ", ".join(f"{key}={value!r:.80}" for key, value in facts.items())
        self.host.notify("span", {"number": number, "name": name, "facts": text})
        try:
            yield
        finally:
            self.host.notify("span_end", {"number": number})

    def _run(self, message: Message) -> Reply:
        runnable = self.runnables[message.number("runnable")]
        if runnable.run is None:
            raise AssertionError("the host runs only what can run")
        inputs = decode_arrays(message)
        for array in inputs:
            array.setflags(write=False)
        types, blobs = encode_arrays(runnable.run(inputs, None))
        return {"arrays": types}, blobs


class Host:
    """The other end of the channel.

    Attributes:
        session: has the host's cancellation flag.
        raised: the host's failures by their numbers, as they were raised here.
        workspace: that of the instances; None before there is one.
    """

    def __init__(self, channel: Channel) -> None:
        self.session = SessionOptions()
        self.raised: dict[int, Exception] = {}
        self.workspace: Workspace | None = None
        self._channel = channel
        # Of a share group each model has an instance, and is cancelled alone: the
        # message may arrive when another one is being compiled already.
        self._instance = 1
        self._cancelled: set[int] = set()
        self._cancelling = threading.Lock()
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._asking = threading.RLock()
        self._waiting: list[tuple[Mapping[str, Any], Iterable[Buffer]]] | None = None
        threading.Thread(target=self._read, name="epctx-host", daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                message = self._channel.receive(nodes=None)
                if message.head.get("do") == "cancel":
                    with self._cancelling:
                        self._cancelled.add(message.number("instance"))
                        self._show_cancellation()
                else:
                    self._messages.put(message)
        except (OSError, EOFError, ProtocolError):
            # The host is gone, and the EP may never return. If this process leads a
            # group, all of it ends.
            if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)
            os._exit(1)

    def begin(self, instance: int) -> None:
        """Have the cancellation flag say whether the work of an instance is cancelled;
        it is the one that is called from now on.
        """
        with self._cancelling:
            self._instance = instance
            self._show_cancellation()

    def _show_cancellation(self) -> None:
        is_cancelled = self._instance in self._cancelled
        self.session.set_load_cancellation_flag(is_cancelled)

    def next_message(self) -> Message:
        """Wait for the next message."""
        return self._messages.get()

    def send(self, head: Mapping[str, Any], blobs: Iterable[Buffer] = ()) -> None:
        """Send a message that has no reply."""
        with self._asking:
            if self._waiting is None:
                self._channel.send(head, blobs)
            else:
                # A request is under way, and nothing else is expected; an EP may log
                # while it makes bytes.
                self._waiting.append((head, blobs))

    def notify(
        self, request: str, head: Mapping[str, Any], blobs: Iterable[Buffer] = ()
    ) -> None:
        """Send a request without a reply; a failure of it is raised by the host when
        the call is over.
        """
        self.send({"say": "tell", "what": request, **head}, blobs)

    def ask(
        self, request: str, head: Mapping[str, Any], chunks: Iterable[Buffer] = ()
    ) -> Message:
        """Send a request and return the reply.

        Args:
            request, head: the request.
            chunks: sent one by one as the host asks for more.

        Raises:
            EpctxError, HostError: the host raised it.
        """
        with self._asking:
            self._channel.send({"say": "ask", "what": request, **head})
            self._waiting = []
            try:
                return self._wait_for_reply(iter(chunks))
            finally:
                waiting = self._waiting
                self._waiting = None
                for message in waiting:
                    self._channel.send(*message)

    def _wait_for_reply(self, chunks: Iterator[Buffer]) -> Message:
        while True:
            message = self._messages.get()
            do = message.head["do"]
            if do == "reply":
                return message
            if do == "failed":
                error = (
                    decode_error(message)
                    if "error" in message.head
                    else HostError(message.text("text"))
                )
                self.raised[message.number("host")] = error
                raise error
            try:
                chunk = next(chunks, b"")
            except BaseException:
                self._channel.send({"say": "chunk"}, [b""])
                self._messages.get()
                raise
            self._channel.send({"say": "chunk"}, [chunk])


class LogToHost(logging.Handler):
    """Sends records to the host."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            text = concealed(self.format(record))[:LONGEST_RECORD]
            self._host.notify(
                "log", {"logger": record.name, "level": record.levelno, "text": text}
            )
        except Exception:  # noqa: BLE001 - as every handler: a record never fails the work
            self.handleError(record)
