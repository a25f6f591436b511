"""Host's side of an EP in another process: one call at a time, and the EP's requests
during it.

Every failure of the other process ends in one typed error, and the process is ended.
Knows no hook.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_core.errors import (
    EpctxError,
    Fail,
    InternalError,
    PackageMissing,
    PluginError,
    describe,
)
from epctx_core.ext import HOOKS
from epctx_core.plugin import Purpose
from epctx_isolation.channel import (
    LONGEST_RECORD,
    Channel,
    Message,
    ProtocolError,
    RemoteError,
    decode_error,
    encode_error,
    make_printable,
)
from epctx_isolation.compile_limit import KEY, CompileLimit, describe_remedy
from epctx_isolation.model_copy import pack_model
from epctx_isolation.process import GRACE_SECONDS, ChildProcess

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core import PluginRecord
    from epctx_core.ext import GraphIndex
    from epctx_core.plugin import ExecutionProvider, ProviderContext

Reply: TypeAlias = "tuple[Mapping[str, Any], Iterable[Buffer]]"
"""Head and blobs of a message."""
Handlers: TypeAlias = "dict[str, Callable[[Message], Reply]]"
"""Functions that serve an EP during a call, by the name of its request."""

_LONGEST_STAGE = 1 << 8
_LONGEST_FACTS = 1 << 9
_MOST_SPANS = 1 << 8
"""Spans of an EP that are open at the same time."""
_OF_RUNS = {"run", *(hook.name for hook in HOOKS.values() if hook.in_runs)}
"""Calls that the cancellation of a load does not concern."""
_ABOUT_GRAPHS = {h.name for h in HOOKS.values() if h.result.startswith("Sequence[")}
"""Calls during which messages grow with the model's nodes."""

_CALL_LIMIT_KEY = "ep.isolate_timeout_seconds"
_NO_WORK = {*_OF_RUNS, "__init__", "shutdown"}
"""Calls that are not part of a compile's work."""

_PROCESS = "epctx-isolation: process"
"""Key of the workspace of a share group for the process of its EP."""

_START_SECONDS = 60
"""Seconds for a process to start on a busy machine, whatever the host allows for one
call.
"""


@dataclass(frozen=True, kw_only=True)
class IsolatedEp:
    """An EP that works in another process, and the limits of that process.

    Attributes:
        record: the plugin's.
        cls: the EP's own class.
        mode: the part of its work that is done there: `ep.isolate`, "compile" or "all".
        seconds: for one call.
        max_bytes: of memory for data, and in one message; None for any.
    """

    record: PluginRecord
    cls: type[ExecutionProvider]
    mode: str
    seconds: int
    max_bytes: int | None


class RemoteProvider:
    """One EP instance in a process of its own.

    Args:
        ep: the EP.
        context: the context of an instance in this process.
        purpose: the purpose of the instance in the other process.

    Attributes:
        limit: the time that its compile may take.

    Raises:
        EpctxError: the EP's `__init__` raised it there.
        PluginError: the EP cannot be made there, or its process died or took too long.
    """

    def __init__(
        self, ep: IsolatedEp, context: ProviderContext, purpose: Purpose
    ) -> None:
        self._record = ep.record
        self._context = context
        self.limit = CompileLimit.of(context)
        self._call_seconds = ep.seconds
        # Whether the call that is under way may take what its compile has left.
        self._has_compile_time = False
        self._closed = False
        self._nodes = 0  # of the model that was sent last, with its subgraphs
        # Errors of this process that the EP was told about during a call, and the one
        # that ends it.
        self._raised: list[Exception] = []
        self._failure: Exception | None = None
        self._spans: dict[int, AbstractContextManager[object]] = {}
        self._next_span = 0
        start = partial(ChildProcess, context.scratch, limit=ep.max_bytes)
        # Instances of a share group have objects in common, so a process, too.
        self._is_shared = (
            context.workspace.is_shared and context.purpose is Purpose.EXPORT
        )
        self._process = (
            context.workspace.get_or_create(_PROCESS, start, ChildProcess.close)
            if self._is_shared
            else start()
        )
        with self._process.turn:
            self._process.instances += 1
            self._number = self._process.instances
        names = ("name", "sources", "distribution", "version", "entry_point")
        head = {
            "record": {name: getattr(ep.record, name) for name in names},
            # A derived class would not be the one that its parent's factory makes.
            "factory": vars(ep.cls).get("factory"),
            "options": dict(context.options),
            "session_config": dict(context.session_config),
            "purpose": purpose.value,
            "model": {
                **vars(context.model),
                "opset_imports": dict(context.model.opset_imports),
            },
            "weightless": int(context.weightless),
            "threads": context.intra_op_num_threads,
            "observed": context.span is not type(context).span,
            "engine": self.engine(),
            "level": context.logger.getEffectiveLevel(),
            "max_bytes": ep.max_bytes,
        }
        try:
            self.call("__init__", head)
        except BaseException:
            self._leave()
            raise

    def engine(self) -> dict[str, Any]:
        """Return the current settings of the engine; a session changes them while it is
        made.
        """
        return asdict(self._context.engine.policy)

    @property
    def channel(self) -> Channel:
        """The channel, for a handler that sends and receives besides its reply."""
        return self._process.channel

    def call(
        self,
        hook: str,
        head: Mapping[str, Any],
        blobs: Iterable[Buffer] = (),
        handlers: Handlers | None = None,
        *,
        sizes: Sequence[int] | None = None,
        model: GraphIndex | None = None,
    ) -> Message:
        """Call the EP and return the message with its result.

        Args:
            hook: the hook's name, or "__init__", "run".
            head, blobs, sizes: the arguments; see `Channel.send`.
            handlers: serve the EP during the call.
            model: sent before the call.

        Raises:
            EpctxError: the EP or a handler raised it.
            PluginError: the process died, took too long, or sent a malformed message.
            ModelLoadCanceled: the host cancelled, and the process did not stop.
            Fail: a handler called it.
        """
        process = self._process
        with process.turn:
            if self._is_over:
                # What ended it, such as another model of a share group, took its time.
                self._has_compile_time = False
                raise self._make_death_error(hook)
            if process.is_busy:
                raise Fail(
                    f"{hook} of {self._record.label} was called while the host served "
                    "another hook of it.",
                    ep=self._record.name,
                    hint=(
                        "An isolated EP does one thing at a time: do not close its "
                        "session in a callback."
                    ),
                )
            process.is_busy = True
            seconds = self._choose_seconds(hook)
            cancel = None if hook in _OF_RUNS else self._context.cancel
            try:
                with (
                    process.watched(
                        seconds,
                        cancel,
                        self._describe_limit(),
                        instance=self._number,
                    ),
                    self._count_time(hook),
                ):
                    if model is not None:
                        self._send_model(model)
                    facts = {"hook": hook, "seconds": math.ceil(seconds), **head}
                    self._send("call", facts, blobs, sizes)
                    outcome = self._serve(hook, handlers or {})
            except (OSError, EOFError) as error:
                death = self._close_after(hook)
                raise death from death.__cause__ or error
            except ProtocolError as error:
                raise self.refuse(hook, error) from error
            except BaseException:
                # The call is over for the host, and the next message would belong to
                # it.
                process.kill_interrupted()
                self._close()
                raise
            finally:
                process.is_busy = False
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def refuse(self, hook: str, reason: Exception) -> PluginError:
        """End the process because of a message that it sent; return the error to
        raise.
        """
        self._process.kill(
            f"it was ended because it sent an invalid message ({reason})"
        )
        return self._close_after(hook)

    def shutdown(self) -> None:
        """Shut the EP down and end its process, unless a share group does so at its
        end; further calls do nothing.
        """
        with self._process.turn:
            if self._is_over:
                return
            try:
                self.call("shutdown", {"stays": self._is_shared})
            finally:
                self._leave()

    def _send_model(self, model: GraphIndex) -> None:
        self._nodes = sum(len(graph.nodes) for graph in model.walk())
        head, portions, lengths = pack_model(model)
        self._send("model", head, portions, lengths)

    def _send(
        self,
        kind: str,
        head: Mapping[str, Any],
        blobs: Iterable[Buffer],
        sizes: Sequence[int] | None,
    ) -> None:
        """Send a message to this instance."""
        facts = {"do": kind, "instance": self._number, **head}
        self.channel.send(facts, blobs, sizes)

    def _describe_limit(self) -> str:
        """Return the reason for ending a call late; empty for its own limit."""
        return f"its compile took longer than {KEY}" if self._has_compile_time else ""

    def _choose_seconds(self, hook: str) -> float:
        """Return the seconds that a call may take."""
        limit = self.limit
        seconds: float = self._call_seconds
        self._has_compile_time = False
        if limit.seconds is not None and hook not in _OF_RUNS:
            # A host that sets only the longer limit means that a call may take it all.
            if _CALL_LIMIT_KEY not in self._context.session_config:
                seconds = math.inf
            if hook not in _NO_WORK:
                self._has_compile_time = limit.remaining < seconds
                return min(limit.remaining, seconds)
            seconds = min(seconds, max(limit.remaining, GRACE_SECONDS))

        # The first call waits for a process that has yet to start.
        return max(seconds, _START_SECONDS) if hook == "__init__" else seconds

    def _count_time(self, hook: str) -> AbstractContextManager[None]:
        """Count the time of a call that works on a compile."""
        return nullcontext() if hook in _NO_WORK else self.limit.counted()

    def _serve(self, hook: str, handlers: Handlers) -> Message | Exception:
        """Serve the EP until the call is over; return its result, or the error to
        raise.
        """
        self._raised = []
        self._failure = None
        handlers = {
            "progress": self._report_progress,
            "span": self._begin_span,
            "span_end": self._end_span,
            "log": self._log,
            **handlers,
        }
        try:
            return self._answer(hook, handlers)
        finally:
            # Those that the EP left open, also by ending; the innermost first.
            for number in reversed([*self._spans]):
                self._spans.pop(number).__exit__(None, None, None)

    def _answer(self, hook: str, handlers: Handlers) -> Message | Exception:
        """Answer the EP's requests until its result."""
        nodes = self._nodes if hook in _ABOUT_GRAPHS else 0
        while True:
            message = self.channel.receive(nodes)
            say = message.text("say")
            if say == "result":
                return self._failure or message
            if say == "error":
                if self._failure is not None or "host" not in message.head:
                    return self._failure or self._decode_error(hook, message)
                # One that this process raised before: the same object.
                number = message.number("host")
                if number >= len(self._raised):
                    raise ProtocolError(f"error {number} of the host")
                return self._raised[number]
            self._handle(message, handlers, replies=say == "ask")

    def _decode_error(self, hook: str, message: Message) -> EpctxError:
        """Return the error that the EP raised; one that blames epctx or its
        installation becomes the cause of one that blames the plugin.
        """
        error = decode_error(message)
        if not isinstance(error, (InternalError, PackageMissing)):
            return error
        fault = self._make_plugin_error(
            hook,
            f"{type(error).__name__}: {error.message}",
            "This is a fault of the plugin; its own exception is the cause of this "
            "error (`-v` shows it).",
        )
        fault.__cause__ = error
        return fault

    def _handle(self, message: Message, handlers: Handlers, *, replies: bool) -> None:
        name = message.text("what")
        handler = handlers.get(name)
        if handler is None:
            raise ProtocolError(f"an unknown request {name!r:.80}")
        try:
            if self._failure is not None:
                raise self._failure  # noqa: TRY301 - whatever is asked after it
            head, blobs = handler(message)
        except (ProtocolError, EOFError):
            raise
        except Exception as error:  # noqa: BLE001 - the host's own; the EP gets it as it would without isolation
            self._raised.append(error)
            if not replies:
                self._failure = error
                return
            facts = (
                encode_error(error)
                if isinstance(error, EpctxError)
                else {"text": describe(error)}
            )
            number = len(self._raised) - 1
            self.channel.send({"do": "failed", "host": number, **facts})
            return
        if replies:
            self.channel.send({"do": "reply", **head}, blobs)

    def _report_progress(self, message: Message) -> Reply:
        stage = make_printable(message.text("stage"), _LONGEST_STAGE)
        done = message.number("done")
        total = message.number("total")
        self.limit.note_progress(stage, done, total)
        self._context.progress(stage, done, total)
        return {}, ()

    def _begin_span(self, message: Message) -> Reply:
        """Have the host's plugins observe what the EP does from now on."""
        number = message.number("number")
        if number < self._next_span or len(self._spans) >= _MOST_SPANS:
            raise ProtocolError(f"the span {number} within {len(self._spans)} others")
        self._next_span = number + 1
        name = make_printable(message.text("name"), _LONGEST_STAGE)
        # Short texts, so that what a host keeps of many spans stays small.
        facts = make_printable(message.text("facts"), _LONGEST_FACTS)
        span = self._context.span(name, **({"facts": facts} if facts else {}))
        span.__enter__()
        self._spans[number] = span
        return {}, ()

    def _end_span(self, message: Message) -> Reply:
        number = message.number("number")
        if number >= self._next_span:
            raise ProtocolError(f"the end of a span {number} that was not begun")
        # A thread of the EP may end one after the call in which it began it.
        span = self._spans.pop(number, None)
        if span is not None:
            span.__exit__(None, None, None)
        return {}, ()

    def _log(self, message: Message) -> Reply:
        """Log a record with the EP's own logger, or with one below it that exists:
        `getLogger` makes a logger, and another one for each dot in its name.
        """
        name = message.text("logger")
        text = message.text("text")
        logger = self._context.logger
        named_logger = logging.Logger.manager.loggerDict.get(name)
        if isinstance(named_logger, logging.Logger) and name.startswith(
            f"{logger.name}."
        ):
            logger = named_logger
        elif name != logger.name:
            text = f"{name}: {text}"

        level = min(message.number("level"), logging.CRITICAL)
        logger.log(level, "%s", make_printable(text, LONGEST_RECORD))
        return {}, ()

    def _close_after(self, hook: str) -> PluginError:
        """Close the process, and return the error about its end."""
        self._close()
        if hook not in _OF_RUNS:
            self._context.cancel.raise_if_requested()
        return self._make_death_error(hook)

    def _make_death_error(self, hook: str) -> PluginError:
        if self._has_compile_time and self._process.is_late:
            error = self._make_plugin_error(
                hook,
                self.limit.describe_excess(hook),
                describe_remedy(self._record.name),
                event="timed out",
            )
        else:
            error = self._make_plugin_error(
                hook,
                f"its process is gone; {self._process.describe_end()}",
                self._make_death_hint(hook),
            )
        if output := self._process.output:
            error.__cause__ = RemoteError(f"its process printed:\n{output}")
        return error

    def _make_death_hint(self, hook: str) -> str:
        """Return what a host can do about the end of the process."""
        hints = []
        if hook in _OF_RUNS:
            hints.append("Make a new session: this one cannot use the EP any more.")
        elif self._process.is_interrupted:
            hints.append("Begin again with a new compile or session.")
        if not self._process.is_interrupted:
            hints.append(
                "Report it to the plugin's vendor with the model. "
                "ep.compile_timeout, ep.isolate_timeout_seconds and "
                "ep.isolate_max_bytes limit its process."
            )
        return " ".join(hints)

    def _make_plugin_error(
        self, hook: str, fault: str, hint: str, *, event: str = "failed"
    ) -> PluginError:
        record = self._record
        return PluginError(
            f"{record.label} {event} in {hook}: {fault}",
            ep=record.name,
            hook=hook,
            distribution=record.distribution,
            version=record.version,
            hint=hint,
        )

    @property
    def _is_over(self) -> bool:
        """True once the instance was shut down, or its process is gone."""
        return self._closed or self._process.is_closed

    def _leave(self) -> None:
        self._closed = True
        if not self._is_shared:
            self._process.close()

    def _close(self) -> None:
        self._closed = True
        self._process.close()
