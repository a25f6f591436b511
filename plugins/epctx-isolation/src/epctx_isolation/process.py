"""Host's side of a child: start it, call it, and whatever it does, end in a result or
one typed error.

The thread that calls looks around while it waits: at the time, at the host's wish to
cancel, and at whether the process still lives. Its own children may hold its end of the
line and outlive it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from epctx_core.errors import (
    EpctxError,
    Fail,
    ModelLoadCanceled,
    concealed,
)
from epctx_core.ext import make_scratch_folder, plugin_error
from epctx_isolation.channel import (
    ProtocolError,
    RemoteError,
    make_printable,
    receive_message,
)
from epctx_isolation.conversation import Conversation
from epctx_isolation.limits import START_SECONDS, CompileLimit, Limits
from epctx_isolation.orders import STOP, TERMINATE, WISH, send_order
from epctx_isolation.process_group import ProcessGroup
from epctx_isolation.shared_memory import HostMemory

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core import PluginRecord, Registry, RunOptions
    from epctx_core.plugin import Cancellation
    from epctx_isolation.orders import HostObjects

GRACE_SECONDS = 5.0
"""Seconds for a process to stop by itself when the host asks it to."""
OUTPUT_SECONDS = 1.0
"""Seconds to read what an ended process has printed while others print, too."""
_LAST_WORDS_SECONDS = 1.0
"""Seconds for the last messages of an ended process to arrive; others may hold its end
of the line for longer.
"""
_LOOKS_EVERY = 0.05
_LINES = 64
_LINE_LENGTH = 400
_CHUNK = 1 << 16
_SCRIPT = Path(__file__).with_name("child.py")
_INTERRUPTED = "it was ended because its call was"


def _keep(result: Any) -> Any:
    return result


@dataclass(frozen=True, kw_only=True)
class Call:
    """Call of a function in a child.

    Attributes:
        function: of `epctx_isolation.calls`; it gets the child's `Service` first.
        arguments: its other arguments.
        objects: what of them stays with the host.
        decode: makes the result of what the child tells; raises ProtocolError for what
            is malformed.
        cancel: the host's wish to cancel.
        is_run: whether the arguments have arrays that are there until the next call.
        options: those of a run, which may be terminated.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    objects: HostObjects
    decode: Callable[[Any], Any] = _keep
    cancel: Cancellation | None = None
    is_run: bool = False
    options: RunOptions | None = None


class ChildProcess:
    """Python process that finds modules as this one does, with a folder of its own for
    temporary files; it does one call at a time.

    Attributes:
        memory: shared with it.
        limits: its limits.

    Args:
        limits: its limits.

    Raises:
        Fail: no process could be started.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._owner = os.getpid()
        self._turn = threading.RLock()
        self._is_busy = False
        self._calls = 0
        self._death: EpctxError | None = None
        self._hidden: set[str] = set()
        self._reason = ""
        self._stack = contextlib.ExitStack()
        try:
            self._start()
        except BaseException as error:
            # Such as a Ctrl-C.
            self._stack.close()
            # A thread that cannot be started is a RuntimeError.
            if not isinstance(error, (OSError, RuntimeError)):
                raise
            raise Fail(
                f"no process could be started for isolated work: {error}.",
                hint="ep.isolate needs sys.executable to be a Python interpreter.",
            ) from error

    def _start(self) -> None:
        if not hasattr(os, "preadv"):
            raise OSError("this system is not POSIX")
        folder = os.fspath(self._stack.enter_context(make_scratch_folder()))
        self.memory = HostMemory(self.limits.max_bytes)
        self._stack.callback(self.memory.close)
        self._line = _Line(self._look_if_due)
        self._stack.callback(self._line.close)
        self._control, far_control = socket.socketpair()
        self._stack.callback(self._control.close)
        self._printed = _Printed()
        self._stack.callback(self._printed.close)
        with self._line.far, far_control:
            if not sys.executable:
                raise FileNotFoundError("sys.executable is empty")
            ends = self._line.far, far_control
            handed = *(end.fileno() for end in ends), self.memory.descriptor
            # Not the host's group: the host handles a Ctrl-C in the terminal.
            self._process = ProcessGroup(
                [
                    sys.executable,
                    "-P",
                    os.fspath(_SCRIPT),
                    *map(str, handed),
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._printed.far_end,
                stderr=self._printed.far_end,
                pass_fds=handed,
                env={
                    **os.environ,
                    # What was said of onnxruntime the other one need not say.
                    "EPCTX_CHILD": "1" if self._has_spoken() else "",
                    "TMPDIR": folder,
                    "TEMP": folder,
                    "TMP": folder,
                },
            )
        self._stack.callback(self._process.wait_and_end, 0)
        path = json.dumps([os.fspath(folder) for folder in sys.path]).encode()
        self._begin_call()
        with contextlib.suppress(OSError, EOFError):
            # It died at once: the first call fails.
            self._line.sendall(struct.pack("<I", len(path)) + path)

    @staticmethod
    def _has_spoken() -> bool:
        is_told = bool(os.environ.get("EPCTX_CHILD"))
        return is_told or "epctx_onnxruntime.real" in sys.modules

    # -- calls

    @property
    def is_over(self) -> bool:
        """True once the process is gone, or was closed; and in a process that the host
        forked, whose it is not.
        """
        return self._death is not None or os.getpid() != self._owner

    def do(self, call: Call) -> Any:
        """Do a call in the child; return its decoded result.

        Raises:
            EpctxError: the child or a function of the host raised it.
            PluginError, Fail: the process died, took too long, or sent a malformed
                message.
            ModelLoadCanceled: the host cancelled, and the process did not stop.
        """
        with self._turn:
            self._refuse_call()
            self._is_busy = True
            self._conversation = Conversation(
                self._line,
                call.objects,
                limit=self.limits.max_bytes,
                cancel=call.cancel,
                pause=self._pause,
            )
            try:
                self._begin_call(call)
                # What it prints may be of an earlier call's options.
                self._hidden.update(call.objects.values)
                memory = self.memory if call.is_run else None
                order = call.function, call.arguments, _find_folder()
                try:
                    send_order(self._line, order, call.objects, memory)
                except EpctxError:
                    # Nothing was sent, so that the child counts no call.
                    self._calls -= 1
                    raise
                return call.decode(self._converse())
            except ProtocolError as error:
                self.kill(f"it was ended because it sent an invalid message ({error})")
                raise self._end_call(call) from error
            except BaseException as error:
                # NoSuchFile is an OSError, too, and so may be what the host raised.
                if isinstance(error, EpctxError) or error in self._conversation.raised:
                    raise
                if isinstance(error, (OSError, EOFError)):
                    death = self._end_call(call)
                    raise death from death.__cause__ or error
                # The call is over for the host, and the next message would belong to
                # it.
                self.kill(_INTERRUPTED)
                self._end_call(call)
                raise
            finally:
                self._conversation.close()
                self._is_busy = False

    def _refuse_call(self) -> None:
        if self._death is not None:
            raise self._death.with_traceback(None)
        if self._is_busy:
            raise Fail(
                "a session was used while a callback of it was under way in the same "
                "thread.",
                hint=(
                    "Isolated work does one thing at a time: do not use or close its "
                    "session in a callback."
                ),
            )

    def _converse(self) -> Any:
        """Serve the child until the call is over; return its result."""
        conversation = self._conversation
        while True:
            message = receive_message(self._line, self.limits.max_bytes)
            say = message.text("say")
            if say == "result":
                conversation.raise_failure()
                return message.head.get("result")
            if say == "error":
                raise conversation.decode_error(message)
            conversation.answer(message, asks=say == "ask")

    # -- what a call looks at while it waits

    def _begin_call(self, call: Call | None = None) -> None:
        # Sending the path is no call.
        self._calls += call is not None
        self._cancel = call.cancel if call else None
        self._options = call.options if call else None
        self._asked: float | None = None
        self._terminated = False
        self._ended: float | None = None
        self._changes = -1
        self._since = self._looked = time.monotonic()
        self._compile = CompileLimit(self.limits.compile_seconds)
        self._is_late = False

    def _look_if_due(self) -> None:
        if time.monotonic() > self._looked + _LOOKS_EVERY:
            self._look()

    def _look(self) -> None:
        """End the process, or ask it to stop, if it is time.

        Raises:
            EOFError: it has ended, and nothing more is to come.
        """
        now = self._looked = time.monotonic()
        changes, state = self.memory.read_state()
        if changes != self._changes:
            self._changes = changes
            self._since = now
        if self._ended is not None:
            if now > self._ended + _LAST_WORDS_SECONDS:
                raise EOFError
        elif self._process.has_ended():
            self._process.end()
            self._ended = now
        elif self._compile.is_over(now, begun=state.get("compiles") is True):
            self._is_late = True
            self.kill("its compile took longer than ep.compile_timeout")
        elif now > self._since + (seconds := self._get_seconds(changes, state)):
            self.kill(f"it took longer than the {seconds:g} seconds that it had")
        else:
            self._pass_on_wishes(now)

    def _get_seconds(self, changes: int, state: Mapping[str, Any]) -> float:
        """Return the seconds for what the process does now."""
        if not changes:
            return START_SECONDS
        return self.limits.get_seconds(state.get("hook"))

    def _pause(self, seconds: float) -> None:
        self._since += seconds

    def _pass_on_wishes(self, now: float) -> None:
        if self._asked is not None:
            if now > self._asked + GRACE_SECONDS:
                self.kill("it did not stop when the host asked it to")
        elif self._cancel is not None and self._cancel.requested:
            self._asked = now
            self._tell(STOP)
        if not self._terminated and self._options and self._options.terminate:
            self._terminated = True
            self._tell(TERMINATE)

    def _tell(self, wish: bytes) -> None:
        with contextlib.suppress(OSError):
            self._control.send(WISH.pack(wish, self._calls), socket.MSG_DONTWAIT)

    # -- its end

    def kill(self, reason: str) -> None:
        """End the process and its children, also while another thread waits for a call;
        the first reason counts.
        """
        if not self.is_over:
            self._reason = self._reason or reason
            self._process.end()

    def close(self) -> None:
        """Wait for the end of the process, at most `GRACE_SECONDS`, then end and remove
        the rest, in at most `OUTPUT_SECONDS` whoever else has its pipes; may be called
        again. In a process that the host forked it does nothing. In a callback of a
        call it ends the call, which does the rest.
        """
        if os.getpid() != self._owner:
            return
        with self._turn:
            if self._is_busy:
                self.kill("it was closed in a callback of its call")
                return
            if self._death is None:
                self._death = Fail(
                    "the process of this work has ended.", hint="Begin again."
                )
            self._release()

    def _release(self) -> None:
        self._line.hang_up()
        if self._process.first.returncode is None and not self._process.wait_and_end(
            GRACE_SECONDS
        ):
            self._reason = self._reason or "it did not end when the host asked it to"
        self._stack.close()

    def _end_call(self, call: Call) -> EpctxError:
        """Close the process; return the error about its end, or the host's wish to
        cancel that led to it.
        """
        _, state = self.memory.read_state()
        self._release()
        record = _find_record(state, call.objects.registry)
        end = f"its process is gone; {self.describe_end()}"
        hint = self._make_hint(is_run=call.is_run)
        if record is None:
            self._death = Fail(f"isolated work failed: {end}", hint=hint)
        else:
            hook = make_printable(str(state.get("hook")), _LINE_LENGTH)
            event = "failed"
            if self._is_late:
                event = "timed out"
                end = self._compile.describe_excess(state, self._conversation.progress)
                hint = self._compile.describe_remedy(record.name)
            fault = f"{record.label} {event} in {hook}: {end}"
            self._death = plugin_error(fault, record, hook=hook, hint=hint)
        if output := "\n".join(self._list_printed()):
            self._death.__cause__ = RemoteError(f"its process printed:\n{output}")
        if self._cancel is not None and self._cancel.requested:
            return ModelLoadCanceled("the host cancelled the work.")
        return self._death

    def describe_end(self) -> str:
        """Return how the process ended, with the last line that it printed."""
        end = self._reason or f"it {self._process.ending}"
        # A message is one line; the cause has all. Behind a crash in native code Python
        # writes its stack.
        lines = self._list_printed()
        crash = [line for line in lines if line.startswith("Fatal Python error")]
        last = (*lines, *crash)[-1] if lines else ""
        if not last:
            return f"{end}."
        return f"{end}. It printed: {last.strip()}"

    def _list_printed(self) -> list[str]:
        """Return the last lines that it printed, without values of options."""
        return self._printed.list_lines(self._hidden)

    def _make_hint(self, *, is_run: bool) -> str:
        is_interrupted = self._reason == _INTERRUPTED
        hints = []
        if is_run:
            hints.append("Make a new session: this one has no process any more.")
        elif is_interrupted:
            hints.append("Begin again with a new compile or session.")
        if not is_interrupted:
            hints.append(
                "Report it to the plugin's vendor with the model. "
                "ep.compile_timeout, ep.isolate_timeout_seconds and "
                "ep.isolate_max_bytes limit its process."
            )
        return " ".join(hints)


def _find_folder() -> str:
    """Return the working folder, to which a call's paths are relative; empty if it is
    gone.
    """
    try:
        return os.getcwd()  # noqa: PTH109 - a text
    except OSError:
        return ""


def _find_record(state: Mapping[str, Any], registry: Registry) -> PluginRecord | None:
    """Return the plugin that was called at the process's end."""
    key = (state.get("ep"), state.get("distribution"))
    records = registry.records()
    return next((r for r in records if (r.name, r.distribution) == key), None)


class _Line:
    """Host's end of the line, whose waits look around.

    Attributes:
        far: the child's end, until it has it.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        self._near, self.far = socket.socketpair()
        self._near.settimeout(_LOOKS_EVERY)
        self._look = look

    def readinto(self, buffer: memoryview) -> int:
        """Read some bytes."""
        while True:
            # A child that sends without end makes nobody wait.
            self._look()
            with contextlib.suppress(TimeoutError):
                return self._near.recv_into(buffer)

    def sendall(self, data: Buffer) -> None:
        """Send all bytes."""
        left = memoryview(data).cast("B")
        while left:
            self._look()
            with contextlib.suppress(TimeoutError):
                left = left[self._near.send(left) :]

    def hang_up(self) -> None:
        """Close the writing side, which ends the process."""
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end."""
        self._near.close()


class _Printed:
    """Last lines that a process prints.

    Attributes:
        far_end: standard output and error of the process.
    """

    def __init__(self) -> None:
        self._end = b""
        source, self.far_end = os.pipe()
        stop, self._stop = os.pipe()
        self._thread = threading.Thread(
            target=self._keep_end,
            args=(open(source, "rb", buffering=0), open(stop, "rb", buffering=0)),  # noqa: SIM115, PTH123 - the thread closes them
            name="epctx-stderr",
            daemon=True,
        )
        self._thread.start()

    def list_lines(self, hidden: Collection[str]) -> list[str]:
        """Return the lines without some values; complete after `close`."""
        text = concealed(self._end.decode(errors="replace"))
        # One value may begin with another.
        for value in sorted(hidden, key=len, reverse=True):
            text = text.replace(value, "[secret]")
        # The first one may have lost its beginning, and a secret in it the half.
        first = len(self._end) == _LINES * _LINE_LENGTH
        return [
            make_printable(line, _LINE_LENGTH)
            for line in text.splitlines()[first:][-_LINES:]
            if line.strip()
        ]

    def close(self) -> None:
        """Read what the ended process has printed, then release the pipe and its
        thread.

        Other processes may still print, or read the pipe themselves: their output is
        lost after `OUTPUT_SECONDS`, or as soon as there is none.
        """
        os.close(self.far_end)
        os.close(self._stop)
        self._thread.join()

    def _keep_end(self, source: IO[bytes], stop: IO[bytes]) -> None:
        with source, stop:
            for chunk in _read_until_stopped(source, stop):
                self._end = (self._end + chunk)[-_LINES * _LINE_LENGTH :]


def _read_until_stopped(source: IO[bytes], stop: IO[bytes]) -> Iterator[bytes]:
    """Yield what comes from a pipe until it ends; once the other end of `stop` is
    closed, until it is empty, for at most `OUTPUT_SECONDS`.
    """
    # Another reader may be faster after the pipe was found to have bytes.
    os.set_blocking(source.fileno(), False)
    with selectors.DefaultSelector() as selector:
        for file in (source, stop):
            selector.register(file, selectors.EVENT_READ)
        deadline = math.inf
        while time.monotonic() < deadline:
            waiting = deadline == math.inf
            ready = {k.fileobj for k, _ in selector.select(None if waiting else 0)}
            if waiting and stop in ready:
                deadline = time.monotonic() + OUTPUT_SECONDS
            if source in ready:
                chunk = source.read(_CHUNK)
                if chunk == b"":
                    return
                yield chunk or b""
            elif not waiting:
                return
