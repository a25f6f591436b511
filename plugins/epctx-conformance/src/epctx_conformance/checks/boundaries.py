"""What flows in and out of partitions: every structure gives the CPU EP's results, compiled and loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

from epctx_conformance.models.blocks import LARGE_BLOCKS
from epctx_conformance.models.building import SmallModel
from epctx_conformance.models.structures import (
    around,
    chain,
    forked,
    in_bodies,
    joined,
    parted,
    read_inside,
    read_on_both_sides,
    sharing_a_weight,
    side_by_side,
    single,
    with_unused_input,
)
from epctx_conformance.table import Skipped, check

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epctx_conformance.models.blocks import Block
    from epctx_conformance.scene import Scene


def agrees(scene: Scene, model: SmallModel, feeds: Mapping[str, np.ndarray] | None = None) -> None:
    """Run a model in a session; compile it, load it and run it again; compare both with the CPU EP.

    Raises:
        Skipped: the EP takes nothing of it.
        CheckFailed: other results.
    """
    if not scene.claimed(model):
        raise Skipped(f"the EP takes nothing of the model {model.name}")
    feeds = model.feeds() if feeds is None else feeds
    scene.expect_agreement(model, scene.run(model, feeds), feeds, "compiled in a session")
    if scene.requirements.export and scene.requirements.partitions:
        loaded = scene.run(scene.compile(model).path, feeds)
        scene.expect_agreement(model, loaded, feeds, "compiled ahead of time and loaded")


def _joining(scene: Scene) -> Block:
    block = scene.block
    if block.join is None:
        raise Skipped("the EP takes none of the kit's pieces of work that join two values")
    return block


@check("boundaries", "one piece of work gives the right results")
def check_single(scene: Scene) -> None:
    """The least that an EP can do."""
    agrees(scene, single(scene.block))


@check("boundaries", "a chain gives the right results")
def check_chain(scene: Scene) -> None:
    """Five pieces, whose values inside are nobody's business."""
    agrees(scene, chain(scene.block, 5))


@check("boundaries", "inputs come in the order of the partition, not of the model")
def check_input_order(scene: Scene) -> None:
    """The graph declares its inputs in another order than its nodes read them."""
    agrees(scene, side_by_side(scene.block, input_order=(2, 0, 1), name="inputs_in_another_order"))


@check("boundaries", "outputs go in the order of the partition, not of the model")
def check_output_order(scene: Scene) -> None:
    """The graph declares its outputs in another order than its nodes make them."""
    agrees(scene, side_by_side(scene.block, output_order=(1, 2, 0), name="outputs_in_another_order"))


@check("boundaries", "inputs and outputs in different orders are not confused")
def check_both_orders(scene: Scene) -> None:
    """Both at once, so that one mistake does not hide the other."""
    model = side_by_side(
        scene.block, input_order=(2, 1, 0), output_order=(1, 0, 2), name="both_in_another_order"
    )
    agrees(scene, model)


@check("boundaries", "twelve inputs are not sorted by their names")
def check_many_inputs(scene: Scene) -> None:
    """Sorted as text, x10 would come before x2."""
    agrees(scene, side_by_side(scene.block, 12, name="twelve_branches"))


@check("boundaries", "a value that is used twice flows once")
def check_forked(scene: Scene) -> None:
    """Two readers inside the partition."""
    agrees(scene, forked(scene.block))


@check("boundaries", "an output of the model may be read inside, too")
def check_read_inside(scene: Scene) -> None:
    """The value leaves the partition and stays in it."""
    agrees(scene, read_inside(scene.block))


@check("boundaries", "one operator may read one value twice")
def check_same_value_twice(scene: Scene) -> None:
    """Both operands are one value."""
    agrees(scene, joined(_joining(scene), twice=True))


@check("boundaries", "two values are joined")
def check_joined(scene: Scene) -> None:
    """Two inputs of the model meet in one operator."""
    agrees(scene, joined(_joining(scene)))


@check("boundaries", "an input that nothing reads is not in the way")
def check_unused_input(scene: Scene) -> None:
    """The model has more inputs than the partition."""
    agrees(scene, with_unused_input(scene.block))


@check("boundaries", "a value may be read by its own work and by others'", needs=("several_partitions",))
def check_read_on_both_sides(scene: Scene) -> None:
    """What crosses the boundary is read on both sides."""
    agrees(scene, read_on_both_sides(scene.block, scene.barrier))


@check(
    "boundaries", "a path that leaves its work and comes back is waited for", needs=("several_partitions",)
)
def check_around(scene: Scene) -> None:
    """The second partition needs the first one's result by way of the CPU EP."""
    agrees(scene, around(_joining(scene), scene.barrier))


@check("boundaries", "four partitions of one model run in their order", needs=("several_partitions",))
def check_several_partitions(scene: Scene) -> None:
    """Each with weights of its own, so that a mix-up shows."""
    agrees(scene, parted(scene.block, scene.barrier, 4))


@check("boundaries", "two partitions may read one weight", needs=("several_partitions",))
def check_shared_weight(scene: Scene) -> None:
    """Stored once or twice, it is the same."""
    block = scene.block_where("with weights", weighted=True)
    agrees(scene, sharing_a_weight(block, scene.barrier))


@check("boundaries", "a weight that is an input with a default can be left out")
def check_default(scene: Scene) -> None:
    """The model's initializer stands in for the input."""
    agrees(scene, joined(_joining(scene), default=True))


@check("boundaries", "a weight that is an input with a default can be given")
def check_default_given(scene: Scene) -> None:
    """What the caller gives counts, not what stood there when the model was compiled."""
    model = joined(_joining(scene), default=True)
    shape = scene.block.shape
    agrees(scene, model, {**model.feeds(), "w": np.full(shape, 0.5, np.float32)})


@check("boundaries", "weights may be Constant nodes")
def check_constant_nodes(scene: Scene) -> None:
    """The same numbers, written as nodes."""
    agrees(scene, _with_constant_nodes(chain(scene.block_where("with weights", weighted=True))))


def _with_constant_nodes(model: SmallModel) -> SmallModel:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    constants = [
        onnx.helper.make_node("Constant", [], [weight.name], name=f"constant_{weight.name}", value=weight)
        for weight in graph.initializer
    ]
    nodes = [*constants, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.node.extend(nodes)
    return SmallModel("constant_nodes", proto, step=model.step)


@check("boundaries", "a large weight arrives whole")
def check_large_weight(scene: Scene) -> None:
    """A megabyte or more, which EPs get as a view and not inside the model."""
    block = next(filter(scene.takes, LARGE_BLOCKS), None)
    if block is None:
        raise Skipped("the EP takes none of the kit's pieces of work with a large weight")
    agrees(scene, single(block))


@check("boundaries", "the branches of an If give the right results", needs=("control_flow_bodies",))
def check_bodies(scene: Scene) -> None:
    """Each branch in turn."""
    model = in_bodies(scene.block)
    for condition in (True, False):
        agrees(scene, model, {**model.feeds(), "condition": np.array(condition)})


@check("boundaries", "values may have any names")
def check_names(scene: Scene) -> None:
    """Slashes, spaces, letters of other alphabets, and a name of 300 characters."""
    model = side_by_side(scene.block, 2)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    strange = iter(("/layer.0/x:0", "a b", "größe", "名前", "x" * 300, "..", "CON", "%s{}\\", "'\""))
    graph = proto.graph
    names = [
        *(v.name for v in graph.input),
        *(v.name for v in graph.output),
        *(w.name for w in graph.initializer),
    ]
    renamed = dict(zip(names, strange, strict=False))
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    for named in (*graph.input, *graph.output, *graph.initializer):
        named.name = renamed.get(named.name, named.name)
    agrees(scene, SmallModel("strange_names", proto, step=model.step))


@check("boundaries", "other numbers give other results in the same session")
def check_second_run(scene: Scene) -> None:
    """What the first run left behind does not count."""
    model = scene.network
    with scene.session(model) as session:
        for seed in (0, 1, 2, 0):
            feeds = model.feeds(seed)
            scene.expect_agreement(
                model, session.run(None, feeds), feeds, f"run with the inputs of seed {seed}"
            )


@check("boundaries", "the models of its author give the right results")
def check_given_models(scene: Scene) -> None:
    """Those given as models=[...]."""
    if not scene.given_models:
        raise Skipped("no models were given")
    for model in scene.given_models:
        agrees(scene, model)
