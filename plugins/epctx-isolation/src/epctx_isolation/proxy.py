"""An EP that works in another process, as a class like any other: a proxy, whose hooks are answered there.

With `ep.isolate=compile` a session's runnables are loaded here from what was compiled there; with `all` they
stay there, and arrays travel. Class methods of an EP are asked here: they come before there is a process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from epctx_core.errors import InvalidArgument, NotImplementedByProvider, PluginError
from epctx_core.ext import HOOKS, PrivatePayloads, ProviderInstances, SentModel, implemented_hooks
from epctx_core.plugin import CompiledPartition, ExecutionProvider, Purpose
from epctx_isolation.channel import Message, ProtocolError
from epctx_isolation.codecs import ANSWERS, ARGUMENTS, Request
from epctx_isolation.remote import IsolatedEp, RemoteProvider
from epctx_isolation.values import decode_arrays, decode_attribute, encode_arrays

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.plugin import GraphView, Partition, PayloadView, ProviderContext

_KERNELS = "get_kernel_registry"
_CONTEXT_HOOKS = {"get_ep_context_nodes", "load_context"}
_log = logging.getLogger("epctx.providers")


def isolated_class(ep: IsolatedEp, purpose: Purpose) -> type[ExecutionProvider]:
    """Return the class whose instances a session uses: the EP's own where nothing is to be done elsewhere, else a proxy.

    Kernels are functions and cannot leave their process: where an EP loads payloads there, its kernels stay out.

    Raises:
        InvalidArgument: the EP has kernels, and is asked for more than to load.
        NotImplementedByProvider: it cannot load what it compiles, so that its runnables have to stay there.
    """
    if purpose is Purpose.LOAD and ep.mode == "compile":
        return ep.cls
    hooks = implemented_hooks(ep.cls)
    if _KERNELS in hooks and purpose is Purpose.LOAD and "load_context" in hooks:
        _log.warning(
            "%s runs single nodes by kernels of its own, which ep.isolate=all leaves out: other EPs run these nodes.",
            ep.record.label,
        )
    elif _KERNELS in hooks:
        raise InvalidArgument(
            f"{ep.record.label} runs single nodes by kernels of its own, which ep.isolate={ep.mode} "
            "cannot have in another process.",
            ep=ep.record.name,
            hint="Leave ep.isolate out, or the EP.",
        )
    loads_here = purpose is Purpose.RUN and ep.mode == "compile"
    if loads_here and not hooks.keys() >= _CONTEXT_HOOKS:
        raise NotImplementedByProvider(
            f"{ep.record.label} cannot load what it compiled, which ep.isolate=compile needs in a session.",
            ep=ep.record.name,
            hint="Set ep.isolate=all, so that it also runs in its own process.",
        )
    own: dict[str, Any] = {name: getattr(ep.cls, name) for name in ExecutionProvider.__annotations__}
    for name, hook in HOOKS.items():
        if (name in hooks or name == "shutdown") and (hook.travels or (loads_here and hook.in_runs)):
            own[name] = _answered_by_proxy(name)
    base = LoadingProxy if loads_here else Proxy
    return type(ep.cls.__name__, (base,), {**own, "isolated": ep})


def _answered_by_proxy(name: str) -> Callable[..., Any]:
    hook = HOOKS[name]
    names = tuple(hook.arguments)[1:]

    def implementation(self: Proxy, _ep: str, *arguments: object) -> Any:
        return self.do(name, dict(zip(names, arguments, strict=True)))

    return hook.implementation(implementation)


class Proxy(ExecutionProvider):
    """Proxy of an EP of which all is done in another process: its hooks send, and check what comes back."""

    isolated: ClassVar[IsolatedEp]

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        self.remote = RemoteProvider(self.isolated, context, self.purpose_there(context.purpose))
        exports = context.session_config.get("ep.context_enable") == "1"
        self.describes_later = exports or context.purpose is Purpose.EXPORT
        self.model: SentModel
        self.compiled: list[Partition | None] = []
        self.sent_payloads: list[PayloadView] = []

    def purpose_there(self, purpose: Purpose) -> Purpose:
        """Return what the instance there is made for."""
        return purpose

    def shows(self, graph: GraphView) -> SentModel | None:
        """Remember the model of a graph; return it if it has to be sent now."""
        if hasattr(self, "model") and self.model.has(graph):
            return None
        self.model = SentModel(graph)
        return self.model

    def forget(self) -> None:
        """Let go of what was compiled: a partition holds its whole model."""
        self.compiled = [None] * len(self.compiled)

    def do(self, hook: str, arguments: Mapping[str, Any]) -> Any:
        """Answer a hook."""
        if hook == "compile":
            return self.compile_partitions(**arguments)
        return self.end() if hook == "shutdown" else self.ask(hook, **arguments)

    def ask(self, hook: str, **arguments: Any) -> Any:
        """Have a hook called in the other process; return its answer."""
        row, request = HOOKS[hook], Request(self)
        said = {
            name: ARGUMENTS[row.arguments[name]].send(request, value) for name, value in arguments.items()
        }
        message = self.remote.call(
            hook,
            {"arguments": said, "engine": self.remote.engine()},
            chain.from_iterable(request.blobs),
            request.answers,
            sizes=request.sizes,
            model=request.model,
        )
        try:
            return ANSWERS[row.answer].receive(request, message)
        except ProtocolError as error:
            raise self.remote.refuse(hook, error) from error

    def compile_partitions(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Answer `compile`."""
        runnables: list[CompiledPartition] = self.ask("compile", partitions=partitions)
        if not self.describes_later:
            self.forget()
        return runnables

    def end(self) -> None:
        """Answer `shutdown`: end the EP and its process."""
        self.sent_payloads.clear()
        self.compiled.clear()
        self.remote.shutdown()

    def runnables(self, message: Message) -> list[Any]:
        """Return what runs the runnables that were made there, and whatever else the EP gave.

        Raises:
            ProtocolError: the message does not say which.
        """
        first, made = message.number("first"), message.items("runnables")
        return [
            CompiledPartition(partial(self._run, number) if can else None)
            if isinstance(can, bool)
            else decode_attribute(can)
            for number, can in enumerate(made, first)
        ]

    def _run(
        self, number: int, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None
    ) -> Sequence[np.ndarray]:
        kinds, blobs = encode_arrays(inputs)
        message = self.remote.call("run", {"runnable": number, "arrays": kinds}, blobs)
        try:
            results = decode_arrays(message)
        except ProtocolError as error:
            raise self.remote.refuse("run", error) from error
        if outputs is None:
            return results
        for given, result in zip(outputs, results, strict=True):
            given[...] = result
        return outputs


class LoadingProxy(Proxy):
    """Proxy of an EP that compiles in another process and runs here: a second instance loads what the first compiled."""

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        self._here = ProviderInstances()
        self._payloads: list[PrivatePayloads] = []
        try:
            self._here.add(self.isolated.record, self.isolated.cls, context)
        except BaseException:
            self.remote.shutdown()
            raise

    def purpose_there(self, purpose: Purpose) -> Purpose:  # noqa: ARG002 - the same for all
        """Return what the instance there is made for: it opens no device."""
        return Purpose.EXPORT

    def do(self, hook: str, arguments: Mapping[str, Any]) -> Any:
        """Answer a hook: what belongs to runs, by the instance here."""
        if HOOKS[hook].in_runs:
            return self._here.call(self.isolated.record.name, hook, **arguments)
        return super().do(hook, arguments)

    def compile_partitions(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Answer `compile`: load here what was compiled there, from a private folder."""
        name = self.isolated.record.name
        exported: list[CompiledPartition] = self.ask("compile", partitions=partitions)
        if len(exported) != len(partitions) or not all(isinstance(e, CompiledPartition) for e in exported):
            return exported  # the core says what is wrong with that
        payloads = PrivatePayloads(name, partitions)
        self._payloads.append(payloads)
        described = self.ask("get_ep_context_nodes", writer=payloads.writer)
        expected = {id(partition) for partition in partitions}
        new = [node for node in described if id(node.partition) in expected]  # and none of earlier calls
        self._check_count("get_ep_context_nodes", new, partitions)
        nodes, reader = payloads.read(new, self.model)
        loaded = self._here.call(name, "load_context", nodes=nodes, reader=reader)
        self._check_count("load_context", loaded, nodes)
        if not self.describes_later:
            self.forget()
        found: dict[str, Any] = dict(zip([node.name for node in nodes], loaded, strict=True))
        return [found[partition.name] for partition in partitions]

    def _check_count(self, hook: str, given: Sequence[object], wanted: Sequence[object]) -> None:
        if len(given) != len(wanted):
            raise PluginError(
                f"{self.isolated.record.label} broke the contract in {hook}: "
                f"it gave {len(given)} results for {len(wanted)}.",
                hook=hook,
                hint="This is a mistake in the plugin; report it to its vendor, or leave the EP out.",
            )

    def end(self) -> None:
        """Answer `shutdown`: end both instances, and the process."""
        try:
            self._here.shutdown()
        finally:
            for payloads in self._payloads:
                payloads.close()
            super().end()
