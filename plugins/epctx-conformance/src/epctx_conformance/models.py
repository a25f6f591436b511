"""Small models of the kit: blocks, each about one operator and of one shape, so that
each may follow each, and their structures.

A block lies between `enter`, which converts a float value to what it computes with, and
`leave`, which converts it back: nothing for float32, a Cast for other types, quantising
for 8 bits. A structure is a function that connects blocks: not its operators but its
shape matters. Knows onnx, no EP and nothing of epctx.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
FOREIGN_DOMAIN = "com.example.unknown"


@dataclass(frozen=True)
class SmallModel:
    """Model with what is needed to run it and to assess its results.

    Args:
        name: what it is; a plain file name.
        proto: complete in itself.
        step: the quantisation step of its outputs, by which results may differ; 0 for
            none.
    """

    name: str
    proto: onnx.ModelProto
    _: KW_ONLY
    step: float = 0.0

    @cached_property
    def data(self) -> bytes:
        """The serialised model; the same model gives the same bytes."""
        return bytes(self.proto.SerializeToString(deterministic=True))

    def copy(self, name: str) -> SmallModel:
        """Return the model under another name, to be edited."""
        return SmallModel(name, deepcopy(self.proto), step=self.step)

    def feeds(self, seed: int = 0, *, length: int = 2) -> dict[str, np.ndarray]:
        """Return inputs from a seed; inputs that initializers fill are left out.

        Args:
            seed: other seeds give other numbers.
            length: of open dimensions.
        """
        numbers = np.random.default_rng(seed)
        filled = {weight.name for weight in self.proto.graph.initializer}
        return {
            value.name: _draw(numbers, value.type.tensor_type, length)
            for value in self.proto.graph.input
            if value.name not in filled
        }


def _draw(
    numbers: np.random.Generator, tensor: onnx.TypeProto.Tensor, length: int
) -> np.ndarray:
    shape = [
        d.dim_value if d.HasField("dim_value") else length for d in tensor.shape.dim
    ]
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if tensor.elem_type == TensorProto.STRING:
        return np.full(shape, "text", dtype=object)
    if dtype.kind in "biu":
        return numbers.integers(0, 2, shape).astype(dtype)
    return numbers.standard_normal(shape).astype(dtype)


def is_valid(model: SmallModel) -> bool:
    """Return whether ONNX has the operators for the types and versions."""
    try:
        onnx.checker.check_model(model.proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def rename_values(graph: onnx.GraphProto, rename: Callable[[str], str]) -> None:
    """Rename every value of a graph; the empty name of an omitted input stays."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name and rename(name) for name in names]
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = rename(value.name)


class GraphBuilder:
    """Graph under construction; names come from counting, weights from a seed.

    Args:
        seed: of the weights.

    Attributes:
        constants: how many weights were asked for. Set to 0, the weights so far are
            used once more.
    """

    def __init__(self, seed: int = 0) -> None:
        self._numbers = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants = 0

    def input(
        self, name: str, shape: Sequence[int | str], elem_type: int = TensorProto.FLOAT
    ) -> str:
        """Add a graph input; return its name."""
        self.inputs.append(helper.make_tensor_value_info(name, elem_type, shape))
        return name

    def output(
        self,
        value: str,
        shape: Sequence[int | str] | None,
        elem_type: int = TensorProto.FLOAT,
    ) -> None:
        """Make a value a graph output; None for a shape that nobody knows."""
        self.outputs.append(helper.make_tensor_value_info(value, elem_type, shape))

    def node(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node with one output; return its output's name."""
        number = len(self.nodes)
        name = f"{op_type.lower()}_{number}"
        self.nodes.append(
            helper.make_node(
                op_type, inputs, [f"v{number}"], **{"name": name, **attributes}
            )
        )
        return f"v{number}"

    def weight(
        self, shape: Sequence[int], dtype: np.typing.DTypeLike = np.float32
    ) -> str:
        """Add a weight of random numbers; return its name.

        Integers lie between -5 and 5, and are not 0.
        """
        numbers = self._numbers.uniform(0.2, 1.2, shape)
        signs = self._numbers.choice([-1, 1], shape)
        if np.dtype(dtype).kind in "iu":
            numbers = np.rint(numbers * 4)
        return self.constant((numbers * signs).astype(dtype))

    def constant(self, array: np.typing.ArrayLike) -> str:
        """Add a weight of given numbers; return its name."""
        name = f"w{self.constants}"
        self.constants += 1
        self.weights.setdefault(name, numpy_helper.from_array(np.asarray(array), name))
        return name

    def model(self, name: str, *, step: float = 0.0) -> SmallModel:
        """Return the finished model."""
        graph = helper.make_graph(
            self.nodes, name, self.inputs, self.outputs, [*self.weights.values()]
        )
        domains = sorted({"", *(node.domain for node in self.nodes)})
        proto = helper.make_model(
            graph,
            opset_imports=[
                helper.make_opsetid(domain, 1 if domain else OPSET)
                for domain in domains
            ],
            ir_version=9,
            producer_name="epctx conformance kit",
        )
        return SmallModel(name, proto, step=step)


# --- blocks ---------------------------------------------------------------------------


Step: TypeAlias = Callable[[GraphBuilder, str], str]
"""Adds nodes that compute one value from another; returns the new value's name."""

IMAGE = (2, 4, 6, 6)
_WIDE = (2, 1024)
SCALE = np.float32(0.05)


def _pass_through(_graph: GraphBuilder, value: str) -> str:
    return value


def _add_values(graph: GraphBuilder, left: str, right: str) -> str:
    return graph.node("Add", [left, right])


def _make_step(
    op_type: str,
    *weights: tuple[int, ...],
    dtype: np.typing.DTypeLike = np.float32,
    **attributes: Any,
) -> Step:
    """Return a step of one operator with weights of these shapes."""

    def add(graph: GraphBuilder, value: str) -> str:
        return graph.node(
            op_type,
            [value, *(graph.weight(shape, dtype) for shape in weights)],
            **attributes,
        )

    return add


@dataclass(frozen=True, kw_only=True)
class Block:
    """Small work that keeps a value's shape.

    Attributes:
        name: the operator, with what is special.
        add: adds its nodes; its weights, if it has some, are others each time.
        join: adds a node that makes one value of two.
        shape: of the value.
        enter, leave: see this module.
        weighted: whether it has weights.
        step: the quantisation step of its results, or 0.
    """

    name: str
    add: Step
    join: Callable[[GraphBuilder, str, str], str] = _add_values
    shape: tuple[int, ...] = IMAGE
    enter: Step = _pass_through
    leave: Step = _pass_through
    weighted: bool = False
    step: float = 0.0

    @property
    def operator(self) -> str:
        """The operator that it is about."""
        return self.name.partition(" ")[0]

    def apply(self, graph: GraphBuilder, value: str) -> str:
        """Add the block to a float value; return the float value behind it."""
        return self.leave(graph, self.add(graph, self.enter(graph, value)))


def _make_float_block(
    op_type: str,
    *weights: tuple[int, ...],
    shape: tuple[int, ...] = IMAGE,
    **attributes: Any,
) -> Block:
    add = _make_step(op_type, *weights, **attributes)
    return Block(name=op_type, add=add, shape=shape, weighted=bool(weights))


def _reshape(graph: GraphBuilder, value: str) -> str:
    return graph.node("Reshape", [value, graph.constant(np.array(IMAGE, np.int64))])


_WINDOW: Mapping[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
FLOAT_BLOCKS = (
    _make_float_block("Conv", (4, 4, 3, 3), (4,), **_WINDOW),
    _make_float_block("Add", IMAGE),
    _make_float_block("Mul", IMAGE),
    _make_float_block("MatMul", (6, 6)),
    _make_float_block("Gemm", (6, 6), (6,), shape=(4, 6)),
    _make_float_block("Sub", IMAGE),
    _make_float_block("Div", IMAGE),
    _make_float_block("LayerNormalization", (6,), (6,)),
    _make_float_block("PRelu", (4, 1, 1)),
    _make_float_block("Max", IMAGE),
    *(
        _make_float_block(name)
        for name in (
            "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Elu", "HardSwish", "Softmax",
            "Abs", "Neg", "Floor", "Sqrt", "Exp", "Erf", "Sin", "Softplus", "Identity",
        )
    ),
    _make_float_block("MaxPool", **_WINDOW),
    _make_float_block("AveragePool", **_WINDOW),
    _make_float_block("Transpose", perm=[0, 1, 3, 2]),
    Block(name="Reshape", add=_reshape),
)  # fmt: skip


def _quantize(graph: GraphBuilder, value: str) -> str:
    return graph.node(
        "QuantizeLinear", [value, graph.constant(SCALE), graph.constant(np.int8(0))]
    )


def _dequantize(graph: GraphBuilder, value: str) -> str:
    return graph.node(
        "DequantizeLinear", [value, graph.constant(SCALE), graph.constant(np.int8(0))]
    )


def _add_quantized(graph: GraphBuilder, left: str, right: str) -> str:
    return _quantize(
        graph, _add_values(graph, _dequantize(graph, left), _dequantize(graph, right))
    )


def _make_quantized_block(
    op_type: str,
    *weights: tuple[int, ...],
    shape: tuple[int, ...] = IMAGE,
    **attributes: Any,
) -> Block:
    def add(graph: GraphBuilder, value: str) -> str:
        value = _dequantize(graph, value)
        stored = [_dequantize(graph, graph.weight(each, np.int8)) for each in weights]
        return _quantize(graph, graph.node(op_type, [value, *stored], **attributes))

    return Block(
        name=f"{op_type} of 8 bits",
        add=add,
        join=_add_quantized,
        shape=shape,
        enter=_quantize,
        leave=_dequantize,
        weighted=bool(weights),
        step=float(SCALE),
    )


QUANTIZED_BLOCKS = (
    _make_quantized_block("Conv", (4, 4, 3, 3), **_WINDOW),
    _make_quantized_block("MatMul", (6, 6)),
    _make_quantized_block("Relu"),
)


def _make_typed_block(elem_type: int) -> Block:
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    return Block(
        name=f"Add of {TensorProto.DataType.Name(elem_type).lower()}",
        add=_make_step("Add", IMAGE, dtype=dtype),
        enter=_make_step("Cast", to=elem_type),
        leave=_make_step("Cast", to=TensorProto.FLOAT),
        weighted=True,
        # 16 bits keep three digits of sums below 8.
        step=0.05 if dtype.itemsize == 2 else 0.0,  # noqa: PLR2004 - bytes
    )


TYPED_BLOCKS = tuple(
    _make_typed_block(elem_type)
    for elem_type in (
        TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE,
        TensorProto.INT32, TensorProto.INT64,
    )
)  # fmt: skip

LARGE_BLOCKS = (
    _make_float_block("MatMul", (1024, 1024), shape=_WIDE),
    _make_float_block("Add", (1024, 1024), shape=(1024, 1024)),
    _make_quantized_block("MatMul", (1024, 1024), shape=_WIDE),
)
"""Blocks with a weight of a megabyte or more."""

BLOCKS = (*FLOAT_BLOCKS, *QUANTIZED_BLOCKS, *TYPED_BLOCKS)
"""All blocks; those that show most come first."""


def _cast_to_text_and_back(graph: GraphBuilder, value: str) -> str:
    text = graph.node("Cast", [value], to=TensorProto.STRING)
    return graph.node("Cast", [text], to=TensorProto.FLOAT)


def _pass_through_sequence(graph: GraphBuilder, value: str) -> str:
    sequence = graph.node("SequenceConstruct", [value])
    return graph.node("SequenceAt", [sequence, graph.constant(np.array(0, np.int64))])


BARRIERS: Mapping[str, Step] = {
    **{
        name: _make_step(name)
        for name in ("Sin", "Erf", "Softplus", "Celu", "Shrink", "ThresholdedRelu")
    },
    "text": _cast_to_text_and_back,
    "sequence": _pass_through_sequence,
}
"""Steps between two blocks on float32: one that an EP does not take keeps its blocks
apart.
"""


# --- structures -----------------------------------------------------------------------


def single(
    block: Block, shape: Sequence[int | str] | None = None, *, seed: int = 0
) -> SmallModel:
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
    graph = GraphBuilder(seed)
    shape = block.shape if shape is None else shape
    value = block.enter(graph, graph.input("x", shape))
    for _ in range(length):
        value = block.add(graph, value)
    graph.output(block.leave(graph, value), shape)
    return graph.model(name, step=block.step * length)


def separated(
    block: Block, barrier: Step, count: int = 2, *, seed: int = 0, shared: bool = False
) -> SmallModel:
    """Blocks with an operator between them that keeps them apart; `shared`: they read
    the same weights.
    """
    graph = GraphBuilder(seed)
    value = block.apply(graph, graph.input("x", block.shape))
    for _ in range(count - 1):
        value = barrier(graph, value)
        if shared:
            graph.constants = 0
        value = block.apply(graph, value)
    graph.output(value, block.shape)
    return graph.model("separated", step=block.step * count)


def side_by_side(
    block: Block,
    branches: int = 3,
    *,
    input_order: Sequence[int] | None = None,
    output_order: Sequence[int] | None = None,
    name: str = "side_by_side",
) -> SmallModel:
    """Independent branches; the graph declares inputs and outputs in the order asked
    for.
    """
    graph = GraphBuilder()
    inputs = [f"x{branch}" for branch in range(branches)]
    for branch in input_order or range(branches):
        graph.input(inputs[branch], block.shape)
    outputs = [block.apply(graph, value) for value in inputs]
    for branch in output_order or range(branches):
        graph.output(outputs[branch], block.shape)
    return graph.model(name, step=block.step)


def _begin(block: Block) -> tuple[GraphBuilder, str]:
    """Return a graph with one block on the input `x`, and the value behind it, still as
    the block computes.
    """
    graph = GraphBuilder()
    return graph, block.add(graph, block.enter(graph, graph.input("x", block.shape)))


def _finish(
    graph: GraphBuilder, block: Block, name: str, *values: str, steps: int = 2
) -> SmallModel:
    """Return the model whose outputs are these values, which differ by so many steps of
    quantisation.
    """
    for value in values:
        graph.output(block.leave(graph, value), block.shape)
    return graph.model(name, step=steps * block.step)


def forked(block: Block) -> SmallModel:
    """One value read by two blocks, whose results are both outputs."""
    graph, value = _begin(block)
    return _finish(
        graph, block, "forked", block.add(graph, value), block.add(graph, value)
    )


def read_inside(block: Block) -> SmallModel:
    """A value that is an output of the model and read inside, too."""
    graph, value = _begin(block)
    return _finish(graph, block, "read_inside", value, block.add(graph, value))


def read_on_both_sides(block: Block, barrier: Step) -> SmallModel:
    """A value of the first block that the operator behind it and the second block both
    read.
    """
    graph, value = _begin(block)
    apart = block.enter(graph, barrier(graph, block.leave(graph, value)))
    results = block.add(graph, apart), block.add(graph, value)
    return _finish(graph, block, "read_on_both_sides", *results)


def around(block: Block, barrier: Step) -> SmallModel:
    """A path that leaves the EP's work and comes back beside one that stays: claiming
    all of it is a cycle.
    """
    graph, value = _begin(block)
    stays = block.add(graph, value)
    leaves = block.enter(graph, barrier(graph, block.leave(graph, value)))
    return _finish(graph, block, "around", block.join(graph, stays, leaves), steps=3)


def joined(block: Block, *, twice: bool = False, default: bool = False) -> SmallModel:
    """Two values made into one.

    Args:
        block: one with a join.
        twice: both are the same value.
        default: the second is an input with an initializer, which a caller may leave
            out.
    """
    graph, value = _begin(block)
    other = value
    if default:
        graph.weights[graph.weight(block.shape)].name = "w"
    if not twice:
        other = block.enter(graph, graph.input("w" if default else "b", block.shape))
    return _finish(graph, block, "joined", block.join(graph, value, other))


def with_unused_input(block: Block) -> SmallModel:
    """A graph with an input that nothing reads, before the one that is read."""
    graph = GraphBuilder()
    graph.input("unused", [3])
    graph.output(block.apply(graph, graph.input("x", block.shape)), block.shape)
    return graph.model("with_unused_input", step=block.step)


def in_subgraphs(block: Block, *, seed: int = 0) -> SmallModel:
    """An If whose branches hold a block each, reading a value of the graph around
    them.
    """
    graph = GraphBuilder(seed)
    graph.input("condition", [], TensorProto.BOOL)
    graph.input("x", block.shape)
    branches = {
        branch: _make_subgraph(block, branch, seed + number)
        for number, branch in enumerate(("then_branch", "else_branch"), 1)
    }
    graph.output(graph.node("If", ["condition"], **branches), block.shape)
    return graph.model("in_subgraphs", step=block.step)


def _make_subgraph(block: Block, name: str, seed: int) -> onnx.GraphProto:
    """Return a graph that reads `x` of the graph around it; all other names begin with
    its own.
    """
    inner = GraphBuilder(seed)
    inner.output(block.apply(inner, "x"), block.shape)
    graph = inner.model(name).proto.graph
    for node in graph.node:
        node.name = f"{name}_{node.name}"
    rename_values(graph, lambda value: value if value == "x" else f"{name}_{value}")
    return graph


def behind_unknown(block: Block) -> SmallModel:
    """A block behind an operator that nobody knows: its input has neither type nor
    shape.
    """
    graph = GraphBuilder()
    unknown = graph.node(
        "Frobnicate", [graph.input("x", block.shape)], domain=FOREIGN_DOMAIN
    )
    graph.output(block.apply(graph, unknown), None)
    return graph.model("behind_unknown")


def beside_foreign(block: Block) -> SmallModel:
    """A block and nodes of an unknown domain, one of which has the name of the block's
    operator.
    """
    graph = GraphBuilder()
    graph.output(block.apply(graph, graph.input("x", block.shape)), block.shape)
    for operator in (block.operator, "Frobnicate"):
        name = f"foreign_{operator}"
        graph.output(
            graph.node(operator, ["x"], name=name, domain=FOREIGN_DOMAIN), None
        )
    return graph.model("beside_foreign")


def with_omitted_inputs() -> SmallModel:
    """Clip without a lower bound, Resize with sizes only: names that are empty."""
    graph = GraphBuilder()
    clipped = graph.node(
        "Clip", [graph.input("x", [1, 4, 6, 6]), "", graph.constant(np.float32(0.5))]
    )
    sizes = graph.constant(np.array([1, 4, 12, 12], np.int64))
    graph.output(
        graph.node("Resize", [clipped, "", "", sizes], mode="nearest"), [1, 4, 12, 12]
    )
    return graph.model("with_omitted_inputs")


def with_constant_nodes(model: SmallModel) -> SmallModel:
    """The same model with its weights as Constant nodes."""
    edited = model.copy("constant_nodes")
    graph = edited.proto.graph
    constants = [
        helper.make_node("Constant", [], [w.name], name=w.name, value=w)
        for w in graph.initializer
    ]
    nodes = [*constants, *graph.node]
    del graph.initializer[:], graph.node[:]
    graph.node.extend(nodes)
    return edited
