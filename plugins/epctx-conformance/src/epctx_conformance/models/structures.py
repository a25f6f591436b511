"""How blocks are wired: each function makes a model whose structure, not whose operators, is the matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper

from epctx_conformance.models.building import Growing, SmallModel

if TYPE_CHECKING:
    from epctx_conformance.models.blocks import Block, Piece


def single(block: Block, shape: Sequence[int | str] | None = None, *, seed: int = 0) -> SmallModel:
    """One block; `shape` may leave lengths open."""
    return chain(block, 1, name="single", shape=shape, seed=seed)


def chain(
    block: Block,
    length: int = 3,
    *,
    name: str = "chain",
    shape: Sequence[int | str] | None = None,
    seed: int = 0,
) -> SmallModel:
    """Blocks one after another."""
    graph, shape = Growing(seed), block.shape if shape is None else shape
    value = block.enter(graph, graph.input("x", shape))
    for _ in range(length):
        value = block.body(graph, value)
    graph.output(block.leave(graph, value), shape)
    return graph.model(name, step=block.step * length)


def parted(block: Block, barrier: Piece, pieces: int = 2, *, seed: int = 0) -> SmallModel:
    """Blocks with an operator between them that keeps them apart."""
    graph = Growing(seed)
    value = graph.input("x", block.shape)
    for piece in range(pieces):
        if piece:
            value = barrier(graph, value)
        value = block.leave(graph, block.body(graph, block.enter(graph, value)))
    graph.output(value, block.shape)
    return graph.model("parted", step=block.step * pieces)


def side_by_side(
    block: Block,
    branches: int = 3,
    *,
    input_order: Sequence[int] | None = None,
    output_order: Sequence[int] | None = None,
    name: str = "side_by_side",
) -> SmallModel:
    """Independent branches; the graph declares inputs and outputs in the order asked for."""
    graph = Growing()
    inputs = [f"x{branch}" for branch in range(branches)]
    for branch in input_order or range(branches):
        graph.input(inputs[branch], block.shape)
    outputs = [block.leave(graph, block.body(graph, block.enter(graph, value))) for value in inputs]
    for branch in output_order or range(branches):
        graph.output(outputs[branch], block.shape)
    return graph.model(name, step=block.step)


def forked(block: Block) -> SmallModel:
    """One value read by two blocks, whose results are both outputs."""
    graph = Growing()
    value = block.body(graph, block.enter(graph, graph.input("x", block.shape)))
    for result in [block.body(graph, value) for _ in range(2)]:
        graph.output(block.leave(graph, result), block.shape)
    return graph.model("forked", step=2 * block.step)


def read_inside(block: Block) -> SmallModel:
    """A value that is an output of the model and read inside, too."""
    graph = Growing()
    first = block.body(graph, block.enter(graph, graph.input("x", block.shape)))
    second = block.body(graph, first)
    graph.output(block.leave(graph, first), block.shape)
    graph.output(block.leave(graph, second), block.shape)
    return graph.model("read_inside", step=2 * block.step)


def read_on_both_sides(block: Block, barrier: Piece) -> SmallModel:
    """A value of the first piece that the operator behind it and the second piece both read."""
    graph = Growing()
    value = block.body(graph, block.enter(graph, graph.input("x", block.shape)))
    result = block.leave(graph, value)
    apart = block.enter(graph, barrier(graph, result))
    graph.output(block.leave(graph, block.body(graph, apart)), block.shape)
    graph.output(block.leave(graph, block.body(graph, value)), block.shape)
    return graph.model("read_on_both_sides", step=2 * block.step)


def around(block: Block, barrier: Piece) -> SmallModel:
    """A path that leaves the block's work and comes back beside one that stays: claiming all of it is a cycle."""
    if block.join is None:
        raise ValueError(f"the block {block.name} has no join")
    graph = Growing()
    value = block.body(graph, block.enter(graph, graph.input("x", block.shape)))
    stays = block.body(graph, value)
    leaves = block.enter(graph, barrier(graph, block.leave(graph, value)))
    graph.output(block.leave(graph, block.join(graph, stays, leaves)), block.shape)
    return graph.model("around", step=3 * block.step)


def joined(block: Block, *, twice: bool = False, default: bool = False) -> SmallModel:
    """Two values made into one.

    Args:
        block: one with a join.
        twice: both are the same value.
        default: the second is an input with an initializer, which a caller may leave out.
    """
    if block.join is None:
        raise ValueError(f"the block {block.name} has no join")
    graph = Growing()
    left = block.body(graph, block.enter(graph, graph.input("x", block.shape)))
    if twice:
        right = left
    elif default:
        graph.weight(block.shape)
        graph.weights[-1].name = graph.input("w", block.shape)
        right = block.enter(graph, "w")
    else:
        right = block.enter(graph, graph.input("b", block.shape))
    graph.output(block.leave(graph, block.join(graph, left, right)), block.shape)
    return graph.model("joined", step=2 * block.step)


def with_unused_input(block: Block) -> SmallModel:
    """A graph with an input that nothing reads, before the one that is read."""
    graph = Growing()
    graph.input("unused", [3])
    value = block.body(graph, block.enter(graph, graph.input("x", block.shape)))
    graph.output(block.leave(graph, value), block.shape)
    return graph.model("with_unused_input", step=block.step)


def sharing_a_weight(block: Block, barrier: Piece) -> SmallModel:
    """Two pieces that read the same weights."""
    graph = Growing()
    value = graph.input("x", block.shape)
    value = block.leave(graph, block.body(graph, block.enter(graph, value)))
    value = barrier(graph, value)
    before = len(graph.weights)
    value = block.leave(graph, block.body(graph, block.enter(graph, value)))
    _reuse_weights(graph, before)
    graph.output(value, block.shape)
    return graph.model("sharing_a_weight", step=2 * block.step)


def _reuse_weights(graph: Growing, before: int) -> None:
    """Have what reads the later weights read the earlier one of the same place instead."""
    replaced = {new.name: old.name for new, old in zip(graph.weights[before:], graph.weights, strict=False)}
    del graph.weights[before:]
    for node in graph.nodes:
        for place, name in enumerate(node.input):
            node.input[place] = replaced.get(name, name)


def in_bodies(block: Block, *, seed: int = 0) -> SmallModel:
    """An If whose branches hold a block each, reading a value of the graph around them."""
    graph = Growing(seed)
    graph.input("condition", [], TensorProto.BOOL)
    graph.input("x", block.shape)
    branches = {}
    for place, branch in enumerate(("then_branch", "else_branch")):
        inner = Growing(seed + place + 1)
        value = block.leave(inner, block.body(inner, block.enter(inner, "x")))
        branches[branch] = _body(inner, f"{branch}_", value, block)
    graph.output(graph.node("If", ["condition"], **branches), block.shape)
    return graph.model("in_bodies", step=block.step)


def _body(inner: Growing, prefix: str, result: str, block: Block) -> onnx.GraphProto:
    """Return a graph that reads `x` of the graph around it; all other names begin with the prefix."""
    for node in inner.nodes:
        node.name = prefix + node.name
        for names in (node.input, node.output):
            names[:] = [name if name in ("", "x") else prefix + name for name in names]
    for weight in inner.weights:
        weight.name = prefix + weight.name
    output = helper.make_tensor_value_info(prefix + result, TensorProto.FLOAT, block.shape)
    return helper.make_graph(inner.nodes, prefix.strip("_"), [], [output], inner.weights)
