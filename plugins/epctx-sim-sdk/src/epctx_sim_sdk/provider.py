"""Base class of the simulated EPs: the hooks that all vendors implement alike over the
SDK.

Importing it imports no other module of the SDK, nor onnx or numpy: an EP is found
before it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from epctx_core.plugin import Compatibility, ExecutionProvider, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from epctx_core.plugin import (
        CompiledPartition,
        ComputeCapability,
        ContextNode,
        ContextReader,
        ContextWriter,
        EPContextNode,
        Finding,
        GraphView,
        NodeView,
        Partition,
        Payload,
        ProviderContext,
        Refusal,
    )
    from epctx_sim_sdk.compiler import SimGraph
    from epctx_sim_sdk.device import Device
    from epctx_sim_sdk.loading import ContextLoader
    from epctx_sim_sdk.session import SimSession
    from epctx_sim_sdk.versions import LoadPolicy


class Loads(Protocol):
    """Loader of one session's nodes; `loading.ContextLoader` is one."""

    def load(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> list[CompiledPartition]:
        """Return one runnable for each node, in order."""


class SimulatedProvider(ExecutionProvider, ABC):
    """Simulated EP of a vendor: one container holds the graphs of all partitions.

    Attributes:
        notes: the doc string of its EPContext nodes.
        one_primary: whether the first node carries the payload and the others refer to
            it; else each names it.
    """

    simulated: ClassVar[bool] = True
    loads_without_device: ClassVar[bool] = True
    notes: ClassVar[str]
    one_primary: ClassVar[bool] = True

    def __init__(self, context: ProviderContext) -> None:
        # The SDK is loaded with the first instance of a process, not in the middle of a
        # load.
        from epctx_sim_sdk.device import open_device

        super().__init__(context)
        self._made_by = self.compiler_facts(context.options, context.target)
        self._device = open_device(context)
        self._loader: Loads = self.new_loader(context, self._device)

    @staticmethod
    @abstractmethod
    def compiler_facts(
        options: Mapping[str, Any], target: str | None = None
    ) -> dict[str, str]:
        """Return what the version rules must know about whatever is compiled with these
        options.
        """

    @staticmethod
    @abstractmethod
    def load_policy(
        options: Mapping[str, Any], target: str | None = None
    ) -> LoadPolicy:
        """Return the version rules, and the facts about the simulated device that
        loads.
        """

    @abstractmethod
    def support(self, graph: GraphView) -> Callable[[NodeView], bool | str]:
        """Return what `epctx_core.plugin.supported_partitions` asks about each node."""

    @abstractmethod
    def node_attributes(
        self, graphs: Sequence[SimGraph], writer: ContextWriter, /
    ) -> Iterable[Mapping[str, Any]]:
        """Yield the vendor's attributes for each graph of this instance.

        Args:
            graphs: all that the payload holds, those of a share group too.
            writer: that of `get_ep_context_nodes`.
        """

    def stores_half(self) -> bool:
        """Return whether float32 weights are stored as float16."""
        return False

    @classmethod
    def new_loader(cls, context: ProviderContext, device: Device) -> ContextLoader:
        """Return a loader of containers, also for an instance that only looks into
        them.
        """
        from epctx_sim_sdk.loading import ContextLoader

        return ContextLoader(
            context, device, cls.load_policy(context.options, context.target)
        )

    def write(
        self, payload: Payload, graphs: Sequence[SimGraph], writer: ContextWriter
    ) -> None:
        """Write what the EPContext nodes carry."""
        self._session.write(payload, self._made_by, graphs, reference=writer.reference)

    @cached_property
    def _session(self) -> SimSession:
        from epctx_sim_sdk.session import SimSession  # a load compiles nothing

        return SimSession(
            self.name, self.context, self._device, fp16=self.stores_half()
        )

    @classmethod
    def get_compatibility_info(
        cls, partitions: Sequence[Partition], options: Mapping[str, Any]
    ) -> str:
        """Return the facts that the version rules judge; nothing without partitions."""
        from epctx_sim_sdk.versions import write_info

        return write_info(cls.compiler_facts(options)) if partitions else ""

    @classmethod
    def validate_compatibility(
        cls, info: str, options: Mapping[str, Any]
    ) -> Compatibility:
        """Judge by the version rules.

        What a vendor's real EP wrote is not judged here: its payload is refused by name
        when it is opened.
        """
        from epctx_sim_sdk.versions import read_info

        made_by = read_info(info)
        if made_by is None:
            return Compatibility.EP_NOT_APPLICABLE
        return cls.load_policy(options).judge(made_by).verdict

    @classmethod
    def verify_payloads(
        cls,
        context: ProviderContext,
        nodes: Sequence[ContextNode],
        reader: ContextReader,
    ) -> Sequence[Finding]:
        """Look into containers: what nodes state, versions, graphs, their boundaries
        and weights.
        """
        from epctx_sim_sdk.device import GraphReader
        from epctx_sim_sdk.verification import verify_nodes

        device = GraphReader(engine=context.engine, prepares=True)
        return verify_nodes(cls.name, nodes, reader, cls.new_loader(context, device))

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take what the vendor's tables allow, of the main graph: these have no control
        flow.
        """
        from epctx_core.plugin import Refusal, supported_partitions

        if graph.parent_node is None:
            return supported_partitions(graph, self.support(graph))
        vendor = self._made_by["vendor"]
        holder = graph.parent_node.op_type
        return [
            Refusal(
                f"{vendor} compiles the main graph only, and this is in a subgraph of "
                f"{holder}",
                graph.nodes,
            )
        ]

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Convert partitions; under EXPORT nothing runs and no device is opened."""
        return self._session.compile(partitions)

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        """Write one payload with all graphs, those of a share group too, and describe
        this instance's nodes.
        """
        from epctx_core.plugin import EPContextNode

        graphs = self._session.shared_graphs(writer)
        if not graphs:
            return []
        payload = writer.payload()
        if writer.final:
            self.write(payload, graphs, writer)
        pairs = zip(
            self._session.graphs, self.node_attributes(graphs, writer), strict=True
        )
        return [
            EPContextNode(
                graph.partition,
                None if refers else payload,
                int(not refers),
                attributes,
                self.notes,
            )
            for number, (graph, attributes) in enumerate(pairs)
            for refers in [self.one_primary and number > 0]
        ]

    @hookimpl
    def load_context(
        self, nodes: Sequence[ContextNode], reader: ContextReader
    ) -> Sequence[CompiledPartition]:
        """Open the payloads and make each node's graph runnable."""
        return self._loader.load(nodes, reader)

    @hookimpl
    def shutdown(self) -> None:
        """Close what still runs and let go of weights and payloads."""
        del self._loader
        vars(self).pop("_session", None)
        self._device.close()
