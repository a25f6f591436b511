"""An EP that works in another process, as a class like any other: a proxy, whose hooks are answered there.

With `Isolation.COMPILE` a session's runnables are loaded here from what was compiled there; with `ALL` they
stay there, and arrays travel. Class methods of an EP are asked here: they come before there is a process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from onnx import GraphProto, NodeProto

from epctx_core.context.node import ContextNodeRecord, make_context_node, read_context_nodes
from epctx_core.context.paths import ModelFolder
from epctx_core.context.payload_reader import PayloadReader, plugin_nodes
from epctx_core.context.payload_writer import PayloadSet
from epctx_core.context.scratch import Scratch
from epctx_core.errors import InvalidArgument, NotImplementedByProvider
from epctx_core.isolation.channel import Message, ProtocolError
from epctx_core.isolation.codecs import ANSWERS, ARGUMENTS, Request
from epctx_core.isolation.remote import RemoteProvider
from epctx_core.isolation.values import decode_arrays, encode_arrays
from epctx_core.options import Isolation
from epctx_core.plugin import CompiledPartition, EPContextNode, ExecutionProvider, Purpose
from epctx_core.plugin.hookspecs import CONTEXT_HOOKS, HOOKS, Hook
from epctx_core.registry.guard import contract_broken
from epctx_core.registry.instances import ProviderInstances
from epctx_core.registry.loading import implemented_hooks

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.graph.type_table import TypeTable
    from epctx_core.isolation.remote import IsolatedEp
    from epctx_core.plugin import ContextNode, ProviderContext
    from epctx_core.plugin.storage import PayloadView

_KERNELS = "get_kernel_registry"
_log = logging.getLogger("epctx.providers")


def isolated_class(ep: IsolatedEp, purpose: Purpose) -> type[ExecutionProvider]:
    """Return the class whose instances a session uses: the EP's own where nothing is to be done elsewhere, else a proxy.

    Kernels are functions and cannot leave their process: where an EP loads payloads there, its kernels stay out.

    Raises:
        InvalidArgument: the EP has kernels, and is asked for more than to load.
        NotImplementedByProvider: it cannot load what it compiles, so that its runnables have to stay there.
    """
    loads_only = purpose is Purpose.LOAD and ep.isolation is Isolation.COMPILE
    if ep.isolation is Isolation.NONE or loads_only:
        return ep.cls
    hooks = implemented_hooks(ep.cls)
    if _KERNELS in hooks and purpose is Purpose.LOAD and "load_context" in hooks:
        _log.warning(
            "%s runs single nodes by kernels of its own, which ep.isolate=all leaves out: other EPs run these nodes.",
            ep.record.label,
        )
    elif _KERNELS in hooks:
        raise InvalidArgument(
            f"{ep.record.label} runs single nodes by kernels of its own, which ep.isolate={ep.isolation.value} "
            "cannot have in another process.",
            ep=ep.record.name,
            hint="Leave ep.isolate out, or the EP.",
        )
    loads_here = purpose is Purpose.RUN and ep.isolation is Isolation.COMPILE
    if loads_here and not hooks.keys() >= set(CONTEXT_HOOKS):
        raise NotImplementedByProvider(
            f"{ep.record.label} cannot load what it compiled, which ep.isolate=compile needs in a session.",
            ep=ep.record.name,
            hint="Set ep.isolate=all, so that it also runs in its own process.",
        )
    own: dict[str, Any] = {name: getattr(ep.cls, name) for name in ExecutionProvider.__annotations__}
    for name, hook in HOOKS.items():
        if (name in hooks or name == "shutdown") and (hook.travels or (loads_here and hook.in_runs)):
            own[name] = _answered_by_proxy(hook)
    base = LoadingProxy if loads_here else Proxy
    return type(ep.cls.__name__, (base,), {**own, "isolated": ep})


def _answered_by_proxy(hook: Hook) -> Callable[..., Any]:
    names = tuple(hook.arguments)[1:]

    def implementation(self: Proxy, _ep: str, *arguments: object) -> Any:
        return self.do(hook, dict(zip(names, arguments, strict=True)))

    return hook.implementation(implementation)


class Proxy(ExecutionProvider):
    """Proxy of an EP of which all is done in another process: its hooks send, and check what comes back."""

    isolated: ClassVar[IsolatedEp]

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        self.remote = RemoteProvider(self.isolated, context, self.purpose_there(context.purpose))
        exports = context.session_config.get("ep.context_enable") == "1"
        self.describes_later = exports or context.purpose is Purpose.EXPORT
        self.compiled: list[GraphPartition | None] = []
        self.sent_payloads: list[PayloadView] = []
        self._shown: Callable[[], GraphIndex | None] = lambda: None

    def purpose_there(self, purpose: Purpose) -> Purpose:
        """Return what the instance there is made for."""
        return purpose

    def not_yet_shown(self, root: GraphIndex) -> GraphIndex | None:
        """Return a model if it has to be sent now; it is remembered, and not kept."""
        if self._shown() is root:
            return None
        self._shown = ref(root)
        return root

    def forget(self) -> None:
        """Let go of what was compiled: a partition holds its whole model."""
        self.compiled = [None] * len(self.compiled)

    @property
    def root(self) -> GraphIndex:
        """The main graph of the model that was compiled."""
        root = self._shown()
        if root is None:
            raise AssertionError("partitions hold their model's graphs")
        return root

    def do(self, hook: Hook, arguments: Mapping[str, Any]) -> Any:
        """Answer a hook."""
        if hook.name == "compile":
            return self.compile_partitions(**arguments)
        return self.end() if hook.name == "shutdown" else self.ask(hook.name, **arguments)

    def ask(self, hook: str, **arguments: Any) -> Any:
        """Have a hook called in the other process; return its answer."""
        row = HOOKS[hook]
        request = Request(self, row)
        said = {
            name: ARGUMENTS[row.arguments[name]].send(request, value) for name, value in arguments.items()
        }
        message = self.remote.call(
            hook,
            {"arguments": said},
            chain.from_iterable(request.blobs),
            request.answers,
            sizes=request.sizes,
            model=request.model,
        )
        try:
            return ANSWERS[row.answer].receive(request, message)
        except ProtocolError as error:
            raise self.remote.refuse(hook, error) from error

    def compile_partitions(self, partitions: Sequence[GraphPartition]) -> Sequence[CompiledPartition]:
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

    def runnables(self, message: Message) -> list[CompiledPartition]:
        """Return what runs the runnables that were made there.

        Raises:
            ProtocolError: the message does not say which.
        """
        numbers, runs = message.numbers("runnables"), message.items("runs")
        if len(numbers) != len(runs):
            raise ProtocolError("runnables of which nothing is said")
        return [
            CompiledPartition(partial(self._run, number) if can is True else None)
            for number, can in zip(numbers, runs, strict=True)
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
        self.here = ProviderInstances()
        self.folders = ExitStack()
        try:
            self.here.add(self.isolated.record, self.isolated.cls, context)
        except BaseException:
            self.remote.shutdown()
            raise

    def purpose_there(self, purpose: Purpose) -> Purpose:  # noqa: ARG002 - the same for all
        """Return what the instance there is made for: it opens no device."""
        return Purpose.EXPORT

    def do(self, hook: Hook, arguments: Mapping[str, Any]) -> Any:
        """Answer a hook: what belongs to runs, by the instance here."""
        if hook.in_runs:
            return self.here.call(self.isolated.record.name, hook.name, **arguments)
        return super().do(hook, arguments)

    def compile_partitions(self, partitions: Sequence[GraphPartition]) -> Sequence[CompiledPartition]:
        """Answer `compile`: load here what was compiled there, from a private folder."""
        record = self.isolated.record
        exported: list[CompiledPartition] = self.ask("compile", partitions=partitions)
        if len(exported) != len(partitions):
            return exported  # the core says what is wrong with that
        folders = self.folders
        payloads = PrivatePayloads(record.name, folders.enter_context(self.context.scratch()), partitions)
        try:
            described = self.ask("get_ep_context_nodes", writer=payloads.writer)
        finally:
            payloads.close()
        expected = {id(partition) for partition in partitions}
        new = [node for node in described if id(node.partition) in expected]
        if len(new) != len(partitions):
            what = f"described {len(new)} nodes for {len(partitions)} partitions"
            raise contract_broken(record, "get_ep_context_nodes", what)
        nodes, reader = payloads.compiled(new, self.root.types, folders.enter_context(Scratch()))
        loaded = self.here.call(record.name, "load_context", nodes=nodes, reader=reader)
        if len(loaded) != len(nodes):
            raise contract_broken(record, "load_context", f"gave {len(loaded)} results for {len(nodes)}")
        if not self.describes_later:
            self.forget()
        # Those of earlier calls are left out.
        found: dict[str, Any] = dict(zip([node.name for node in nodes], loaded, strict=True))
        return [found[partition.name] for partition in partitions]

    def end(self) -> None:
        """Answer `shutdown`: end both instances, and the process."""
        try:
            self.here.shutdown()
        finally:
            self.folders.close()
            super().end()


class PrivatePayloads:
    """Payloads of one EP in a folder that nobody else knows; they take the same way as a context model's, checks included.

    Args:
        ep: the EP type.
        folder: exists and is empty.
        partitions: what was compiled.
    """

    def __init__(self, ep: str, folder: Path, partitions: Sequence[GraphPartition]) -> None:
        self._ep = ep
        self._folder = folder
        self._files: list[Any] = []
        self._set = PayloadSet(
            ep,
            file_name=lambda name: f"{name or 'payload'}.bin",
            open_sink=self._open,
            embedded=False,
            graphs_by_model=(tuple(p.name for p in partitions),),
        )
        self.writer = self._set.handle

    def _open(self, name: str) -> Any:
        self._files.append((self._folder / name).open("xb"))
        return self._files[-1]

    def close(self) -> None:
        """Finish the files."""
        for file in self._files:
            file.close()

    def compiled(
        self,
        described: Sequence[EPContextNode],
        types: TypeTable,
        scratch: Scratch,
    ) -> tuple[Sequence[ContextNode], PayloadReader]:
        """Return nodes and payloads as a load of a context model gives them.

        Args:
            described: what the EP said of its nodes.
            types: those of the main graph.
            scratch: lives as long as the session; makes files of payloads for EPs that want them.

        Raises:
            InvalidGraph: references without any primary, or an attribute of the wrong type.
        """
        records: dict[str, ContextNodeRecord] = {}
        for description in described:
            partition: Any = description.partition
            records[partition.name] = self._record(description, partition)
        reader = PayloadReader(
            records,
            folder=ModelFolder(self._folder),
            manifest=None,
            scratch=scratch,
        )
        return plugin_nodes(list(records.values()), types, self._ep), reader

    def _record(self, description: EPContextNode, partition: GraphPartition) -> ContextNodeRecord:
        written = self._set.writers.get(id(description.payload))
        graph = GraphProto()
        graph.node.append(
            make_context_node(
                NodeProto(name=partition.name, input=partition.input_names, output=partition.output_names),
                {**description.attributes, "partition_name": description.graph_name or partition.name},
                source=self._ep,
                main_context=bool(description.main_context),
                embed_mode=False,
                cache=None if written is None else written.contents(),
            )
        )
        (record,) = read_context_nodes(graph)
        return replace(record, path=partition.graph.path)
