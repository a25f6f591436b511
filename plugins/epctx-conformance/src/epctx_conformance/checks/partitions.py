"""How an EP's claims become partitions: convex, maximal, and beside another EP."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from epctx_conformance.models.structures import around, chain, read_on_both_sides, side_by_side
from epctx_conformance.observing import asked
from epctx_conformance.table import CheckFailed, Skipped, check
from epctx_core.errors import EpctxError
from epctx_core.plugin import ComputeCapability, ExecutionProvider, hookimpl, supported_partitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_conformance.models.building import SmallModel
    from epctx_conformance.scene import Scene
    from epctx_core.plugin import CompiledPartition, GraphView, Partition, Refusal


class _FirstComer(ExecutionProvider):
    """EP of the kit's own that is asked before the EP under the kit and has some nodes by their names."""

    name: ClassVar[str] = "EpctxConformanceFirstComer"
    vendor: ClassVar[str] = "epctx conformance kit"
    nodes: ClassVar[frozenset[str]] = frozenset()

    @hookimpl
    def get_capability(self, graph: GraphView) -> Sequence[ComputeCapability | Refusal]:
        """Take the nodes."""
        return supported_partitions(graph, lambda node: node.name in self.nodes)

    @hookimpl
    def compile(self, partitions: Sequence[Partition]) -> Sequence[CompiledPartition]:
        """Refuse: this EP is for assignments alone."""
        raise NotImplementedError(f"{len(partitions)} partitions of an EP that only takes nodes")


def _first_comer(nodes: frozenset[str]) -> type[ExecutionProvider]:
    """Return an EP that takes the nodes of these names."""
    return type("FirstComerOfNodes", (_FirstComer,), {"nodes": nodes})


@check("partitions", "it takes no node that it was not shown")
def check_only_shown(scene: Scene) -> None:
    """Another EP, asked first, has some of the nodes."""
    model = side_by_side(scene.block, 2)
    # The first branch's nodes have the names that they have in a model of one branch.
    taken = frozenset().union(*scene.claimed(side_by_side(scene.block, 1)))
    watched, watch = scene.observed()
    watched.precede(_first_comer(taken))
    _assign(watched, model)
    for call in watch.of("get_capability"):
        shown = {node.index for node in call.arguments["graph"].nodes}
        for item in call.result:
            hidden = [node for node in item.nodes if node.index not in shown]
            if hidden:
                raise CheckFailed(
                    f"it names node {hidden[0].index}, which another EP has already.",
                    hint="Claim from graph.nodes; producer() and consumers() also give what others have.",
                )


def _assign(scene: Scene, model: SmallModel) -> None:
    try:
        scene.explain(model)
    except EpctxError as error:
        raise CheckFailed(f"of the model {model.name}: {error.message}", hint=error.hint or "") from error


@check("partitions", "what another EP has between its nodes keeps them apart", needs=("partitions",))
def check_around_another(scene: Scene) -> None:
    """Three pieces of its work one after another, of which another EP has the one in the middle."""
    model = chain(scene.block)
    names = sorted(frozenset().union(*scene.claimed(model)), key=lambda name: int(name.rpartition("_")[2]))
    third = len(names) // 3
    if not third:
        raise Skipped("the EP takes too little of a chain")
    watched, _ = scene.observed()
    watched.precede(_first_comer(frozenset(names[third : 2 * third])))
    _assign(watched, model)
    own = [found for found in watched.claimed(model) if not found & set(names[third : 2 * third])]
    if any(found & set(names[:third]) and found & set(names[2 * third :]) for found in own):
        raise CheckFailed("one partition holds nodes before and behind those of another EP.")


@check("partitions", "its sets are convex", needs=("partitions",))
def check_convex(scene: Scene) -> None:
    """A path that leaves its work and comes back: who claims both ends in one set makes a cycle."""
    if scene.block.join is None:
        raise Skipped("the EP takes none of the kit's pieces of work that join two values")
    for model in (around(scene.block, scene.barrier), read_on_both_sides(scene.block, scene.barrier)):
        calls = asked(scene, model)
        for call in calls:
            for item in call.result:
                if isinstance(item, ComputeCapability) and item.fuse:
                    _expect_convex(call.arguments["graph"], [node.index for node in item.nodes])


def _expect_convex(graph: GraphView, places: Sequence[int]) -> None:
    """Raise unless no path leaves the nodes and comes back."""
    inside = set(places)
    outside: set[int] = set()
    for node in graph.nodes:
        producers = [graph.producer(name) for name in node.inputs if name]
        before = {producer.index for producer in producers if producer is not None}
        if node.index not in inside and before & (inside | outside):
            outside.add(node.index)
        elif node.index in inside and before & outside:
            raise CheckFailed(
                f"a set that it claims is left and entered again at node {node.name!r} ({node.op_type}).",
                hint="Use supported_partitions(graph, is_supported), or graph.convex_groups(nodes).",
            )


@check("partitions", "equal pieces of its work one after another are one partition", needs=("partitions",))
def check_maximal_chain(scene: Scene) -> None:
    """Each boundary that need not be costs a copy and a call."""
    _expect_one(scene, chain(scene.block, 5))


@check("partitions", "equal pieces of its work side by side are one partition", needs=("partitions",))
def check_maximal_branches(scene: Scene) -> None:
    """The same without a path between the pieces."""
    _expect_one(scene, side_by_side(scene.block, 3))


def _expect_one(scene: Scene, model: SmallModel) -> None:
    found = scene.claimed(model)
    if len(found) != 1:
        calls = asked(scene, model)
        items = [item for call in calls for item in call.result]
        if any(isinstance(item, ComputeCapability) and item.exact for item in items):
            raise Skipped("the EP says exactly which sets it takes")
        raise CheckFailed(
            f"of the model {model.name} it makes {len(found)} partitions: {[sorted(names) for names in found][:3]}.",
            hint="Claim sets that the core can merge: the same fuse and keep_initializers, and no node left out.",
        )
