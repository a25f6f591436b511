"""Proxy of an EP that works in another process: a class like any other, whose hooks are
called there.

With `ep.isolate=compile` a session loads here what was compiled there; with `all` the
runnables stay there, and arrays are sent. Class methods of an EP are called here: the
core needs them before there is a process.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from epctx_core import Registry, SessionOptions
from epctx_core.errors import InvalidArgument, NotImplementedByProvider, PluginError
from epctx_core.ext import HOOKS, PrivatePayloads, ProviderSession, implemented_hooks
from epctx_core.plugin import CompiledPartition, ExecutionProvider, Purpose
from epctx_isolation.channel import Message, ProtocolError
from epctx_isolation.codecs import ARGUMENTS, RESULTS, Request
from epctx_isolation.remote import IsolatedEp, RemoteProvider
from epctx_isolation.values import (
    TEXT_KINDS,
    decode_arrays,
    decode_attribute,
    encode_arrays,
)

if TYPE_CHECKING:
    import numpy as np

    from epctx_core import PluginRecord
    from epctx_core.ext import GraphIndex
    from epctx_core.plugin import Partition, PayloadView, ProviderContext

_CONTEXT_HOOKS = {"get_ep_context_nodes", "load_context"}


def isolate(
    record: PluginRecord,
    cls: type[ExecutionProvider],
    purpose: Purpose,
    *,
    mode: str,
    seconds: int,
    max_bytes: int | None,
) -> type[ExecutionProvider]:
    """Return the class whose instances a session uses, see
    `epctx_core.plugin.ProcessIsolation`: a proxy, or the EP's own if no work is to be
    isolated.

    Raises:
        NotImplementedByProvider: it cannot load what it compiles, so its runnables have
            to stay there.
    """
    ep = IsolatedEp(
        record=record, cls=cls, mode=mode, seconds=seconds, max_bytes=max_bytes
    )
    if purpose is Purpose.LOAD and ep.mode == "compile":
        return ep.cls
    hooks = implemented_hooks(ep.cls)
    loads_locally = purpose is Purpose.RUN and ep.mode == "compile"
    if loads_locally and not hooks.keys() >= _CONTEXT_HOOKS:
        raise NotImplementedByProvider(
            f"{ep.record.label} cannot load what it compiled, which "
            f"ep.isolate=compile needs in a session{_limits_include(ep.mode)}.",
            ep=ep.record.name,
            hint="Set ep.isolate=all, so that it also runs in its own process.",
        )
    members: dict[str, Any] = {
        name: getattr(ep.cls, name) for name in ExecutionProvider.__annotations__
    }
    for name, hook in HOOKS.items():
        if (name in hooks or name == "shutdown") and (
            hook.works_isolated or (loads_locally and hook.in_runs)
        ):
            members[name] = _make_implementation(name)
    base = LoadingProxy if loads_locally else Proxy
    return type(ep.cls.__name__, (base,), {**members, "isolated": ep})


def _limits_include(mode: str) -> str:
    """Return words for a host that set a time limit only."""
    return "; ep.compile_timeout includes it" if mode == "compile" else ""


def _make_implementation(name: str) -> Callable[..., Any]:
    hook = HOOKS[name]
    names = tuple(hook.arguments)[1:]

    def implementation(self: Proxy, _ep: str, *arguments: object) -> Any:
        return self.do(name, dict(zip(names, arguments, strict=True)))

    return hook.implementation(implementation)


class Proxy(ExecutionProvider):
    """Proxy of an EP that works in another process only: its hooks send, and check the
    results.
    """

    isolated: ClassVar[IsolatedEp]
    remote_purpose: ClassVar[Purpose | None] = None
    """Purpose of the instance in the other process; None for that of the one here."""

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        if context.workspace.is_shared and context.purpose is Purpose.RUN:
            label = self.isolated.record.label
            raise InvalidArgument(
                f"a session of a share group (ep.share_ep_contexts=1) has objects of "
                f"{label} in common with others, which ep.isolate and "
                "ep.compile_timeout cannot have in another process.",
                ep=self.isolated.record.name,
                hint=(
                    "Leave them out, or compile the group with ModelCompiler, "
                    "ShareGroup or `epctx share`."
                ),
            )
        self.remote = RemoteProvider(
            self.isolated, context, self.remote_purpose or context.purpose
        )
        exports = context.session_config.get("ep.context_enable") == "1"
        self.describes_later = exports or context.purpose is Purpose.EXPORT
        self._model: Callable[[], GraphIndex | None] = lambda: None
        self.compiled: list[Partition | None] = []
        self.sent_payloads: list[PayloadView] = []

    @property
    def model(self) -> GraphIndex:
        """The main graph of the model that the other process has.

        Not kept alive: views and partitions hold it.
        """
        model = self._model()
        if model is None:
            raise AssertionError("views and partitions hold their model's graphs")
        return model

    def set_model(self, root: GraphIndex) -> bool:
        """Remember the model of a graph; return whether it has to be sent."""
        if self._model() is root:
            return False
        self._model = weakref.ref(root)
        return True

    def forget_partitions(self) -> None:
        """Release the compiled partitions: each holds its whole model."""
        self.compiled = [None] * len(self.compiled)

    def do(self, hook: str, arguments: Mapping[str, Any]) -> Any:
        """Return the result of a hook."""
        if hook == "compile":
            try:
                return self.compile_partitions(**arguments)
            finally:
                # Also where it failed: the session may go on without these.
                if not self.describes_later:
                    self.forget_partitions()
        return self.end() if hook == "shutdown" else self.ask(hook, **arguments)

    def ask(self, hook: str, **arguments: Any) -> Any:
        """Call a hook in the other process; return its result."""
        row = HOOKS[hook]
        request = Request(self)
        plain = {
            name: ARGUMENTS[row.arguments[name]].send(request, arguments[name])
            for name in arguments
        }
        message = self.remote.call(
            hook,
            {"arguments": plain, "engine": self.remote.engine()},
            chain.from_iterable(request.blobs),
            request.handlers,
            sizes=request.sizes,
            model=request.model,
        )
        try:
            return RESULTS[row.result].receive(request, message)
        except (ProtocolError, RecursionError) as error:  # lists within lists
            raise self.remote.refuse(hook, error) from error

    def compile_partitions(
        self, partitions: Sequence[Partition]
    ) -> Sequence[CompiledPartition]:
        """Call `compile` in the other process; return its result."""
        self.remote.limit.note_partitions([p.name for p in partitions])
        runnables: list[Any] = self.ask("compile", partitions=partitions)
        return runnables

    def end(self) -> None:
        """Do `shutdown`: end the EP and its process."""
        self.sent_payloads.clear()
        self.compiled.clear()
        self.remote.shutdown()

    def runnables(self, message: Message) -> list[Any]:
        """Return proxies of the runnables in the other process, and all other objects
        that the EP gave.

        Raises:
            ProtocolError: the message is malformed.
        """
        first = message.number("first")
        items = message.items("runnables")
        return [
            CompiledPartition(partial(self._run, number) if item else None)
            if isinstance(item, bool)
            else decode_attribute(item)
            for number, item in enumerate(items, first)
        ]

    def _run(
        self,
        number: int,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray] | None = None,
    ) -> Sequence[np.ndarray]:
        types, blobs = encode_arrays(inputs)
        message = self.remote.call("run", {"runnable": number, "arrays": types}, blobs)
        try:
            results = decode_arrays(message)
        except ProtocolError as error:
            raise self.remote.refuse("run", error) from error

        if outputs is None:
            return results

        result_types = _list_types(results)
        expected = _list_types(outputs)
        if result_types != expected:  # numpy would repeat and convert what does not fit
            wrong = ProtocolError(
                f"results {result_types!r:.200} for {expected!r:.200}"
            )
            raise self.remote.refuse("run", wrong) from wrong

        for output, result in zip(outputs, results, strict=True):
            output[...] = result
        return outputs


def _list_types(arrays: Sequence[np.ndarray]) -> list[tuple[str, tuple[int, ...]]]:
    return [
        ("text" if a.dtype.kind in TEXT_KINDS else a.dtype.name, a.shape)
        for a in arrays
    ]


class LoadingProxy(Proxy):
    """Proxy of an EP that compiles in another process and runs here: a second instance
    loads what the first compiled.
    """

    remote_purpose = Purpose.EXPORT  # it opens no device

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        session = ProviderSession(
            SessionOptions(),
            Registry(entry_points=False),
            host_plugins=(),  # they wrap the hooks of the proxy
        )
        self._local = session.instances
        self._payloads: list[PrivatePayloads] = []
        try:
            self._local.add(self.isolated.record, self.isolated.cls, context)
        except BaseException:
            self.remote.shutdown()
            raise

    def do(self, hook: str, arguments: Mapping[str, Any]) -> Any:
        """Return the result of a hook; hooks of runs are called on the instance in this
        process.
        """
        if HOOKS[hook].in_runs:
            return self._local.call(self.isolated.record.name, hook, **arguments)
        return super().do(hook, arguments)

    def compile_partitions(
        self, partitions: Sequence[Partition]
    ) -> Sequence[CompiledPartition]:
        """Return the result of `compile`: load in this process what the other one
        compiled, from a private folder.

        Raises:
            InvalidArgument: nodes of a partition stay in the model, so that there is
                nothing to load.
        """
        name = self.isolated.record.name
        if any(getattr(partition, "keeps_nodes", False) for partition in partitions):
            raise InvalidArgument(
                f"{self.isolated.record.label} runs nodes that stay in the model, "
                "which ep.isolate=compile cannot load from another process"
                f"{_limits_include('compile')}.",
                ep=name,
                hint="Set ep.isolate=all, or leave out ep.compile_timeout or the EP.",
            )
        exported = super().compile_partitions(partitions)
        if len(exported) != len(partitions) or not all(
            isinstance(e, CompiledPartition) for e in exported
        ):
            return exported  # the core rejects it
        payloads = PrivatePayloads(name, partitions)
        self._payloads.append(payloads)
        descriptions = self.ask("get_ep_context_nodes", writer=payloads.writer)
        expected = {id(partition) for partition in partitions}
        new = [
            node for node in descriptions if id(node.partition) in expected
        ]  # not those of earlier calls
        self._check_count("get_ep_context_nodes", new, partitions)
        nodes, reader = payloads.read(new, self.model.types)
        loaded = self._local.call(name, "load_context", nodes=nodes, reader=reader)
        self._check_count("load_context", loaded, nodes)
        by_name: dict[str, Any] = dict(
            zip([node.name for node in nodes], loaded, strict=True)
        )
        return [by_name[partition.name] for partition in partitions]

    def _check_count(
        self, hook: str, results: Sequence[object], expected: Sequence[object]
    ) -> None:
        if len(results) != len(expected):
            raise PluginError(
                f"{self.isolated.record.label} broke the contract in {hook}: "
                f"it gave {len(results)} results for {len(expected)}.",
                hook=hook,
                hint=(
                    "This is a mistake in the plugin; report it to its vendor, or "
                    "leave the EP out."
                ),
            )

    def end(self) -> None:
        """Do `shutdown`: end both instances, and the process."""
        try:
            self._local.shutdown()
        finally:
            for payloads in self._payloads:
                payloads.close()
            super().end()
