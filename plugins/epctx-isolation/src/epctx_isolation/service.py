"""Child's side: do the host's calls, tell it what a plugin does, and call its functions
by messages.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import math
import os
import pkgutil
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, Any, cast

from epctx_core import RunOptions
from epctx_core.errors import EpctxError, Fail, concealed, describe
from epctx_core.ext import plugin_error, watch_calls
from epctx_isolation.channel import (
    LONGEST_RECORD,
    SMALL_HEAD,
    Message,
    decode_error,
    encode_error,
    send_message,
)
from epctx_isolation.limits import START_SECONDS, Limits
from epctx_isolation.orders import (
    CANCEL,
    FUNCTION,
    OBJECT,
    STOP,
    WISH,
    CancellationFlag,
    receive_order,
)
from epctx_isolation.results import encode_fields
from epctx_isolation.shared_memory import ChildMemory

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core import PluginRecord

LATER = 3.0
"""Seconds after the deadline of a call until the process ends by itself: the host
should have ended it, and is gone.
"""
_COMPILES = frozenset({"get_capability", "optimize_model", "compile"})
"""Hooks that a load of a context model does not call."""
_CALL = "epctx_call"
"""Attribute of a MemoryError: record and hook of the call that raised it."""
_SHOWN_PARTITIONS = 3
_LONGEST_NAME = 200
_MOST_FACTS = 50
_MOST_ITEMS = 1000
_LONGEST_FACTS = SMALL_HEAD // 2
"""Facts about a span, items of the lists among them, and bytes of all: a host takes no
larger message.
"""


def serve(line: int, control: int, memory: int) -> None:
    """Do the host's calls until it closes the line."""
    faulthandler.enable()
    service = Service(socket.socket(fileno=line), ChildMemory(memory))
    threading.Thread(
        target=service.obey,
        args=(socket.socket(fileno=control),),
        name="epctx-host",
        daemon=True,
    ).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            service.do_call()
    logging.shutdown()
    # The EP's threads and exit handlers may never end.
    os._exit(0)


class Service:
    """Objects that the host's calls made, and the line to it.

    Attributes:
        memory: shared with the host.
        objects: what calls made for later ones, by number.
    """

    def __init__(self, line: socket.socket, memory: ChildMemory) -> None:
        self.memory = memory
        self.objects: dict[int, Any] = {}
        self._line = line
        self._source = line.makefile("rb")
        self._asking = threading.RLock()
        self._raised: dict[int, Exception] = {}
        self._numbers = count(1)
        self._limits = Limits(seconds=math.inf, between=math.inf, max_bytes=None)
        self._calls: list[tuple[PluginRecord, str]] = []
        self._compiles = False
        self._model = ""
        self._partitions: dict[str, list[str]] = {}
        # Of the call that is under way, or comes next: number, and where its wishes are
        # noted. One value, since `obey` reads it while calls follow each other.
        self._call = 1, CancellationFlag(), RunOptions()
        self._is_called = False

    # -- calls of the host

    def do_call(self) -> None:
        """Do one call."""
        self._raised.clear()
        self._compiles = False
        self._partitions.clear()
        self.memory.write_state({})
        try:
            order = receive_order(self._source, self.memory, self._refer)
            function, arguments, folder = order
            if folder:
                os.chdir(folder)
            self._is_called = True
            # The alarm ends this process some time after a call should have been over,
            # even if native code never comes back.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            self._restart_alarm()
            result = function(self, *arguments)
        except EOFError:
            raise
        except BaseException as error:  # noqa: BLE001 - the host handles all that it raises
            limit_memory(None)  # the report of an error needs memory, too
            self._end_call({"say": "error", **self._describe_error(error)})
            limit_memory(self._limits.max_bytes)
        else:
            self._end_call({"say": "result", "result": result})

    def _end_call(self, report: Mapping[str, Any]) -> None:
        # The host may have wishes for its next call as soon as it has the report.
        with self._asking:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._is_called = False
            self._call = self._call[0] + 1, CancellationFlag(), RunOptions()
            self.send(report)

    def begin(self, limits: Limits, level: int) -> None:
        """Set the limits of this process, and send records to the host from now on.

        Args:
            limits: the limits.
            level: of the records.
        """
        self._limits = limits
        limit_memory(limits.max_bytes)
        # With less left, native code fails in ways that do not say that it is memory.
        bytearray(1 << 20)
        logger = logging.getLogger("epctx")
        logger.addHandler(_LogToHost(self, self._asking))
        logger.setLevel(level)
        logger.propagate = False
        watch_calls(self._watch)

    @property
    def run_options(self) -> RunOptions:
        """Options for a run, which the host may terminate."""
        return self._call[2]

    @property
    def calls_plugin(self) -> bool:
        """True while a plugin is called."""
        return bool(self._calls)

    def keep(self, value: Any) -> int:
        """Keep an object for later calls; return its number."""
        number = next(self._numbers)
        self.objects[number] = value
        return number

    def _refer(self, reference: tuple[str, Any]) -> Any:
        kind, name = reference
        if kind == CANCEL:
            return self._call[1]
        if kind == OBJECT:
            return pkgutil.resolve_name(name)
        if kind == FUNCTION:
            return _FUNCTIONS[name](self)
        return _Observer(self, name)

    def _describe_error(self, error: BaseException) -> dict[str, Any]:
        """Return the fields of a message about an error: the host's own, or one of
        epctx's.
        """
        hosts = {}
        cause: BaseException | None = error
        while cause is not None:
            for number, raised in self._raised.items():
                if raised is cause:
                    hosts = {"host": number, "is_same": raised is error}
            if isinstance(cause, MemoryError) and self._limits.max_bytes is not None:
                error = self._make_memory_error(cause)
                break
            cause = cause.__cause__
        if not isinstance(error, EpctxError):
            fault = Fail(f"another process failed: {describe(error)}.")
            fault.__cause__ = error
            error = fault
        return {**encode_error(error), **hosts}

    def _make_memory_error(self, error: MemoryError) -> EpctxError:
        limit = f"than the {self._limits.max_bytes:,} bytes that its process may have."
        hint = "Set ep.isolate_max_bytes higher, or leave it out."
        if _CALL not in vars(error):
            return Fail(f"epctx needed more memory {limit}", hint=hint)
        record, hook = vars(error)[_CALL]
        fault = f"{record.label} needed more memory in {hook} {limit}"
        return plugin_error(fault, record, hook=hook, hint=hint)

    # -- what the process does

    @contextlib.contextmanager
    def _watch(
        self, record: PluginRecord, hook: str, arguments: Sequence[Any]
    ) -> Iterator[None]:
        """Say in shared memory that a plugin is called, as long as that takes."""
        self._calls.append((record, hook))
        try:
            self._note_call(record, hook, arguments)
            self._write_state()
            yield
        except MemoryError as error:
            # The report names the innermost call that ran out of it.
            vars(error).setdefault(_CALL, (record, hook))
            raise
        finally:
            self._calls.pop()
            with contextlib.suppress(MemoryError):
                self._write_state()

    def _note_call(
        self, record: PluginRecord, hook: str, arguments: Sequence[Any]
    ) -> None:
        self._compiles = self._compiles or hook in _COMPILES
        if hook == "__init__":
            self._model = arguments[0].model.name
        elif hook == "compile":
            lists = (a for a in arguments if isinstance(a, list | tuple))
            names = [str(partition.name) for each in lists for partition in each]
            self._partitions[record.name] = names

    def _write_state(self) -> None:
        state: dict[str, Any] = {"compiles": self._compiles}
        if self._calls:
            record, hook = self._calls[-1]
            names = self._partitions.get(record.name, [])
            state |= {
                "ep": record.name,
                "distribution": record.distribution,
                "hook": hook,
                "model": self._model[:_LONGEST_NAME],
                "partitions": names[:_SHOWN_PARTITIONS],
                "count": len(names),
            }
        self.memory.write_state(state)
        self._restart_alarm()

    def _restart_alarm(self) -> None:
        limits = self._limits
        hook = self._calls[-1][1] if self._calls else None
        seconds = limits.get_seconds(hook)
        if self._compiles and limits.compile_seconds is not None:
            # The only limit that a host may have set; a run has none then.
            seconds = min(seconds, max(limits.compile_seconds, START_SECONDS))
        if seconds < math.inf:
            signal.setitimer(signal.ITIMER_REAL, seconds + LATER)

    @contextlib.contextmanager
    def _pausing(self) -> Iterator[None]:
        """Set no alarm while the host is at work."""
        is_set = signal.getitimer(signal.ITIMER_REAL)[0] > 0
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            yield
        finally:
            if is_set:
                self._restart_alarm()

    # -- the line

    def obey(self, control: socket.socket) -> None:
        """Do what the host wants besides its calls, until it is gone, which ends this
        process: an EP may never return.
        """
        while wish := control.recv(WISH.size, socket.MSG_WAITALL):
            kind, number = WISH.unpack(wish)
            call, cancel, run_options = self._call
            if number != call:
                continue
            if kind == STOP:
                cancel.set(True)
            else:
                run_options.terminate = True
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def send(self, head: Mapping[str, Any], blobs: Iterable[Buffer] = ()) -> None:
        """Send a message; an EP may do so from its threads."""
        with self._asking:
            send_message(cast("Any", self._line), head, blobs)

    def tell(self, kind: str, **facts: Any) -> None:
        """Tell the host something; a failure of it is raised there when the call is
        over.
        """
        self.send({"say": "tell", "kind": kind, **facts})

    def report_progress(self, **facts: Any) -> None:
        """Tell the host of progress; note its wish to cancel, which its callback may
        have.
        """
        with self._asking:
            if not self._is_called:
                # A thread of an EP after the call; nobody answers.
                self.tell("progress", **facts)
            elif self.ask("progress", **facts):
                self._call[1].set(True)

    def ask(self, kind: str, chunks: Iterable[Buffer] = (), **facts: Any) -> Any:
        """Return what a function of the host returned.

        Args:
            kind: the function.
            chunks: bytes that the host asks for one by one.
            facts: the function's arguments.

        Raises:
            EpctxError: the host's function raised, or its result is wrong.
        """
        with self._asking, self._pausing():
            self.send({"say": "ask", "kind": kind, **facts})
            left = iter(chunks)
            while True:
                answer, value = receive_order(self._source, self.memory, self._refer)
                if answer == "reply":
                    return value
                if answer == "failed":
                    number, known, name, text = value
                    error: Exception = (
                        type(name, (Exception,), {})(text)
                        if known is None
                        else decode_error(Message(known))
                    )
                    self._raised[number] = error
                    raise error
                chunk = next(left, None)
                self.send({"say": "chunk"}, [] if chunk is None else [chunk])


def limit_memory(max_bytes: int | None) -> None:
    """Set the memory that this process may take from now on; None for the limit with
    which it started.
    """
    # Files that are mapped, such as weights and payloads, do not count.
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = hard if max_bytes is None else max_bytes
    resource.setrlimit(
        resource.RLIMIT_DATA,
        (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard),
    )


class _LogToHost(logging.Handler):
    """Sends records to the host."""

    def __init__(self, service: Service, lock: Any) -> None:
        super().__init__()
        self._service = service
        # One of its own and that of `tell` could be taken in two orders.
        self.lock = lock

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            text = concealed(self.format(record))[:LONGEST_RECORD]
            name = record.name[:LONGEST_RECORD]
            self._service.tell(
                "log",
                logger=name,
                level=record.levelno,
                text=text,
            )
        except Exception:  # noqa: BLE001 - as every handler: a record never fails the work
            self.handleError(record)


class _Observer:
    """Host plugin that has one of the host's observe spans."""

    def __init__(self, service: Service, number: int) -> None:
        self._service = service
        self._number = number
        self._spans = count()

    @contextlib.contextmanager
    def span(
        self, name: str, category: str, facts: Mapping[str, object]
    ) -> Iterator[None]:
        """Have the host's plugin observe a block."""
        number = next(self._spans)
        about = {"observer": self._number, "number": number}
        self._service.tell(
            "span",
            **about,
            name=name[:_LONGEST_NAME],
            category=category[:_LONGEST_NAME],
            facts=_shorten_facts(facts),
        )
        try:
            yield
        finally:
            self._service.tell("span_end", **about)


def _shorten_facts(facts: Mapping[str, object]) -> Mapping[str, object]:
    """Return facts about a span as a message may have them; long ones as their short
    texts.
    """
    shown: dict[str, object] = {}
    for key, fact in islice(facts.items(), _MOST_FACTS):
        shown[key[:_LONGEST_NAME]] = _to_plain(fact)

    lists = [fact for fact in shown.values() if isinstance(fact, list)]
    items = sum(map(len, lists))
    length = len(json.dumps(shown))
    if items > _MOST_ITEMS or length > _LONGEST_FACTS:
        return {key: f"{fact!r:.80}" for key, fact in shown.items()}
    return shown


def _to_plain(fact: object, *, is_item: bool = False) -> object:
    """Return a fact as JSON holds it; a list within a list as a short text."""
    if isinstance(fact, str):
        return fact[:_LONGEST_NAME]
    if isinstance(fact, int | float):
        return fact
    if isinstance(fact, list | tuple) and not is_item:
        items = fact[:_MOST_ITEMS]
        return [_to_plain(item, is_item=True) for item in items]
    return f"{fact!r:.80}"


def _make_progress(service: Service) -> Callable[..., Any]:
    def progress(stage: str, done: int, total: int) -> None:
        facts = {
            "stage": stage,
            "done": int(done),
            "total": int(total),
        }
        service.report_progress(is_of_ep=service.calls_plugin, **facts)

    return progress


def _make_read(service: Service) -> Callable[..., Any]:
    def read(name: str, buffer: Any) -> None:
        data = service.ask("read", name=name, most=buffer.max_size)
        if data is not None:
            buffer.allocate(len(data))
            buffer.write(data)

    return read


def _make_write(service: Service) -> Callable[..., Any]:
    def write(name: str, data: Any) -> None:
        service.ask("write", [data.read()], name=name)

    return write


def _make_sink(service: Service) -> Callable[..., Any]:
    def sink(chunks: Iterable[memoryview]) -> None:
        service.ask("sink", chunks)

    return sink


def _make_locate(service: Service) -> Callable[..., Any]:
    def locate(name: str, value: Any, now: Any) -> Any:
        facts = {"shape": value.shape(), "elem_type": value.element_type()}
        present = encode_fields(now)
        return service.ask(
            "locate", value.chunks(), name=name, present=present, **facts
        )

    return locate


_FUNCTIONS: Mapping[str, Callable[[Service], Callable[..., Any]]] = {
    "progress": _make_progress,
    "read": _make_read,
    "write": _make_write,
    "sink": _make_sink,
    "locate": _make_locate,
}
"""The host's functions as EPs and the core call them here."""
