"""Claims of an EP: valid, pure, convex and maximal, of nodes that it was shown; and
kernels that can match.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from epctx_conformance import models as structures
from epctx_conformance.models import BLOCKS, SmallModel, is_valid, rename_values
from epctx_conformance.observing import claims, comparable
from epctx_conformance.table import CheckFailed, CheckFunction, Skipped, check
from epctx_core.plugin import (
    ComputeCapability,
    ExecutionProvider,
    Refusal,
    hookimpl,
    supported_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_conformance.harness import Harness
    from epctx_core.plugin import CompiledPartition, GraphView, Partition

OPSETS = (13, 14, 15, 16, 17, 18, 19, 20, 21)


def _make_structures(harness: Harness) -> list[SmallModel]:
    block = harness.block
    barrier = harness.barrier_or_none
    models = [
        structures.chain(block),
        structures.side_by_side(block),
        structures.forked(block),
        structures.in_subgraphs(block),
    ]
    if barrier is not None:
        models += [
            structures.separated(block, barrier, 3),
            structures.read_on_both_sides(block, barrier),
        ]
    return models


@check("claims", "it takes at least one node of a model")
def check_takes_something(harness: Harness) -> None:
    """An EP that takes nothing passes every other check by being skipped."""
    try:
        harness.claimed_models()
    except Skipped as skipped:
        raise CheckFailed(
            f"{skipped}.",
            hint=(
                "All other checks are skipped without one: give models with nodes "
                "that it takes."
            ),
        ) from skipped


@check("claims", "it returns claims and refusals of nodes of the graph")
def check_valid(harness: Harness) -> None:
    """The core refuses anything else, so that an assignment without an error is
    valid.
    """
    for model in (*_make_structures(harness), *harness.claimed_models()):
        harness.ask(model)


@check("claims", "it claims the same nodes each time, and does not change the graph")
def check_pure(harness: Harness) -> None:
    """One instance, one graph, two calls, which leave structure and weights as they
    are.
    """

    def twice(honest: Any, graph: GraphView, **_others: Any) -> Any:
        before = _digest_content(graph)
        first = honest()
        second = honest()
        if comparable(first) != comparable(second):
            raise CheckFailed(
                "get_capability gave two answers to the same graph.",
                hint="Decide by the graph alone, and keep nothing from call to call.",
            )
        if _digest_content(graph) != before:
            raise CheckFailed(
                "get_capability changed the graph or one of its weights.",
                hint="Views are read-only; work on copies.",
            )
        return second

    for model in _make_structures(harness):
        harness.ask(model, twice)


@check("claims", "two instances claim the same nodes")
def check_instances_agree(harness: Harness) -> None:
    """Once in another order: the class does not remember earlier graphs."""
    models = _make_structures(harness)
    first, second = (
        {
            model.name: [comparable(call.result) for call in harness.ask(model)]
            for model in order
        }
        for order in (models, reversed(models))
    )
    if first != second:
        raise CheckFailed(
            "two instances gave different answers to the same graph.",
            hint="Keep no state in the class.",
        )


def _digest_content(graph: GraphView) -> tuple[Any, ...]:
    names = sorted({name for node in graph.nodes for name in node.inputs})
    weights = [
        weight
        for weight in map(graph.initializer, filter(None, names))
        if weight is not None
    ]
    return (
        graph.model().SerializeToString(deterministic=True),
        [
            (node.index, node.name, node.inputs, node.outputs, repr(node.attributes))
            for node in graph.nodes
        ],
        [weight.array().tobytes() for weight in weights],
    )


@check(
    "claims",
    "each set that it claims exactly can be a partition",
    needs=("partitions",),
)
def check_exact(harness: Harness) -> None:
    """A set that the core has to refuse, such as one with text at its boundary, was
    compiled for nothing.
    """
    if not any(
        item.exact
        for model in _make_structures(harness)
        for item in claims(harness.ask(model))
    ):
        raise Skipped("the EP claims no set exactly")
    for model in (*_make_structures(harness), *map(structures.single, BLOCKS)):
        refused = {
            n.name: n.refusals
            for n in harness.explain(model).nodes
            if n.partition is None
        }
        for item in claims(harness.ask(model)):
            name = item.nodes[0].name
            if item.exact and name in refused:
                raise CheckFailed(
                    "the core refuses the set that it claims exactly at node "
                    f"{name!r} of the model {model.name}: "
                    f"{'; '.join(reason for _, reason in refused[name])}.",
                    hint=(
                        "Claim sets that can be partitions; "
                        "graph.convex_groups(nodes) gives such sets."
                    ),
                )


@check("claims", "each refusal has a reason, and no node is both claimed and refused")
def check_refusals(harness: Harness) -> None:
    """Users read them in reports."""
    refusals = 0
    for model in (*_make_structures(harness), structures.beside_foreign(harness.block)):
        for call in harness.ask(model):
            claimed = {node.index for item in claims([call]) for node in item.nodes}
            for item in (item for item in call.result if isinstance(item, Refusal)):
                refusals += 1
                if not isinstance(item.reason, str) or not item.reason.strip():
                    raise CheckFailed(
                        f"it refuses nodes of {model.name} with the reason "
                        f"{item.reason!r}."
                    )
                both = sorted(claimed & {node.index for node in item.nodes})
                if both:
                    raise CheckFailed(
                        f"it both takes and refuses the nodes {both[:5]} of "
                        f"{model.name}."
                    )
    if not refusals:
        raise Skipped("the EP gives no reasons")


@check("claims", "its claims do not depend on names of nodes or values")
def check_names_do_not_matter(harness: Harness) -> None:
    """The same graph with other names, and with nodes that have none."""
    model = structures.chain(harness.block)
    renamed = model.copy("renamed")
    nameless = model.copy("without_node_names")
    rename_values(renamed.proto.graph, lambda name: f"other/names:0 ü {name}")
    for node, other in zip(
        renamed.proto.graph.node, nameless.proto.graph.node, strict=True
    ):
        node.name = f"other/names:0 ü {node.name}"
        other.name = ""
    expected, *others = (
        [
            sorted(node.index for node in item.nodes)
            for item in claims(harness.ask(each))
        ]
        for each in (model, renamed, nameless)
    )
    if others != [expected, expected]:
        raise CheckFailed(
            "it takes other nodes of the same graph with other names.",
            hint=(
                "Decide by operators, types and attributes; a name may be anything, "
                "or empty."
            ),
        )


@check("claims", "it claims no operator of an unknown domain")
def check_foreign_operators(harness: Harness) -> None:
    """A name means something only together with its domain."""
    claimed = harness.claimed_names(structures.beside_foreign(harness.block))
    foreign = sorted(name for name in claimed if name.startswith("foreign"))
    if foreign:
        raise CheckFailed(
            f"it takes {len(foreign)} nodes of the domain 'com.example.unknown', "
            "which it cannot know.",
            hint="Look at node.domain as well as node.op_type.",
        )


@check("claims", "it claims or refuses nodes in subgraphs like any others")
def check_subgraphs(harness: Harness) -> None:
    """Asked for both branches, then for the graph that holds them."""
    calls = harness.ask(structures.in_subgraphs(harness.block))
    if all(call.arguments["graph"].parent_node is None for call in calls):
        raise Skipped("the core showed it no subgraph")


def _make_versions(harness: Harness) -> list[SmallModel]:
    """Return the same nodes under versions from 13 on."""
    models = [
        structures.chain(harness.block).copy(f"opset_{version}") for version in OPSETS
    ]
    for model, version in zip(models, OPSETS, strict=True):
        model.proto.opset_import[0].version = version
    return [model for model in models if is_valid(model)]


_ODD: tuple[tuple[str, Callable[[Harness], list[SmallModel]]], ...] = (
    (
        "it does not fail on values of unknown type or rank",
        lambda harness: [structures.behind_unknown(harness.block)],
    ),
    (
        "it does not fail on omitted optional inputs",
        lambda _harness: [structures.with_omitted_inputs()],
    ),
    # An EP refuses what it does not know.
    ("it does not fail on any version of the operator set", _make_versions),
)
"""Title, and models of which the EP is asked what it takes."""


def _make_check(models: Callable[[Harness], list[SmallModel]]) -> CheckFunction:
    def function(harness: Harness) -> None:
        for model in models(harness):
            harness.ask(model)

    return function


for _title, _models in _ODD:
    check("claims", _title)(_make_check(_models))


# --- partitions -----------------------------------------------------------------------


class _FirstComer(ExecutionProvider):
    """EP of the kit's own that is asked before the EP under test and takes some nodes
    by their names.
    """

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
        raise NotImplementedError(
            f"{len(partitions)} partitions of an EP that only takes nodes"
        )


def _make_first_comer(nodes: frozenset[str]) -> type[ExecutionProvider]:
    """Return an EP that takes the nodes of these names."""
    return type("FirstComerOfNodes", (_FirstComer,), {"nodes": nodes})


@check("partitions", "it claims no node that it was not shown")
def check_only_shown(harness: Harness) -> None:
    """Another EP, asked first, has some of the nodes."""
    # The first branch's nodes have the names that they have in a model of one branch.
    names = harness.claimed_names(structures.side_by_side(harness.block, 1))
    other = harness.like(before=(_make_first_comer(names),))
    for call in other.ask(structures.side_by_side(harness.block, 2)):
        shown = {node.index for node in call.arguments["graph"].nodes}
        hidden = [
            node.index
            for item in call.result
            for node in item.nodes
            if node.index not in shown
        ]
        if hidden:
            raise CheckFailed(
                f"it claims node {hidden[0]}, which another EP has taken.",
                hint=(
                    "Claim nodes of graph.nodes; producer() and consumers() also "
                    "return nodes of other EPs."
                ),
            )


@check(
    "partitions",
    "nodes of another EP between its own separate them",
    needs=("partitions",),
)
def check_around_another(harness: Harness) -> None:
    """Three parts of its work one after another, of which another EP has the one in the
    middle.
    """
    model = structures.chain(harness.block)
    names = sorted(
        harness.claimed_names(model), key=lambda name: int(name.rpartition("_")[2])
    )
    third = len(names) // 3
    if not third:
        raise Skipped("the EP takes too little of a chain")
    parts = names[:third], names[third : 2 * third], names[2 * third :]
    first, middle, last = map(frozenset, parts)
    other = harness.like(before=(_make_first_comer(middle),))
    other.ask(model)
    if any(
        partition & first and partition & last
        for partition in other.claimed(model)
        if not partition & middle
    ):
        raise CheckFailed(
            "one partition has nodes before and after those of another EP."
        )


@check("partitions", "its claims are convex", needs=("partitions",))
def check_convex(harness: Harness) -> None:
    """A path that leaves its work and comes back: claiming both ends in one set makes a
    cycle.
    """
    for structure in (structures.around, structures.read_on_both_sides):
        for call in harness.ask(structure(harness.block, harness.barrier)):
            for item in claims([call]):
                if not item.keep_nodes:
                    _expect_convex(
                        call.arguments["graph"], {node.index for node in item.nodes}
                    )


def _expect_convex(graph: GraphView, inside: set[int]) -> None:
    """Raise CheckFailed if a path leaves the nodes and comes back."""
    outside: set[int] = set()
    for node in graph.nodes:
        producers = [graph.producer(name) for name in node.inputs if name]
        before = {producer.index for producer in producers if producer is not None}
        if node.index not in inside and before & (inside | outside):
            outside.add(node.index)
        elif node.index in inside and before & outside:
            raise CheckFailed(
                "a path leaves a set that it claims and comes back at node "
                f"{node.name!r} ({node.op_type}).",
                hint=(
                    "Use supported_partitions(graph, is_supported), or "
                    "graph.convex_groups(nodes)."
                ),
            )


@check(
    "partitions",
    "equal nodes, one after another or side by side, are one partition",
    needs=("partitions",),
)
def check_maximal(harness: Harness) -> None:
    """Each boundary that need not be costs a copy and a call."""
    for model in (
        structures.chain(harness.block, 5),
        structures.side_by_side(harness.block, 3),
    ):
        partitions = harness.claimed(model)
        if len(partitions) == 1:
            continue
        if any(item.exact for item in claims(harness.ask(model))):
            raise Skipped("the EP claims its sets exactly")
        raise CheckFailed(
            f"of the model {model.name} it makes {len(partitions)} partitions: "
            f"{[sorted(names) for names in partitions][:3]}.",
            hint=(
                "Claim sets that the core can merge: the same keep_initializers, and "
                "no node left out."
            ),
        )
