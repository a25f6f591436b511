"""An EP in another process, as its host speaks with it: one call at a time, and what the EP asks for meanwhile.

Every way in which the other side can fail ends in one typed error and a process that is gone. Knows no hook.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from epctx_core.errors import EpctxError, Fail, PluginError, concealed
from epctx_core.ext import HOOKS, describe_instance
from epctx_isolation.channel import Channel, Message, ProtocolError, decode_error, describe, encode_error
from epctx_isolation.process import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core import PluginRecord
    from epctx_core.ext import SentModel
    from epctx_core.plugin import ExecutionProvider, ProviderContext, Purpose

Answer: TypeAlias = "tuple[Mapping[str, Any], Iterable[Buffer]]"
Answers: TypeAlias = "Mapping[str, Callable[[Message], Answer]]"
"""What the host does for an EP during a call, by the name of what it is asked for."""

_LONGEST_RECORD = 1 << 14
_OF_RUNS = {"run", *(hook.name for hook in HOOKS.values() if hook.in_runs)}
"""What has nothing to do with a load, and with the host's wish to cancel one."""

_START_SECONDS = 60
"""What a process may take to start on a busy machine, whatever the host allows for one call."""


@dataclass(frozen=True, kw_only=True)
class IsolatedEp:
    """Which EP works elsewhere, how, and what its process may take.

    Attributes:
        record: what is known about the plugin.
        cls: the EP's own class.
        mode: which of its work is done there: `ep.isolate`, "compile" or "all".
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
        ep: which EP.
        context: what an instance would get here.
        purpose: what the one there is made for.

    Raises:
        EpctxError: it could not be made there; see `DescribedInstance`.
        PluginError: its process died or took too long.
    """

    def __init__(self, ep: IsolatedEp, context: ProviderContext, purpose: Purpose) -> None:
        self._record = ep.record
        self._context = context
        self._limit = ep.seconds
        self._lock = threading.RLock()
        self._closed = self._busy = False
        self._describe = partial(describe_instance, ep.record, context, purpose)
        self._process = ChildProcess(context.scratch, limit=ep.max_bytes)
        level = context.logger.getEffectiveLevel()
        try:
            self.call(
                "__init__",
                {**self._describe(), "label": ep.record.label, "level": level, "max_bytes": ep.max_bytes},
            )
        except BaseException:
            self._close()
            raise

    def engine(self) -> Any:
        """Return how engines are set up by now; a session says more of it while it is made."""
        return self._describe()["engine"]

    @property
    def channel(self) -> Channel:
        """For what an answer sends and receives besides itself."""
        return self._process.channel

    def call(
        self,
        hook: str,
        head: Mapping[str, Any],
        blobs: Iterable[Buffer] = (),
        answers: Answers | None = None,
        *,
        sizes: Sequence[int] | None = None,
        model: SentModel | None = None,
    ) -> Message:
        """Have the EP do something and return what it gave.

        Args:
            hook: what it is to do.
            head, blobs, sizes: the arguments; see `Channel.send`.
            answers: what is done for it meanwhile.
            model: sent first, if given.

        Raises:
            EpctxError: the EP raised it, or what was done for it did.
            PluginError: its process died, took too long, or sent what is no answer.
            ModelLoadCanceled: the host asked to stop and the process did not.
            Fail: it is called by what the host does for the EP.
        """
        with self._lock:
            if self._closed:
                raise self._died(hook)
            if self._busy:
                raise Fail(
                    f"{hook} of {self._record.label} was called by what the host does for another hook of it.",
                    ep=self._record.name,
                    hint="An isolated EP does one thing at a time: close its session elsewhere than in a callback.",
                )
            self._busy = True
            # The first call waits for a process that has yet to start.
            seconds = max(self._limit, _START_SECONDS) if hook == "__init__" else self._limit
            try:
                with self._process.watched(seconds, None if hook in _OF_RUNS else self._context.cancel):
                    if model is not None:
                        said, portions, lengths = model.packet()
                        self.channel.send({"do": "model", **said}, portions, lengths)
                    self.channel.send({"do": "call", "hook": hook, "seconds": seconds, **head}, blobs, sizes)
                    outcome = _Call(self, answers or {}).outcome()
            except (OSError, EOFError) as error:
                raise self._ended(hook) from error
            except ProtocolError as error:
                raise self.refuse(hook, error) from error
            except BaseException:
                # Whatever it does now is for nobody, and the next message would be of this call.
                self._process.kill("it was ended because its call was")
                self._close()
                raise
            finally:
                self._busy = False
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def refuse(self, hook: str, what: Exception) -> PluginError:
        """End the process because of what it sent; return the error to raise."""
        self._process.kill(f"it was ended because what it sent is no answer ({what})")
        return self._ended(hook)

    def shutdown(self) -> None:
        """Have the EP shut down, and end its process; further calls do nothing."""
        with self._lock:
            if self._closed:
                return
            try:
                self.call("shutdown", {})
            finally:
                self._close()

    def told(self, message: Message) -> None:
        """Take a record for the log, or progress."""
        if message.text("what") == "progress":
            self._context.progress(message.text("stage"), message.number("done"), message.number("total"))
        else:
            name = message.text("logger")
            if name != "epctx" and not name.startswith("epctx."):
                raise ProtocolError(f"a record for the logger {name!r:.80}")
            text = concealed(message.text("text"))[:_LONGEST_RECORD]
            logging.getLogger(f"epctx{name.removeprefix('epctx')}").log(message.number("level"), "%s", text)

    def _ended(self, hook: str) -> PluginError:
        """Close what is left of the process and return the error that says how it ended."""
        self._close()
        if hook not in _OF_RUNS:
            self._context.cancel.raise_if_requested()
        return self._died(hook)

    def _died(self, hook: str) -> PluginError:
        record = self._record
        return PluginError(
            f"{record.label} failed in {hook}: its process is gone; {self._process.how_it_ended()}",
            ep=record.name,
            hook=hook,
            distribution=record.distribution,
            version=record.version,
            hint="Report it to the plugin's vendor with the model. ep.isolate_timeout_seconds and "
            "ep.isolate_max_bytes are what its process may take.",
        )

    def _close(self) -> None:
        self._closed = True
        self._process.close()


class _Call:
    """One call on its way: what the EP asks for is done until the call is over."""

    def __init__(self, remote: RemoteProvider, answers: Answers) -> None:
        self._remote = remote
        self._answers = answers
        self._raised: list[Exception] = []
        self._told: Exception | None = None

    def outcome(self) -> Message | Exception:
        """Return what the EP gave or raised."""
        while True:
            message = self._remote.channel.receive()
            say = message.text("say")
            if say == "result":
                return self._told or message
            if say == "error":
                return self._told or self._error(message)
            self._serve(message, replies=say == "ask")

    def _error(self, message: Message) -> Exception:
        """Return what the EP raised; an error of ours that came back is the one that we raised."""
        if "host" not in message.head:
            return decode_error(message)
        number = message.number("host")
        if number >= len(self._raised):
            raise ProtocolError(f"our error {number}")
        return self._raised[number]

    def _serve(self, message: Message, *, replies: bool) -> None:
        what = message.text("what")
        answer = self._answers.get(what)
        if answer is None and what not in {"progress", "log"}:
            raise ProtocolError(f"it asked for {what!r:.80}")
        try:
            reply = self._done(answer, message)
        except (ProtocolError, EOFError):
            raise
        except Exception as error:  # noqa: BLE001 - the host's own; the EP gets it as it would without isolation
            self._raised.append(error)
            if not replies:
                self._told = error
                return
            said = encode_error(error) if isinstance(error, EpctxError) else {"text": describe(error)}
            self._remote.channel.send({"do": "failed", "host": len(self._raised) - 1, **said})
            return
        if replies:
            self._remote.channel.send({"do": "reply", **reply[0]}, reply[1])

    def _done(self, answer: Callable[[Message], Answer] | None, message: Message) -> Answer:
        if self._told is not None:
            raise self._told
        if answer is not None:
            return answer(message)
        self._remote.told(message)
        return {}, ()
