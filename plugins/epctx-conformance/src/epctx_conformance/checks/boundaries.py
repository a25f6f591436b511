"""What flows in and out of partitions: every structure gives the CPU EP's results, compiled and loaded."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np
import onnx

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
from epctx_conformance.table import CheckFunction, Skipped, check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    scene.expect_run(model, "compiled in a session", feeds=feeds)
    if scene.requirements.export and scene.requirements.partitions:
        path = scene.compile(model).path
        scene.expect_run(model, "compiled ahead of time and loaded", path, feeds=feeds)


_SEVERAL = ("several_partitions",)


def _joining(scene: Scene) -> Block:
    block = scene.block
    if block.join is None:
        raise Skipped("the EP takes none of the kit's pieces of work that join two values")
    return block


def _with_constant_nodes(model: SmallModel) -> SmallModel:
    proto = deepcopy(model.proto)
    graph = proto.graph
    constants = [
        onnx.helper.make_node("Constant", [], [weight.name], name=f"constant_{weight.name}", value=weight)
        for weight in graph.initializer
    ]
    nodes = [*constants, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.node.extend(nodes)
    return SmallModel("constant_nodes", proto, step=model.step)


_STRUCTURES: tuple[tuple[str, Callable[[Scene], SmallModel], tuple[str, ...]], ...] = (
    # The least that an EP can do.
    ("one piece of work gives the right results", lambda scene: single(scene.block), ()),
    # Five pieces, whose values inside are nobody's business.
    ("a chain gives the right results", lambda scene: chain(scene.block, 5), ()),
    # The graph declares its inputs, or its outputs, or both in another order than its nodes read and make them.
    (
        "inputs come in the order of the partition, not of the model",
        lambda scene: side_by_side(scene.block, input_order=(2, 0, 1), name="inputs_in_another_order"), (),
    ),
    (
        "outputs go in the order of the partition, not of the model",
        lambda scene: side_by_side(scene.block, output_order=(1, 2, 0), name="outputs_in_another_order"), (),
    ),
    (
        "inputs and outputs in different orders are not confused",
        lambda scene: side_by_side(
            scene.block, input_order=(2, 1, 0), output_order=(1, 0, 2), name="both_in_another_order"
        ), (),
    ),
    # Sorted as text, x10 would come before x2.
    (
        "twelve inputs are not sorted by their names",
        lambda scene: side_by_side(scene.block, 12, name="twelve_branches"), (),
    ),
    # Two readers inside the partition.
    ("a value that is used twice flows once", lambda scene: forked(scene.block), ()),
    # The value leaves the partition and stays in it.
    ("an output of the model may be read inside, too", lambda scene: read_inside(scene.block), ()),
    # Both operands are one value; then two inputs of the model meet in one operator.
    ("one operator may read one value twice", lambda scene: joined(_joining(scene), twice=True), ()),
    ("two values are joined", lambda scene: joined(_joining(scene)), ()),
    # The model has more inputs than the partition.
    ("an input that nothing reads is not in the way", lambda scene: with_unused_input(scene.block), ()),
    # What crosses the boundary is read on both sides.
    (
        "a value may be read by its own work and by others'",
        lambda scene: read_on_both_sides(scene.block, scene.barrier), _SEVERAL,
    ),
    # The second partition needs the first one's result by way of the CPU EP.
    (
        "a path that leaves its work and comes back is waited for",
        lambda scene: around(_joining(scene), scene.barrier), _SEVERAL,
    ),
    # Each with weights of its own, so that a mix-up shows.
    (
        "four partitions of one model run in their order",
        lambda scene: parted(scene.block, scene.barrier, 4), _SEVERAL,
    ),
    # Stored once or twice, it is the same.
    (
        "two partitions may read one weight",
        lambda scene: sharing_a_weight(scene.block_where("with weights", weighted=True), scene.barrier), _SEVERAL,
    ),
    # The model's initializer stands in for the input.
    (
        "a weight that is an input with a default can be left out",
        lambda scene: joined(_joining(scene), default=True), (),
    ),
    # The same numbers, written as nodes.
    (
        "weights may be Constant nodes",
        lambda scene: _with_constant_nodes(chain(scene.block_where("with weights", weighted=True))), (),
    ),
    # A megabyte or more, which EPs get as a view and not inside the model.
    ("a large weight arrives whole", lambda scene: single(scene.large_block), ()),
)  # fmt: skip
"""Title, the model that the results are of, and what is needed."""


def _agreeing(model: Callable[[Scene], SmallModel]) -> CheckFunction:
    return lambda scene: agrees(scene, model(scene))


for _title, _model, _needs in _STRUCTURES:
    check("boundaries", _title, needs=_needs)(_agreeing(_model))


@check("boundaries", "a weight that is an input with a default can be given")
def check_default_given(scene: Scene) -> None:
    """What the caller gives counts, not what stood there when the model was compiled."""
    model = joined(_joining(scene), default=True)
    shape = scene.block.shape
    agrees(scene, model, {**model.feeds(), "w": np.full(shape, 0.5, np.float32)})


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
    proto = deepcopy(model.proto)
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
            scene.expect_run(model, f"run with the inputs of seed {seed}", session, feeds=model.feeds(seed))


@check("boundaries", "the models of its author give the right results")
def check_given_models(scene: Scene) -> None:
    """Those given as models=[...]."""
    if not scene.given_models:
        raise Skipped("no models were given")
    for model in scene.given_models:
        agrees(scene, model)
