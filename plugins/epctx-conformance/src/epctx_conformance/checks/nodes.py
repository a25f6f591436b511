"""EPContext nodes: what an EP says of them, and how they come back to it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import onnx

from epctx_conformance.memory import MemoryPayloadView, MemoryReader, MemoryWriter
from epctx_conformance.models.structures import parted, side_by_side
from epctx_conformance.table import CheckFailed, Skipped, check
from epctx_core.errors import EpctxError
from epctx_core.plugin import CORE_ATTRIBUTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from epctx_conformance.observing import Watch
    from epctx_conformance.scene import Scene
    from epctx_core.plugin import CompiledPartition, ContextNode, EPContextNode

NEEDS = ("partitions", "export")
SEVERAL = (*NEEDS, "several_partitions")


@check("nodes", "each of several partitions has its node, and all load", needs=SEVERAL)
def check_several(scene: Scene) -> None:
    """Four pieces of work, each with numbers of its own."""
    model = parted(scene.block, scene.barrier, 4)
    compiled = scene.compile(model)
    names = [node.name for node in _context_nodes(compiled.path)]
    if names != [partition.name for partition in compiled.report.partitions]:
        raise CheckFailed(f"the model's nodes are {names}.")
    scene.expect_run(model, "loaded with four partitions", compiled.path)


def _context_nodes(path: Path) -> list[onnx.NodeProto]:
    return [node for node in onnx.load(path).graph.node if node.op_type == "EPContext"]


@check("nodes", "compiling in several calls is compiling in one", needs=SEVERAL)
def check_compile_again(scene: Scene) -> None:
    """Each partition in a call of its own, as other hosts do it; then all are saved."""

    def one_by_one(honest: Any, partitions: Sequence[Any], **_others: Any) -> list[CompiledPartition]:
        return [compiled for partition in partitions for compiled in honest(partitions=[partition])]

    model = parted(scene.block, scene.barrier, 3)
    watched, _ = scene.observed(compile=one_by_one)
    watched.expect_run(model, "compiled one by one in a session")
    scene.expect_run(model, "compiled one by one and loaded", watched.compile(model).path)


@check("nodes", "partitions may come in any order", needs=SEVERAL)
def check_partition_order(scene: Scene) -> None:
    """The last first; what was found out about a claim comes back with its partition, as `token`, and not by order."""

    def backwards(honest: Any, partitions: Sequence[Any], **_others: Any) -> list[CompiledPartition]:
        return list(honest(partitions=list(partitions)[::-1]))[::-1]

    model = parted(scene.block, scene.barrier, 4)
    watched, _ = scene.observed(compile=backwards)
    watched.expect_run(model, "compiled in another order in a session")
    scene.expect_run(model, "compiled in another order and loaded", watched.compile(model).path)


@check("nodes", "it compiles what the host leaves of its claims", needs=SEVERAL)
def check_fewer_partitions(scene: Scene) -> None:
    """`ep.partition_max_count`: some of what it claimed, with a token or without, never comes back."""
    model = parted(scene.block, scene.barrier, 3)
    config = {"ep.partition_max_count": "1"}
    scene.expect_run(model, "with one partition in a session", config=config)
    scene.expect_run(model, "with one partition, loaded", scene.compile(model, config=config).path)


@check("nodes", "it loads the nodes of a payload in several calls", needs=(*SEVERAL, "load_in_parts"))
def check_load_in_parts(scene: Scene) -> None:
    """One node a call, primaries first; a reference's primary came in an earlier call."""

    def one_by_one(honest: Any, nodes: Sequence[Any], **_others: Any) -> list[CompiledPartition]:
        return [loaded for node in nodes for loaded in honest(nodes=[node])]

    model = parted(scene.block, scene.barrier, 3)
    watched, _ = scene.observed(load_context=one_by_one)
    try:
        watched.expect_run(model, "loaded one node a call", scene.compile(model).path)
    except EpctxError as error:
        raise CheckFailed(
            f"loaded one node a call: {error.message}",
            hint="If it needs all nodes of a payload at once, say so: Requirements(load_in_parts=False); "
            "`--without load_in_parts` on the command line.",
        ) from error


@check("nodes", "nodes may come in any order", needs=SEVERAL)
def check_node_order(scene: Scene) -> None:
    """Primaries first, and otherwise the last first; the answer is in the order of the question."""

    def backwards(honest: Any, nodes: Sequence[ContextNode], **_others: Any) -> list[CompiledPartition]:
        order = sorted(nodes, key=lambda node: (not node.main_context, -nodes.index(node)))
        loaded = dict(zip([node.name for node in order], honest(nodes=order), strict=True))
        return [loaded[node.name] for node in nodes]

    model = parted(scene.block, scene.barrier, 4)
    watched, _ = scene.observed(load_context=backwards)
    watched.expect_run(model, "loaded in another order", scene.compile(model).path)


@check("nodes", "it loads without having compiled", needs=NEEDS)
def check_loads_only(scene: Scene) -> None:
    """A new instance, of which nothing but load_context is asked."""
    compiled = scene.compile(scene.network)
    watched, watch = scene.observed()
    watched.expect_run(scene.network, "loaded by a new instance", compiled.path)
    if watch.of("compile") or not watch.of("load_context"):
        raise CheckFailed("a load of its context model made it compile again.")


@check("nodes", "it needs no more of writer and reader than the contract says", needs=NEEDS)
def check_contract_alone(scene: Scene) -> None:
    """Written to a writer and read from a reader that are nothing but memory."""
    payloads: dict[str, MemoryPayloadView] = {}

    def to_memory(honest: Any, **given: Any) -> Any:
        writer = MemoryWriter(given["writer"])
        nodes = honest(writer=writer)
        for name, payload in writer.payloads.items():
            view = MemoryPayloadView(str(name), bytes(payload.content))  # one for all nodes that carry it
            payloads.update((node.partition.name, view) for node in nodes if node.payload is payload)
        return honest(**given)

    def from_memory(honest: Any, **_given: Any) -> Any:
        return honest(reader=MemoryReader(payloads))

    watched, _ = scene.observed(get_ep_context_nodes=to_memory, load_context=from_memory)
    with ExitStack() as stack:
        compiled = watched.compile(scene.network)
        for view in payloads.values():
            stack.callback(view.close)
        watched.expect_run(scene.network, "read from memory", compiled.path)


@check("nodes", "the names that it gives its graphs tell them apart", needs=SEVERAL)
def check_graph_names(scene: Scene) -> None:
    """`EPContextNode.graph_name`: each stands in a node's partition_name, and a load finds its graph by it alone."""
    model = parted(scene.block, scene.barrier, 4)
    watched, watch = scene.observed()
    try:
        compiled = watched.compile(model)
    except EpctxError as error:
        _graph_names(watch)
        raise CheckFailed(error.message, hint=_GRAPH_NAMES) from error
    names = _graph_names(watch)
    written = [
        a.s.decode() for n in _context_nodes(compiled.path) for a in n.attribute if a.name == "partition_name"
    ]
    if not names.issubset(written):
        raise CheckFailed(
            f"it named its graphs {sorted(names)}, and the nodes say {written}.", hint=_GRAPH_NAMES
        )
    scene.expect_run(model, "loaded by the names of its graphs", compiled.path)


_GRAPH_NAMES = "graph_name is printable text, another one for each partition, and the same each time that nodes are described."


def _graph_names(watch: Watch) -> set[str]:
    """Return the names that the EP gave.

    Raises:
        Skipped: it gave none.
    """
    described = (node for call in watch.of("get_ep_context_nodes") for node in call.result or ())
    names = {node.graph_name for node in described if node.graph_name is not None}
    if not names:
        raise Skipped("the EP leaves the names of its graphs to the core")
    return names


@check("nodes", "no two of its binaries hold the same bytes", needs=SEVERAL)
def check_one_binary(scene: Scene) -> None:
    """What several nodes need is one payload that all of them carry: written once, mapped once at a load."""
    model = parted(scene.block_where("with weights", weighted=True), scene.barrier, 3)
    compiled = scene.compile(model)
    files = [path for path in compiled.path.parent.iterdir() if path != compiled.path]
    if len({path.read_bytes() for path in files}) < len(files):
        raise CheckFailed(
            f"{len(files)} binaries hold the same bytes: {', '.join(sorted(path.name for path in files))}.",
            hint="Start one payload and give it to all nodes, main_context=1 or 0; at a load each of them has it.",
        )
    scene.expect_run(model, "loaded from its binaries", compiled.path)


def _described(scene: Scene) -> list[EPContextNode]:
    watched, watch = scene.observed()
    watched.compile(scene.network)
    return [node for call in watch.of("get_ep_context_nodes") for node in call.result]


@check("nodes", "it leaves the core's attributes to the core", needs=NEEDS)
def check_core_attributes(scene: Scene) -> None:
    """Names, source, embed mode and payload are the core's."""
    for node in _described(scene):
        owned = sorted(CORE_ATTRIBUTES & node.attributes.keys())
        if owned:
            raise CheckFailed(
                f"it sets {', '.join(owned)}, which only the core writes.", hint="Leave them out."
            )


@check("nodes", "each attribute of its nodes comes back as it was written", needs=NEEDS)
def check_attributes_come_back(scene: Scene) -> None:
    """What load_context gets is what get_ep_context_nodes said."""
    written, got = [], []
    watched, watch = scene.observed()
    compiled = watched.compile(scene.network)
    watched.run(compiled.path, scene.network.feeds())
    for call in watch.of("get_ep_context_nodes"):
        written += [(node.graph_name or node.partition.name, dict(node.attributes)) for node in call.result]
    for call in watch.of("load_context"):
        got += [(node.partition_name, dict(node.attributes)) for node in call.arguments["nodes"]]
    for name, attributes in written:
        back = dict(got).get(name, {})
        lost = sorted(key for key, value in attributes.items() if repr(back.get(key)) != repr(value))
        if lost:
            raise CheckFailed(
                f"the attribute {lost[0]!r} was {attributes[lost[0]]!r} and came back as {back.get(lost[0])!r}.",
                hint="Attributes are int, str, or float of 32 bits, or lists of one of them; write other numbers as text.",
            )


@check("nodes", "a prefix in the names of partitions is not in the way", needs=NEEDS)
def check_prefix(scene: Scene) -> None:
    """Nothing may be derived from a partition's name."""
    compiled = scene.compile(scene.network, config={"ep.context_node_name_prefix": "fleet-7."})
    scene.expect_run(scene.network, "loaded with a prefix in names", compiled.path)


@check("nodes", "a node may be renamed as long as its partition_name stays", needs=NEEDS)
def check_renamed_nodes(scene: Scene) -> None:
    """Tools rename nodes; the graph inside the payload goes by partition_name."""
    compiled = scene.compile(scene.network)
    proto = onnx.load(compiled.path)
    for number, node in enumerate(proto.graph.node):
        node.name = f"renamed_{number}"
    compiled.path.write_bytes(proto.SerializeToString(deterministic=True))
    scene.expect_run(scene.network, "loaded with renamed nodes", compiled.path)


@check("nodes", "values around its nodes may be renamed", needs=NEEDS)
def check_renamed_values(scene: Scene) -> None:
    """Inputs and outputs of a node go by their order."""
    compiled = scene.compile(side_by_side(scene.block))
    proto = onnx.load(compiled.path)
    graph = proto.graph
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [f"renamed {name}" for name in names]
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = f"renamed {value.name}"
    compiled.path.write_bytes(proto.SerializeToString(deterministic=True))
    feeds = compiled.model.feeds()
    results = scene.run(compiled.path, {f"renamed {name}": array for name, array in feeds.items()})
    scene.expect_agreement(compiled.model, results, feeds, "loaded with renamed values")
