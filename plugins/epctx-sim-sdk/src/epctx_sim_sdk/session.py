"""From partitions to payloads, whoever the vendor: what one EP instance does with the
SDK's compiler, writer and device.

`provider.SimulatedProvider` calls it from its hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from epctx_core.plugin import CompiledPartition, Purpose, WeightlessMode
from epctx_sim_sdk.container import SMALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_core.plugin import (
        ContextWriter,
        Partition,
        Payload,
        ProviderContext,
        TensorView,
    )
    from epctx_sim_sdk.compiler import SimGraph
    from epctx_sim_sdk.container import Tables
    from epctx_sim_sdk.device import Device

_COMPILED = "epctx_sim_sdk.compiled"
"""Key of the workspace for compiled graphs that are to be written."""


class SimSession:
    """The SDK as one EP instance uses it.

    Args:
        ep: the EP name, for messages.
        context: the EP instance's context.
        device: where graphs become runnable.
        fp16: store float32 weights as float16.

    Attributes:
        graphs: what was compiled so far, in the order of the partitions.
    """

    def __init__(
        self,
        ep: str,
        context: ProviderContext,
        device: Device,
        *,
        fp16: bool = False,
    ) -> None:
        self._ep = ep
        self._context = context
        self.device = device
        self._fp16 = fp16
        self.graphs: list[SimGraph] = []
        self._small: dict[str, SimGraph] = {}

    def compile(self, partitions: Sequence[Partition]) -> list[CompiledPartition]:
        """Convert partitions; under EXPORT nothing runs and no device is opened."""
        # One that only says "not to be run here" serves for all.
        exported = (
            CompiledPartition(None) if self._context.purpose is Purpose.EXPORT else None
        )
        compiled = []
        for done, partition in enumerate(partitions):
            self._report_step("compile", done, len(partitions))
            # Not by its name, which has to wait for the digests of all weights.
            with self._context.span("convert", number=done, nodes=len(partition.nodes)):
                graph = self._convert(partition)
            self.graphs.append(graph)
            compiled.append(exported or self.device.compile(graph))
        self._context.progress("compile", len(partitions), len(partitions))
        return compiled

    def _convert(self, partition: Partition) -> SimGraph:
        """Convert a partition; small equal ones are converted once."""
        from epctx_sim_sdk.compiler import compile_partition

        # With larger weights the digest would have to read them.
        is_small = all(weight.nbytes <= SMALL for weight in partition.weights.values())
        equal = self._small.get(partition.digest) if is_small else None
        if equal is not None:
            return replace(equal, partition=partition)

        weightless = self._context.weightless is not WeightlessMode.NONE
        graph = compile_partition(
            partition, ep=self._ep, fp16=self._fp16, weightless=weightless
        )
        if is_small and not graph.weights:
            self._small[partition.digest] = graph
        return graph

    def shared_graphs(self, writer: ContextWriter) -> list[SimGraph]:
        """Return what the models of the share group compiled that a payload is for, in
        order; equal graphs once.

        What this instance compiled is left there for later ones. Without a group it is
        all.
        """
        shared: dict[str, SimGraph] = self._context.workspace.get_or_create(
            _COMPILED, dict
        )
        # An equal one that is there already may be of a model that failed, and its
        # weights may be gone since.
        shared.update((graph.name, graph) for graph in self.graphs)
        return [
            shared[name]
            for name in dict.fromkeys(chain.from_iterable(writer.graphs_by_model))
        ]

    def activation_bytes(self) -> int:
        """Return what the largest of this instance's own graphs needs for
        activations.
        """
        by_structure = {graph.structure: graph for graph in self.graphs}
        return max(
            (graph.activation_bytes for graph in by_structure.values()), default=0
        )

    def write(
        self,
        payload: Payload,
        made_by: Mapping[str, str],
        graphs: Sequence[SimGraph],
        *,
        reference: Callable[[TensorView], str | None] = lambda _view: None,
    ) -> Tables:
        """Write one container; see `write_container`."""
        from epctx_sim_sdk.writing import write_container

        def before_weight(done: int, total: int) -> None:
            self._report_step("write", done, total)

        with self._context.span("lay out", graphs=len(graphs)):
            return write_container(
                payload,
                graphs,
                made_by,
                before_weight=before_weight,
                reference=reference,
            )

    def _report_step(self, stage: str, done: int, total: int) -> None:
        self._context.cancel.raise_if_requested()
        self._context.progress(stage, done, total)
