"""What an EP takes of a graph: valid, pure, convex, maximal, and only what it was shown."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from epctx_conformance.models.blocks import BLOCKS
from epctx_conformance.models.building import SmallModel
from epctx_conformance.models.structures import (
    chain,
    forked,
    in_bodies,
    parted,
    read_on_both_sides,
    side_by_side,
    single,
)
from epctx_conformance.observing import answer_of, asked, claimed_places
from epctx_conformance.table import CheckFailed, Skipped, check
from epctx_core.plugin import ComputeCapability, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_conformance.scene import Scene
    from epctx_core.plugin import GraphView, NodeView

OPSETS = (13, 14, 15, 16, 17, 18, 19, 20, 21)


def _structures(scene: Scene) -> list[SmallModel]:
    models = [chain(scene.block), side_by_side(scene.block), forked(scene.block), in_bodies(scene.block)]
    if scene.has_barrier:
        models += [parted(scene.block, scene.barrier, 3), read_on_both_sides(scene.block, scene.barrier)]
    return models


@check("claims", "it takes something of a model")
def check_takes_something(scene: Scene) -> None:
    """An EP that takes nothing passes every other check by being skipped."""
    try:
        scene.claimed_models()
    except Skipped as skipped:
        raise CheckFailed(
            f"{skipped}.",
            hint="Every other check is skipped without one, so give models that it takes work from.",
        ) from skipped


@check("claims", "its answers are claims and refusals of nodes of the graph")
def check_valid(scene: Scene) -> None:
    """The core refuses what is none, so that an assignment that ends is valid."""
    for model in (*_structures(scene), *scene.claimed_models()):
        asked(scene, model)


@check("claims", "it gives the same answer when it is asked twice")
def check_pure(scene: Scene) -> None:
    """One instance, one graph, two calls."""

    def twice(honest: Any, **_graph: Any) -> Any:
        first, second = honest(), honest()
        if answer_of(first) != answer_of(second):
            raise CheckFailed(
                "get_capability gave another answer to the same graph.",
                hint="Decide by the graph alone, and keep nothing from call to call.",
            )
        return second

    for model in _structures(scene):
        asked(scene, model, twice)


@check("claims", "two instances give the same answer")
def check_instances_agree(scene: Scene) -> None:
    """What one instance saw before does not count."""
    models = _structures(scene)
    first = [_answers(scene, model) for model in models]
    second = [_answers(scene, model) for model in reversed(models)][::-1]
    if first != second:
        raise CheckFailed(
            "two instances answered differently to the same graph.", hint="Keep no state in the class."
        )


def _answers(scene: Scene, model: SmallModel) -> list[Any]:
    calls = asked(scene, model)
    return [answer_of(call.result) for call in calls]


@check("claims", "asking it changes nothing of the graph")
def check_graph_unchanged(scene: Scene) -> None:
    """Structure and weights before and after."""

    def compared(honest: Any, graph: GraphView, **_others: Any) -> Any:
        before = _content(graph)
        result = honest()
        if _content(graph) != before:
            raise CheckFailed(
                "the graph, or a weight of it, is another one after get_capability.",
                hint="Views are read-only; work on copies.",
            )
        return result

    for model in _structures(scene):
        asked(scene, model, compared)


def _content(graph: GraphView) -> tuple[Any, ...]:
    names = {name for node in graph.nodes for name in node.inputs if name}
    weights = sorted(name for name in names if graph.initializer(name) is not None)
    return (
        graph.model().SerializeToString(deterministic=True),
        [(node.index, node.name, node.inputs, node.outputs, repr(node.attributes)) for node in graph.nodes],
        [graph.initializer(name).array().tobytes() for name in weights],  # type: ignore[union-attr]
    )


@check("claims", "a set that it claims exactly is a partition as it stands", needs=("partitions",))
def check_exact(scene: Scene) -> None:
    """What the core has to refuse was compiled for nothing: such as a part of a quantized group."""
    if not any(_exact_sets(scene, model) for model in _structures(scene)):
        raise Skipped("the EP claims no set exactly")
    for model in (*_structures(scene), *map(single, BLOCKS)):
        sets = _exact_sets(scene, model)
        refused = {node.name: node.refusals for node in scene.explain(model).nodes if node.partition is None}
        for name in (nodes[0].name for nodes in sets):
            if name in refused:
                raise CheckFailed(
                    f"the set that it claims exactly at node {name!r} of the model {model.name} is refused: "
                    f"{'; '.join(reason for _, reason in refused[name])}.",
                    hint="Claim what can be a partition; graph.convex_groups(nodes) gives such sets.",
                )


def _exact_sets(scene: Scene, model: SmallModel) -> list[Sequence[NodeView]]:
    items = [item for call in asked(scene, model) for item in call.result]
    return [item.nodes for item in items if isinstance(item, ComputeCapability) and item.exact]


@check("claims", "each refusal has a reason that a user can read")
def check_reasons(scene: Scene) -> None:
    """Users read them in reports."""
    refusals = 0
    for model in (*_structures(scene), foreign_operators(scene)):
        calls = asked(scene, model)
        for item in (item for call in calls for item in call.result if isinstance(item, Refusal)):
            refusals += 1
            if not isinstance(item.reason, str) or not item.reason.strip():
                raise CheckFailed(
                    f"it refuses nodes of the model {model.name} with the reason {item.reason!r}."
                )
    if not refusals:
        raise Skipped("the EP refuses nothing in words")


@check("claims", "no node is both taken and refused")
def check_no_contradiction(scene: Scene) -> None:
    """One of the two would be wrong."""
    for model in _structures(scene):
        calls = asked(scene, model)
        for call, claimed in zip(calls, claimed_places(calls), strict=True):
            refused = [n.index for item in call.result if isinstance(item, Refusal) for n in item.nodes]
            both = sorted(set(claimed) & set(refused))
            if both:
                raise CheckFailed(
                    f"of the model {model.name} it both takes and refuses the nodes {both[:5]}."
                )


@check("claims", "names of nodes and values do not matter")
def check_names_do_not_matter(scene: Scene) -> None:
    """The same graph with other names, and with nodes that have none."""
    model = chain(scene.block)
    for renamed in (_renamed(model, "other/names:0 ü "), _without_node_names(model)):
        calls = asked(scene, model)
        others = asked(scene, renamed)
        if claimed_places(calls) != claimed_places(others):
            raise CheckFailed(
                "it takes other nodes of the same graph with other names.",
                hint="Decide by operators, types and attributes; a name may be anything, or empty.",
            )


def _renamed(model: SmallModel, prefix: str) -> SmallModel:
    proto = deepcopy(model.proto)
    graph = proto.graph
    for node in graph.node:
        node.name = prefix + node.name
        node.input[:] = [prefix + name if name else "" for name in node.input]
        node.output[:] = [prefix + name for name in node.output]
    for named in (*graph.input, *graph.output, *graph.initializer):
        named.name = prefix + named.name
    return SmallModel("renamed", proto, step=model.step)


def _without_node_names(model: SmallModel) -> SmallModel:
    proto = deepcopy(model.proto)
    for node in proto.graph.node:
        node.name = ""
    return SmallModel("without_node_names", proto, step=model.step)


def foreign_operators(scene: Scene) -> SmallModel:
    """Return a block between nodes of an unknown domain, one of which has the name of the block's operator."""
    proto = deepcopy(single(scene.block).proto)
    graph = proto.graph
    for place, operator in enumerate((scene.block.operator, "Frobnicate")):
        made = onnx.helper.make_node(
            operator,
            [graph.input[0].name],
            [f"foreign_{place}"],
            name=f"foreign_{place}",
            domain="com.example.unknown",
        )
        graph.node.append(made)
        graph.output.append(
            onnx.helper.make_tensor_value_info(f"foreign_{place}", onnx.TensorProto.FLOAT, None)
        )
    proto.opset_import.append(onnx.helper.make_opsetid("com.example.unknown", 1))
    return SmallModel("foreign_operators", proto)


@check("claims", "it leaves operators of an unknown domain alone, whatever they are called")
def check_foreign_operators(scene: Scene) -> None:
    """A name means something only together with its domain."""
    claimed = frozenset().union(*scene.claimed(foreign_operators(scene)))
    foreign = sorted(name for name in claimed if name.startswith("foreign"))
    if foreign:
        raise CheckFailed(
            f"it takes {len(foreign)} nodes of the domain 'com.example.unknown', which it cannot know.",
            hint="Look at node.domain as well as node.op_type.",
        )


@check("claims", "a value of unknown type or rank is no accident")
def check_unknown_types(scene: Scene) -> None:
    """A block behind an operator that nobody knows: its input has neither type nor shape."""
    proto = deepcopy(single(scene.block).proto)
    graph = proto.graph
    known = graph.input[0].name
    for node in graph.node:
        node.input[:] = ["of_unknown_type" if name == known else name for name in node.input]
    unknown = onnx.helper.make_node(
        "Frobnicate", [known], ["of_unknown_type"], name="unknown", domain="com.example.unknown"
    )
    nodes = [unknown, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.output[0].type.tensor_type.shape.dim[:]
    graph.output[0].type.tensor_type.ClearField("shape")
    proto.opset_import.append(onnx.helper.make_opsetid("com.example.unknown", 1))
    asked(scene, SmallModel("unknown_types", proto))


@check("claims", "omitted optional inputs are no accident")
def check_omitted_inputs(scene: Scene) -> None:
    """Clip without a lower bound, Resize with sizes only: names that are empty."""
    asked(scene, _with_omitted_inputs())


def _with_omitted_inputs() -> SmallModel:
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Clip", ["x", "", "high"], ["clipped"], name="clip_0"),
        helper.make_node("Resize", ["clipped", "", "", "sizes"], ["y"], name="resize_1", mode="nearest"),
    ]
    weights = [
        onnx.numpy_helper.from_array(np.array(0.5, np.float32), "high"),
        onnx.numpy_helper.from_array(np.array([1, 4, 12, 12], np.int64), "sizes"),
    ]
    x = helper.make_tensor_value_info("x", kind, [1, 4, 6, 6])
    y = helper.make_tensor_value_info("y", kind, [1, 4, 12, 12])
    graph = helper.make_graph(nodes, "omitted", [x], [y], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return SmallModel("with_omitted_inputs", proto)


@check("claims", "bodies of control flow are taken or refused like any graph")
def check_bodies(scene: Scene) -> None:
    """Asked for both branches, then for the graph that holds them."""
    calls = asked(scene, in_bodies(scene.block))
    bodies = [call for call in calls if call.arguments["graph"].parent_node is not None]
    if not bodies:
        raise Skipped("the core showed it no body")


@check("claims", "models of any operator set version are looked at without an accident")
def check_opsets(scene: Scene) -> None:
    """The same nodes under versions from 13 on; what it does not know it refuses."""
    model = chain(scene.block)
    for version in OPSETS:
        proto = deepcopy(model.proto)
        proto.opset_import[0].version = version
        try:
            onnx.checker.check_model(proto)
        except onnx.checker.ValidationError:
            continue
        asked(scene, SmallModel(f"opset_{version}", proto))
