"""The process of an EP from inside: makes the one instance and does what the host asks of it.

Hooks are called as in a host's own process, so that what an EP does wrong is noticed and named here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import onnx

from epctx_core.context.workspace import PrivateWorkspace
from epctx_core.errors import EpctxError, PluginError, RuntimeException
from epctx_core.isolation.channel import Channel, Message
from epctx_core.isolation.failures import HostError, encode_error
from epctx_core.isolation.host import Host, LogToHost
from epctx_core.isolation.models import ReceivedModel, decode_weights
from epctx_core.isolation.outcomes import encode_claims, encode_descriptions
from epctx_core.isolation.stand_ins import RemotePayloadView, RemoteReader, RemoteSlice, RemoteWriter
from epctx_core.isolation.values import decode_arrays, decode_nodes, encode_arrays
from epctx_core.kernels import CpuEngine, EnginePolicy, KernelMatcher, RegistryLookup
from epctx_core.options import WeightlessMode
from epctx_core.plugin import (
    CompiledPartition,
    ModelIdentity,
    ProviderContext,
    Purpose,
)
from epctx_core.registry.guard import blame, contract_broken, describe, plugin_error
from epctx_core.registry.instances import ProviderInstances, closers
from epctx_core.registry.loading import import_provider
from epctx_core.registry.records import PluginRecord, PluginState

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined,unused-ignore]

    from epctx_core.graph.subgraph import GraphPartition

_LATER = 3.0
"""Seconds after a call's time at which the process ends by itself: its host should have ended it, and is gone."""

_Result = tuple[Mapping[str, Any], "Iterable[Buffer]"]
_NOTHING: _Result = ({}, ())


def serve(source: int, sink: int) -> None:
    """Do what the host asks for over a line, until it asks for the end."""
    faulthandler.enable()
    host = Host(Channel(os.fdopen(source, "rb"), os.fdopen(sink, "wb")))
    start = host.next_message()
    service = _Service(host, start)
    over = _perform(service, host, start)
    while not over:
        over = _perform(service, host, host.next_message())
    logging.shutdown()
    # The EP's threads and exit handlers may never end.
    os._exit(0)


def _perform(service: _Service, host: Host, message: Message) -> bool:
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


def _told(service: _Service, hook: str, error: BaseException) -> dict[str, Any]:
    """Return what the host is told of an error: its own, one of the tree, or a fault of the EP."""
    # What an EP raised stands behind the error that blames it.
    origin = error.__cause__ if isinstance(error.__cause__, (HostError, MemoryError)) else error
    for number, raised in service.host.raised.items():
        if raised is origin:
            return {"host": number}
    if isinstance(origin, MemoryError) and service.max_bytes is not None:
        error = plugin_error(
            f"{service.record.label} needed more memory in {hook} than the {service.max_bytes:,} bytes that "
            "its process may have.",
            service.record,
            hook=hook,
            hint="Set ep.isolate_max_bytes higher, or leave it out.",
        )
    elif not isinstance(error, EpctxError):
        what = f"{service.record.label} failed in {hook}: {describe(error)}"
        error = plugin_error(what, service.record, hook=hook)
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


class _Service:
    """One EP instance and what the host has shown it."""

    def __init__(self, host: Host, start: Message) -> None:
        self.max_bytes: int | None = start.head["max_bytes"]
        self.record = PluginRecord(**start.head["record"], state=PluginState.DISCOVERED)
        self.received: Message | None = None
        self.host = host
        self._instances = ProviderInstances()
        self._model_now: ReceivedModel | None = None
        self._policy = EnginePolicy()
        self._tokens: list[object] = []
        self._partitions: list[GraphPartition] = []
        self._runnables: list[CompiledPartition] = []
        self._payloads: dict[int, RemotePayloadView] = {}
        self._hooks: Mapping[str, Callable[[Message], _Result]] = {
            "__init__": self._start,
            "get_capability": self._get_capability,
            "optimize_model": self._optimize_model,
            "compile": self._compile,
            "get_ep_context_nodes": self._get_ep_context_nodes,
            "load_context": self._load_context,
            "run": self._run,
            "set_dynamic_options": self._set_dynamic_options,
            "on_run_start": self._on_run,
            "on_run_end": self._on_run,
            "shutdown": self._shutdown,
        }

    def perform(self, hook: str, message: Message) -> _Result:
        """Call a hook with what a message says; return what the host gets."""
        return self._hooks[hook](message)

    @property
    def _model(self) -> ReceivedModel:
        """The model that the host sent last, indexed when it is first needed."""
        if self.received is not None:
            message, self.received = self.received, None
            self._model_now = ReceivedModel(message)
        if self._model_now is None:
            raise AssertionError("the host sends a model before it speaks of it")
        return self._model_now

    def _call(self, hook: str, **arguments: Any) -> Any:
        return self._instances.call(self.record.name, hook, **arguments)

    def _start(self, message: Message) -> _Result:
        head = message.head
        self._set_policy(message)
        logger = logging.getLogger("epctx")
        logger.addHandler(LogToHost(self.host))
        logger.setLevel(head["level"])
        logger.propagate = False
        _limit_memory(self.max_bytes)
        outcome = import_provider(self.record)
        if outcome.cls is None:
            raise plugin_error(
                f"{self.record.label} cannot be used in a process of its own: {outcome.record.reason}.",
                self.record,
                hint="There its class has to be found by its module's name: a class of a script or of a function is not.",
            ) from outcome.error
        self._instances.add(self.record, outcome.cls, self._context(head))
        return _NOTHING

    def _context(self, head: Mapping[str, Any]) -> ProviderContext:
        return ProviderContext(
            options=MappingProxyType(head["options"]),
            session_config=MappingProxyType(head["session_config"]),
            purpose=Purpose(head["purpose"]),
            target=head["target"],
            model=ModelIdentity(**head["model"]),
            logger=logging.getLogger(f"epctx{head['logger'].removeprefix('epctx')}"),
            cancel=self.host.cancel,
            progress=self._progress,
            scratch=_scratch,
            engine=CpuEngine(self._policy),
            workspace=PrivateWorkspace(),
            weightless=WeightlessMode(head["weightless"]),
        )

    def _progress(self, stage: str, done: int, total: int) -> None:
        self.host.tell("progress", {"stage": stage, "done": done, "total": total})

    def _get_capability(self, message: Message) -> _Result:
        view = RemoteSlice(self.host, self._model, message)
        answer = self._call(
            "get_capability", graph=view, kernels=RegistryLookup(KernelMatcher(None), view.index.types)
        )
        return {"claims": encode_claims(answer, view.index, self.record, self._tokens)}, ()

    def _optimize_model(self, message: Message) -> _Result:
        weights = decode_weights(message, message.blobs[1:])
        model = onnx.ModelProto.FromString(bytes(message.blobs[0]))
        answer = self._call(
            "optimize_model",
            model=model,
            weights={weight.name: weight for weight in weights},
            level=message.number("level"),
        )
        if answer is None:
            return _NOTHING
        if not isinstance(answer, onnx.ModelProto):
            raise self._broken(
                "optimize_model", f"gave a {type(answer).__name__} instead of an onnx.ModelProto or None"
            )
        return {}, [answer.SerializeToString()]

    def _set_policy(self, message: Message) -> None:
        for name, value in message.head["policy"].items():
            setattr(self._policy, name, value)

    def _compile(self, message: Message) -> _Result:
        self._set_policy(message)
        partitions = self._model.partitions(message.items("partitions"), self.record.name, self._tokens)
        self._partitions += partitions
        return self._keep("compile", self._call("compile", partitions=partitions))

    def _load_context(self, message: Message) -> _Result:
        self._set_policy(message)
        nodes = decode_nodes(message.items("nodes"))
        reader = RemoteReader(self.host, nodes, self._payloads)
        return self._keep("load_context", self._call("load_context", nodes=nodes, reader=reader))

    def _keep(self, hook: str, runnables: Sequence[object]) -> _Result:
        """Keep what can run; the host gets a number for each, and -1 for one that cannot."""
        numbers = []
        for runnable in runnables:
            if not isinstance(runnable, CompiledPartition):
                raise self._broken(hook, f"gave a {type(runnable).__name__} instead of a CompiledPartition")
            numbers.append(len(self._runnables))
            self._runnables.append(runnable)
        runs = [self._runnables[number].run is not None for number in numbers]
        return {"runnables": numbers, "runs": runs}, ()

    def _get_ep_context_nodes(self, message: Message) -> _Result:
        writer = RemoteWriter(self.host, self._model, message)
        described = self._call("get_ep_context_nodes", writer=writer)
        for payload in writer.payloads:
            payload.flush()
        return encode_descriptions(described, self._partitions, writer.payloads, self.record), ()

    def _run(self, message: Message) -> _Result:
        runnable = self._runnables[message.number("runnable")]
        if runnable.run is None:
            raise AssertionError("the host runs only what can")
        inputs = decode_arrays(message)
        for array in inputs:
            array.setflags(write=False)
        try:
            kinds, blobs = encode_arrays(runnable.run(inputs, None))
        except (EpctxError, MemoryError):
            raise
        except Exception as error:
            raise RuntimeException(f"{self.record.label} failed in run: {describe(error)}") from error
        return {"arrays": kinds}, blobs

    def _set_dynamic_options(self, message: Message) -> _Result:
        self._call("set_dynamic_options", options=MappingProxyType(message.head["options"]))
        return _NOTHING

    def _on_run(self, message: Message) -> _Result:
        self._call(message.text("hook"), tag=message.text("tag"))
        return _NOTHING

    def _shutdown(self, _message: Message) -> _Result:
        for close in closers(self._runnables):
            with blame(self.record, "shutdown"):
                close()
        if self.record.name in self._instances.names and self._instances.implements(
            self.record.name, "shutdown"
        ):
            self._call("shutdown")
        return _NOTHING

    def _broken(self, hook: str, what: str) -> PluginError:
        return contract_broken(self.record, hook, what)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="epctx-") as folder:
        yield Path(folder)
