"""What stands in the host for an EP that works in another process: its hooks send, and check what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

import onnx
from google.protobuf.message import DecodeError

from epctx_core.isolation.answers import ReaderAnswers, WriterAnswers, group_answers
from epctx_core.isolation.channel import Message, ProtocolError
from epctx_core.isolation.models import WeightsTable, encode_partitions
from epctx_core.isolation.outcomes import decode_claims, decode_descriptions
from epctx_core.isolation.remote import Limits, RemoteProvider
from epctx_core.isolation.values import decode_arrays, encode_arrays, encode_nodes
from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    EPContextNode,
    ExecutionProvider,
    Purpose,
    Refusal,
    hookimpl,
)

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.slice import GraphSlice
    from epctx_core.graph.subgraph import GraphPartition
    from epctx_core.graph.weights import Weight
    from epctx_core.options import Isolation
    from epctx_core.plugin import ContextNode, ContextReader, ContextWriter, ProviderContext
    from epctx_core.plugin.storage import PayloadView
    from epctx_core.registry.records import PluginRecord


@dataclass(frozen=True, kw_only=True)
class IsolatedEp:
    """Which EP works elsewhere, and how.

    Attributes:
        record: what is known about the plugin.
        cls: the EP's own class.
        isolation: which of its work is done there.
        limits: what its process may take.
    """

    record: PluginRecord
    cls: type[ExecutionProvider]
    isolation: Isolation
    limits: Limits


class WorksElsewhere(ExecutionProvider):
    """Stands for an EP of which all is done elsewhere."""

    isolated: ClassVar[IsolatedEp]

    def __init__(self, context: ProviderContext) -> None:
        super().__init__(context)
        self.remote = RemoteProvider(
            self.isolated.record, context, self.purpose_there(context.purpose), self.isolated.limits
        )
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

    def runnables(self, hook: str, message: Message) -> list[CompiledPartition]:
        """Return what stands for the runnables that were made there."""
        try:
            numbers, runs = message.numbers("runnables"), message.items("runs")
        except ProtocolError as error:
            raise self.remote.refuse(hook, error) from error
        if len(numbers) != len(runs):
            raise self.remote.refuse(hook, ProtocolError("runnables of which nothing is said"))
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


@hookimpl
def _get_capability(self: WorksElsewhere, graph: GraphSlice) -> Sequence[ComputeCapability | Refusal]:
    taken = [index for index, owned in enumerate(graph.taken) if owned]
    message = self.remote.call(
        "get_capability",
        {"path": graph.index.path, "taken": taken},
        answers=group_answers(graph),
        model=self.not_yet_shown(graph.root),
    )
    try:
        return decode_claims(message, graph)
    except ProtocolError as error:
        raise self.remote.refuse("get_capability", error) from error


@hookimpl
def _optimize_model(
    self: WorksElsewhere, model: onnx.ModelProto, weights: Mapping[str, Weight], level: int
) -> onnx.ModelProto | None:
    table, data = WeightsTable(weights.values()), model.SerializeToString()
    blobs = (blob for part in ([data], table.blobs()) for blob in part)
    head = {"level": level, **table.head}
    message = self.remote.call("optimize_model", head, blobs, sizes=[len(data), *table.sizes])
    if not message.blobs:
        return None
    try:
        found: onnx.ModelProto = onnx.ModelProto.FromString(bytes(message.only_blob()))
    except (DecodeError, ProtocolError) as error:
        raise self.remote.refuse("optimize_model", ProtocolError("no model")) from error
    return found


@hookimpl
def _compile(self: WorksElsewhere, partitions: Sequence[GraphPartition]) -> Sequence[CompiledPartition]:
    runnables = compile_elsewhere(self, partitions)
    if not self.describes_later:
        self.forget()
    return runnables


def compile_elsewhere(
    self: WorksElsewhere, partitions: Sequence[GraphPartition]
) -> Sequence[CompiledPartition]:
    """Have partitions compiled; see the hook `compile`."""
    head = {"partitions": encode_partitions(partitions), "policy": self.remote.policy()}
    self.compiled += partitions
    return self.runnables("compile", self.remote.call("compile", head))


@hookimpl
def describe_nodes(self: WorksElsewhere, writer: ContextWriter) -> Sequence[EPContextNode]:
    """Have EPContext nodes described and payloads written; see the hook `get_ep_context_nodes`."""
    answers = WriterAnswers(writer, self.root, self.remote.channel)
    head = {"final": writer.final, "graphs_by_model": writer.graphs_by_model}
    message = self.remote.call("get_ep_context_nodes", head, answers=answers.by_name())
    try:
        return decode_descriptions(message, self.compiled, answers.payload)
    except ProtocolError as error:
        raise self.remote.refuse("get_ep_context_nodes", error) from error


@hookimpl
def _load_context(
    self: WorksElsewhere, nodes: Sequence[ContextNode], reader: ContextReader
) -> Sequence[CompiledPartition]:
    answers = ReaderAnswers(nodes, reader, self.sent_payloads).by_name()
    head = {"nodes": encode_nodes(nodes), "policy": self.remote.policy()}
    message = self.remote.call("load_context", head, answers=answers)
    return self.runnables("load_context", message)


@hookimpl
def _set_dynamic_options(self: WorksElsewhere, options: Mapping[str, str]) -> None:
    self.remote.call("set_dynamic_options", {"options": dict(options)})


@hookimpl
def _on_run_start(self: WorksElsewhere, tag: str) -> None:
    self.remote.call("on_run_start", {"tag": tag})


@hookimpl
def _on_run_end(self: WorksElsewhere, tag: str) -> None:
    self.remote.call("on_run_end", {"tag": tag})


@hookimpl
def shut_down(self: WorksElsewhere) -> None:
    """End the EP and its process; see the hook `shutdown`."""
    self.sent_payloads.clear()
    self.compiled.clear()
    self.remote.shutdown()


HOOKS_ELSEWHERE: Mapping[str, Callable[..., Any]] = {
    "get_capability": _get_capability,
    "optimize_model": _optimize_model,
    "compile": _compile,
    "get_ep_context_nodes": describe_nodes,
    "load_context": _load_context,
    "set_dynamic_options": _set_dynamic_options,
    "on_run_start": _on_run_start,
    "on_run_end": _on_run_end,
    "shutdown": shut_down,
}
