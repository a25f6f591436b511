"""Steps of nodes that are in no partition: those that EPs run by kernels, and groups that are left to the CPU EP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.engines.matching import RegistryLookup
from epctx_core.errors import NotImplementedByProvider
from epctx_core.graph.subgraph import Subgraph
from epctx_core.graph.view import Node
from epctx_core.options.choices import CPU_EP
from epctx_core.registry.guard import blame, contract_broken
from epctx_core.sessions.ep_calls import Boundary, checked, tell_of_outputs
from epctx_core.sessions.plan import StepSpec, without_omitted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_core.engines import CpuEngine
    from epctx_core.engines.matching import KernelMatcher
    from epctx_core.graph.index import GraphIndex
    from epctx_core.registry.instances import ProviderInstances
    from epctx_core.sessions.assignment import KernelNode
    from epctx_core.sessions.plan import RunStep

    _FormOfOne = tuple[GraphIndex | int, ...]


class LeftOverSteps:
    """Makes steps of nodes that are in no partition; small equal groups of the CPU EP's are prepared once.

    Args:
        engine: prepares what is left to the CPU EP.
        instances: the live EPs.
        matchers: EP type to its kernels, for saying why none of them fits.
    """

    def __init__(
        self, engine: CpuEngine, instances: ProviderInstances, matchers: Mapping[str, KernelMatcher]
    ) -> None:
        self._engine = engine
        self._instances = instances
        self._matchers = matchers
        self._known: dict[tuple[GraphIndex, tuple[int, ...]], RunStep] = {}
        self._ones: dict[_FormOfOne | None, RunStep] = {}

    def kernel_step(self, graph: GraphIndex, kernel: KernelNode) -> StepSpec:
        """Return the step of a node that an EP runs by one of its kernels.

        Raises:
            PluginError: what makes the kernel gives something that cannot be called.
        """
        owner, definition, name = (
            self._instances.record(kernel.ep),
            kernel.kernel,
            graph.node_name(kernel.node),
        )
        with blame(owner, "KernelDef.create"):
            compute = definition.create(Node(graph, kernel.node))
        if not callable(compute):
            what = f"gave a {type(compute).__name__} instead of a kernel for {name!r}"
            raise contract_broken(owner, "KernelDef.create", what)
        run = checked(
            compute if definition.takes_outputs else lambda inputs, _outputs: compute(inputs),
            owner,
            f"the kernel {definition} of {name!r}",
            Boundary.of(graph.types, graph.inputs[kernel.node], graph.outputs[kernel.node]),
        )
        inputs, outputs = graph.inputs[kernel.node], graph.outputs[kernel.node]
        return without_omitted(
            StepSpec(name, kernel.ep, run, inputs, outputs, in_place=definition.takes_outputs)
        )

    def cpu_step(self, graph: GraphIndex, nodes: Sequence[int]) -> StepSpec:
        """Return the step of a group of nodes that are left to the CPU EP.

        Raises:
            NotImplementedByProvider: an operator that no engine has.
        """
        one = _form_of_one(graph, nodes[0]) if len(nodes) == 1 else None
        name = graph.node_name(nodes[0])
        if one in self._ones:
            node = nodes[0]
            return StepSpec(name, CPU_EP, self._ones[one], graph.inputs[node], graph.outputs[node])
        piece = Subgraph(graph, nodes)
        plain = piece.plain_form
        # A form means something within its graph.
        form = None if plain is None else (graph, plain)
        run = None if form is None else self._known.get(form)
        if run is None:
            try:
                run = self._engine.prepare_piece(piece.model(), piece.weights).run
            except NotImplementedByProvider as error:
                why = self._why_no_kernel(graph, nodes, error.node)
                raise NotImplementedByProvider(
                    error.message + why, node=error.node, hint=error.hint
                ) from error
        if form is not None:
            self._known[form] = run
        run = tell_of_outputs(run, Boundary.of(graph.types, (), piece.output_names))
        if form is not None and one is not None:
            self._ones[one] = run
        return StepSpec(name, CPU_EP, run, piece.input_names, piece.output_names)

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
