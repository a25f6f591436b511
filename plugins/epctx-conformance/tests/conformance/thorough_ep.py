"""An EP that keeps the whole contract and uses all of it: exact claims, names of its
own, one runtime and one payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import onnx
from support.honest_ep import VERSION, HonestProvider

from epctx_core.plugin import (
    CompiledPartition,
    ComputeCapability,
    EPContextNode,
    Purpose,
    hookimpl,
)

if TYPE_CHECKING:
    from epctx_core.plugin import ContextWriter, GraphView, NodeView, Partition


@dataclass(eq=False)
class Program:
    """Result of a compile during get_capability; cannot be sent to another process."""

    nodes: Sequence[onnx.NodeProto]

    def __reduce__(self) -> Any:
        raise TypeError("a handle of a device")


class Runtime:
    """Runtime of everything that an instance compiled or loaded; closed once."""

    def __init__(self) -> None:
        self.prepared: list[Any] = []

    def close(self) -> None:
        """End it."""
        if self.prepared is None:
            raise RuntimeError("it was closed before")
        for prepared in self.prepared:
            prepared.close()
        self.prepared = None


class ThoroughProvider(HonestProvider):
    """Compiles what it claims at once, and names its graphs by what they compute."""

    name = "ThoroughExecutionProvider"
    vendor = "epctx tests"
    simulated = True
    binary_suffix = "thorough"

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.runtime = Runtime()

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[Any]:
        return [
            replace(item, exact=True, token=self.program(item.nodes))
            if isinstance(item, ComputeCapability)
            else item
            for item in super().get_capability(graph)
        ]

    @hookimpl
    def get_ep_context_nodes(self, writer: ContextWriter) -> Sequence[EPContextNode]:
        payload = writer.payload()
        names = [
            self.graph_name(number, partition)
            for number, partition in enumerate(self.compiled)
        ]
        group: dict[str, bytes] = self.context.workspace.get_or_create("graphs", dict)
        group.update(
            zip(
                names,
                (self.graphs[partition.name] for partition in self.compiled),
                strict=True,
            )
        )
        if writer.final:
            payload.write(self.packed(group))
        return [
            EPContextNode(
                partition,
                payload,
                main_context=int(not number),
                graph_name=names[number],
                compatibility_info=self.compatibility_info(number),
            )
            for number, partition in enumerate(self.compiled)
        ]

    # --- the steps that lies change ---------------------------------------------------

    def program(self, nodes: Sequence[NodeView]) -> Program:
        """Return the token of a claim."""
        return Program([node.proto() for node in nodes])

    def program_of(self, partition: Partition) -> Program:
        """Return the program that was compiled when a partition was claimed."""
        return partition.token

    def translated(self, partition: Partition) -> bytes:
        model = partition.model(inline_weights=True)
        del model.graph.node[:]
        model.graph.node.extend(self.program_of(partition).nodes)
        return model.SerializeToString(deterministic=True)

    def graph_name(self, number: int, partition: Partition) -> str:
        """Return the name by which the runtime finds a partition's graph."""
        return f"{partition.digest[:12]} graph {number}"

    def compatibility_info(self, number: int) -> str | None:
        """Return the text that its compiler wrote about the payload of a node."""
        return f"honest;version={VERSION}"

    def runnable(self, graph: bytes) -> CompiledPartition:
        if self.context.purpose is Purpose.EXPORT:
            return CompiledPartition(None)
        prepared = self.context.engine.prepare(onnx.load_from_string(graph))
        self.runtime.prepared.append(prepared)
        return CompiledPartition(
            self.run_of(prepared, graph), close=self.close_of(self.runtime)
        )

    def close_of(self, runtime: Runtime) -> Any:
        """Return the `close` of one of many results that run on a runtime."""
        return runtime.close
