"""Steps of the default CPU EP: groups of nodes that no EP took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.errors import NotImplementedByProvider
from epctx_core.graph.subgraph import Subgraph
from epctx_core.graph.view import Node
from epctx_core.kernels.matching import RegistryLookup
from epctx_core.sessions.ep_calls import Boundary, telling
from epctx_core.sessions.plan import StepSpec
from epctx_core.sessions.providers import CPU_EP

if TYPE_CHECKING:
    from epctx_core.graph.index import GraphIndex
    from epctx_core.kernels import CpuEngine
    from epctx_core.kernels.matching import KernelMatcher
    from epctx_core.registry.instances import ProviderInstances
    from epctx_core.sessions.plan import RunStep

    _FormOfOne = tuple[GraphIndex | int, ...]


class CpuSteps:
    """Makes the steps of the default CPU EP; small equal groups are prepared once.

    Args:
        engine: the session's.
        instances: the session's EPs.
        matchers: the kernels of those that have some, for saying why none of them fits.
    """

    def __init__(
        self, engine: CpuEngine, instances: ProviderInstances, matchers: Mapping[str, KernelMatcher]
    ) -> None:
        self._engine, self._instances, self._matchers = engine, instances, matchers
        self._known: dict[tuple[GraphIndex, tuple[int, ...]], RunStep] = {}
        self._ones: dict[_FormOfOne | None, RunStep] = {}

    def step(self, graph: GraphIndex, nodes: Sequence[int]) -> StepSpec:
        """Return the step of a group of left-over nodes.

        Raises:
            NotImplementedByProvider: an operator that no engine has.
        """
        one = _form_of_one(graph, nodes[0]) if len(nodes) == 1 else None
        if one in self._ones:
            node = nodes[0]
            return StepSpec(
                graph.node_name(node), CPU_EP, self._ones[one], graph.inputs[node], graph.outputs[node]
            )
        try:
            spec, plain = self._piece(graph, nodes)
        except NotImplementedByProvider as error:
            why = self._why_no_kernel(graph, nodes, error.node)
            raise NotImplementedByProvider(error.message + why, node=error.node, hint=error.hint) from error
        if plain and one is not None:
            self._ones[one] = spec.run
        return spec

    def _piece(self, graph: GraphIndex, nodes: Sequence[int]) -> tuple[StepSpec, bool]:
        """Return the step, and whether operators, wiring and types are all that decides its work."""
        piece = Subgraph(graph, nodes)
        plain = piece.plain_form
        # A form means something within its graph.
        form = None if plain is None else (graph, plain)
        run = self._known.get(form) if form is not None else None
        if run is None:
            run = self._engine.prepare_piece(piece.model(), piece.weights).run
            if form is not None:
                self._known[form] = run
        name = graph.node_name(nodes[0])
        run = telling(run, Boundary.of(graph.types, (), piece.output_names))
        return StepSpec(name, CPU_EP, run, piece.input_names, piece.output_names), form is not None

    def _why_no_kernel(self, graph: GraphIndex, group: Sequence[int], named: str | None) -> str:
        """Say why the kernels that EPs have for a node do not fit it; nothing where none has any."""
        lookups = {ep: RegistryLookup(matcher, graph.types) for ep, matcher in self._matchers.items()}
        nodes = [Node(graph, i) for i in group if graph.names[i] == named] or [Node(graph, i) for i in group]
        reasons = [
            f"; {self._instances.record(ep).label} has kernels of {node.op_type}, none fits: {reason}"
            for node in nodes
            for ep, lookup in lookups.items()
            if (reason := lookup.refusal(node)) is not None
        ]
        return "".join(reasons)


def _form_of_one(graph: GraphIndex, node: int) -> _FormOfOne | None:
    """Return what tells a node from others of its graph, in less time still than `Subgraph.plain_form`.

    Between an EP's partitions often stand very many single nodes of a few kinds. None for a node that
    reads a weight or one value twice, and for one of whose results some are not read.
    """
    inputs, outputs = graph.inputs[node], graph.outputs[node]
    names = {*inputs, *outputs}
    if len(names) < len(inputs) + len(outputs) or "" in names or not graph.constants.isdisjoint(names):
        return None
    consumers, results = graph.consumers, graph.results
    if not all(name in consumers or name in results for name in outputs):
        return None
    # A table makes equal types one object. What is declared is told of, what is proven is computed with.
    types = [
        type_of(name) for type_of in (graph.types.get, graph.types.proven) for name in (*inputs, *outputs)
    ]
    return graph, graph.kinds[node], *map(id, types)
