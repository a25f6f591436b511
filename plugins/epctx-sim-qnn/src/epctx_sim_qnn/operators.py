"""Nodes that the simulated HTP backend takes, as one table, with a reason for each
refusal.

The operators are those that the real EP's documentation lists, and IsNaN, which its
newer versions build. Edit the table to change what is taken. A group of nodes that QNN
fuses is taken if the table takes the operator that it becomes. So is a node on
constants alone that only taken nodes read: ONNX Runtime computes it before the real EP
is asked, and the simulated SDK when it compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epctx_sim_sdk.support import NodeSupport
from epctx_sim_sdk.values import is_constant
from onnx import TensorProto

from epctx_core.plugin import read_inputs
from epctx_sim_qnn import conditions
from epctx_sim_qnn.fusions import Fusion, find_fusions

if TYPE_CHECKING:
    from epctx_core.plugin import GraphView, NodeView, TensorType

Types = frozenset[int]
Rule = Callable[["NodeView", "GraphView"], str | None]

FLOAT: Types = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16})
INT32: Types = frozenset({TensorProto.INT32})
BOOL: Types = frozenset({TensorProto.BOOL})
INDEX: Types = frozenset({TensorProto.INT32, TensorProto.INT64})
BYTE: Types = frozenset({TensorProto.INT8, TensorProto.UINT8})
QUANTISED: Types = BYTE | {TensorProto.INT16, TensorProto.UINT16}
NUMBER: Types = FLOAT | INT32
MOVABLE: Types = NUMBER | QUANTISED | BOOL
CASTABLE: Types = MOVABLE | INDEX

MAX_RANK = 5


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Conditions of one operator.

    Attributes:
        types: element types of inputs and outputs that the next two do not name.
        inputs: position to element types, for indices, shapes, conditions and scales.
        outputs: the same for results.
        constant: positions of inputs that must be constants.
        used_outputs: how many results may be read; further ones may be named.
        ranks: the ranks of the first input.
        rule: a further condition; returns the reason to refuse, or None.
    """

    types: Types
    inputs: Mapping[int, Types] = field(default_factory=dict)
    outputs: Mapping[int, Types] = field(default_factory=dict)
    constant: tuple[int, ...] = ()
    used_outputs: int = 1
    ranks: range = range(MAX_RANK + 1)
    rule: Rule | None = None


def _make_rows(names: str, operator: Operator) -> dict[tuple[str, str], Operator]:
    return {("", name): operator for name in names.split()}


_IMAGE = range(3, 6)
_MANY = 1 << 10
_QUANTIZE = Operator(
    types=FLOAT,
    inputs={2: QUANTISED},
    outputs={0: QUANTISED},
    constant=(1, 2),
    rule=conditions.one_scale,
)
_DEQUANTIZE = Operator(
    types=QUANTISED | INT32,
    inputs={1: FLOAT},
    outputs={0: FLOAT},
    constant=(1, 2),
    rule=conditions.one_scale,
)

OPERATORS: Mapping[tuple[str, str], Operator] = {
    # one value each
    **_make_rows(
        (
            "Asin Atan Ceil Cos Elu Exp Floor Gelu HardSigmoid HardSwish LeakyRelu "
            "Log LogSoftmax Reciprocal Relu Round Sigmoid Sin Softmax Sqrt Tanh "
            "ThresholdedRelu"
        ),
        Operator(types=FLOAT),
    ),
    ("com.microsoft", "Gelu"): Operator(types=FLOAT),
    **_make_rows("Abs Neg Sign", Operator(types=NUMBER)),
    **_make_rows("Clip", Operator(types=FLOAT, constant=(1, 2))),
    **_make_rows("Cast", Operator(types=CASTABLE)),
    # two values and more
    **_make_rows("Add Div Max Min Mul Sub", Operator(types=NUMBER)),
    **_make_rows("Mean Pow PRelu Sum", Operator(types=FLOAT)),
    **_make_rows("Mod", Operator(types=INT32)),
    **_make_rows(
        "Equal Greater GreaterOrEqual Less LessOrEqual",
        Operator(types=NUMBER, outputs={0: BOOL}),
    ),
    **_make_rows("IsNaN", Operator(types=FLOAT, outputs={0: BOOL})),
    **_make_rows("And Not Or", Operator(types=BOOL)),
    **_make_rows("Where", Operator(types=NUMBER, inputs={0: BOOL})),
    # layers
    **_make_rows("Conv ConvTranspose", Operator(types=FLOAT, ranks=_IMAGE)),
    **_make_rows("Gemm", Operator(types=FLOAT, ranks=range(2, 3))),
    **_make_rows("MatMul", Operator(types=FLOAT, ranks=range(1, MAX_RANK + 1))),
    **_make_rows(
        "LSTM",
        Operator(
            types=FLOAT,
            inputs={4: INT32},
            constant=(1, 2, 3),
            used_outputs=3,
            rule=conditions.lstm,
        ),
    ),
    **_make_rows(
        "AveragePool GlobalAveragePool GlobalMaxPool",
        Operator(types=FLOAT, ranks=_IMAGE),
    ),
    **_make_rows("MaxPool", Operator(types=FLOAT | BYTE, ranks=_IMAGE)),
    **_make_rows(
        "BatchNormalization",
        Operator(types=FLOAT, constant=(1, 2, 3, 4), rule=conditions.inference_only),
    ),
    **_make_rows(
        "InstanceNormalization LayerNormalization",
        Operator(types=FLOAT, constant=(1, 2)),
    ),
    **_make_rows("LRN", Operator(types=FLOAT, ranks=range(4, 5))),
    **_make_rows("LpNormalization", Operator(types=FLOAT, rule=conditions.second_norm)),
    **_make_rows("GridSample", Operator(types=FLOAT, ranks=range(4, 5))),
    **_make_rows(
        "Resize",
        Operator(
            types=FLOAT,
            inputs={1: FLOAT, 2: FLOAT, 3: INDEX},
            constant=(1, 2, 3),
            ranks=_IMAGE,
            rule=conditions.resize,
        ),
    ),
    **_make_rows("Upsample", Operator(types=FLOAT, constant=(1,), ranks=_IMAGE)),
    # over axes
    **_make_rows(
        "CumSum ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum",
        Operator(types=NUMBER, inputs={1: INDEX}, constant=(1,)),
    ),
    **_make_rows("ReduceL2", Operator(types=FLOAT, inputs={1: INDEX}, constant=(1,))),
    **_make_rows("ArgMax ArgMin", Operator(types=NUMBER, outputs={0: INDEX})),
    **_make_rows(
        "TopK",
        Operator(
            types=NUMBER,
            inputs={1: INDEX},
            outputs={1: INDEX},
            constant=(1,),
            used_outputs=2,
        ),
    ),
    # moving data
    **_make_rows("Concat Flatten Transpose", Operator(types=MOVABLE)),
    **_make_rows(
        "Expand Reshape Squeeze Tile Unsqueeze",
        Operator(types=MOVABLE, inputs={1: INDEX}, constant=(1,)),
    ),
    **_make_rows(
        "Split",
        Operator(types=MOVABLE, inputs={1: INDEX}, constant=(1,), used_outputs=_MANY),
    ),
    **_make_rows(
        "Slice",
        Operator(
            types=MOVABLE,
            inputs={1: INDEX, 2: INDEX, 3: INDEX, 4: INDEX},
            constant=(1, 2, 3, 4),
        ),
    ),
    **_make_rows("DepthToSpace SpaceToDepth", Operator(types=FLOAT, ranks=range(4, 5))),
    **_make_rows(
        "Pad",
        Operator(
            types=NUMBER | BYTE,
            inputs={1: INDEX, 3: INDEX},
            constant=(1, 2, 3),
            rule=conditions.pad,
        ),
    ),
    **_make_rows(
        "Gather GatherElements GatherND",
        Operator(types=MOVABLE, inputs={1: INDEX}, rule=conditions.positive_indices),
    ),
    **_make_rows(
        "ScatterElements ScatterND",
        Operator(types=MOVABLE, inputs={1: INDEX}, rule=conditions.plain_scatter),
    ),
    # quantisation
    **_make_rows("QuantizeLinear", _QUANTIZE),
    **_make_rows("DequantizeLinear", _DEQUANTIZE),
    ("com.microsoft", "QuantizeLinear"): _QUANTIZE,
    ("com.microsoft", "DequantizeLinear"): _DEQUANTIZE,
    # what ONNX Runtime's optimisers remove before the real EP is asked
    **_make_rows("Identity", Operator(types=MOVABLE)),
    **_make_rows(
        "Dropout",
        Operator(
            types=FLOAT,
            inputs={2: BOOL},
            constant=(1, 2),
            rule=conditions.inference_only,
        ),
    ),
    **_make_rows("Constant", Operator(types=CASTABLE)),
}

_QUANTISES = frozenset({"QuantizeLinear", "DequantizeLinear"})
_NEVER_FOLDED = _QUANTISES | {
    "Constant", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "Multinomial", "Bernoulli",
}  # fmt: skip
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})


class Support(NodeSupport):
    """Answers "does QNN take this node?" for the nodes of one graph.

    Args:
        graph: the view given to `get_capability`.
        offload_io: leave the quantisation of graph inputs and outputs to the CPU.
    """

    def __init__(self, graph: GraphView, *, offload_io: bool = False) -> None:
        super().__init__(graph)
        self._misfits: dict[tuple[TensorType, Types], str | None] = {}
        self._borders = (
            self._results.union(value.name for value in graph.inputs)
            if offload_io
            else set()
        )
        for fusion in find_fusions(graph):
            if self._takes(fusion):
                self._refusals.update((node.index, None) for node in fusion.nodes)

    def _takes(self, fusion: Fusion) -> bool:
        """Return whether QNN takes what a group becomes, with the values around it.

        A group has one input, so all of it lands in one convex partition. Only a
        quantised group at its border that is not whole could take a node out of it.
        """
        operator = OPERATORS["", fusion.op_type]
        around = (
            self._graph.producer(fusion.root),
            *self._graph.consumers(fusion.result),
        )
        return not any(
            self._refuse_value(fusion.nodes[0], name, operator.types)
            for name in (fusion.root, fusion.result)
        ) and not any(
            node and node.op_type in _QUANTISES and self.refusal(node)
            for node in around
        )

    def _judge(self, node: NodeView) -> str | None:
        operator = OPERATORS.get((node.domain, node.op_type))
        if node.op_type in _CONTROL_FLOW and not node.domain:
            return f"{node.op_type}: QNN has no control flow"
        if self._is_folded(node):
            return None
        if operator is None:
            shown = f"{node.domain}:{node.op_type}" if node.domain else node.op_type
            return f"{shown} is not an operator of QNN's HTP backend"
        reason = (
            self._refuse_values(node, operator)
            or (operator.rule and operator.rule(node, self._graph))
            or None
        )
        if reason is None and not self._serves(node):
            reason = f"{node.op_type}: no node that QNN takes reads it"
        return reason

    def _is_folded(self, node: NodeView) -> bool:
        """Return whether a node has a constant result that only nodes read which QNN
        takes.
        """
        inputs = [name for name in node.inputs if name]
        if not inputs or not all(is_constant(self._graph, name) for name in inputs):
            return False
        readers = [
            reader for name in node.outputs for reader in self._graph.consumers(name)
        ]
        # They have a computed input, so the table judges them: this goes one step deep.
        return (
            not node.domain
            and node.op_type not in _NEVER_FOLDED
            and bool(readers)
            and self._results.isdisjoint(node.outputs)
            and not any(
                self._refuse_value(node, name, CASTABLE)
                for name in (*inputs, *filter(None, node.outputs))
            )
            and all(self.refusal(reader) is None for reader in readers)
        )

    def _refuse_values(self, node: NodeView, operator: Operator) -> str | None:
        """Check values against the table's line, cheapest test first."""
        if any(map(self._is_read, node.outputs[operator.used_outputs :])):
            return (
                f"{node.op_type}: QNN gives only {operator.used_outputs} of its results"
            )
        borders = self._borders and self._borders.intersection(
            (*node.inputs[:1], *node.outputs[:1])
        )
        if borders and node.op_type in _QUANTISES:
            return (
                f"{node.op_type}: left to the CPU because "
                "offload_graph_io_quantization is 1"
            )
        inputs = read_inputs(self._graph, node)
        for position in operator.constant:
            input_name = inputs[position] if position < len(inputs) else ""
            if input_name and not is_constant(self._graph, input_name):
                return f"{node.op_type}: QNN needs input {position} to be a constant"
        results = node.outputs[: operator.used_outputs]
        for names, special in (
            (inputs, operator.inputs),
            (results, operator.outputs),
        ):
            for position, name in enumerate(names):
                allowed = special.get(position, operator.types)
                reason = self._refuse_value(node, name, allowed) if name else None
                if reason and (names is inputs or self._is_read(name)):
                    return reason
        return self._refuse_rank(node, operator)

    def _refuse_value(self, node: NodeView, name: str, allowed: Types) -> str | None:
        kind = self._graph.value(name).type
        # A graph has few types.
        key = kind, allowed
        if key not in self._misfits:
            self._misfits[key] = _refuse_type(kind, allowed)
        misfit = self._misfits[key]
        return misfit and f"{node.op_type}: {misfit}"

    def _refuse_rank(self, node: NodeView, operator: Operator) -> str | None:
        first = next((name for name in node.inputs if name), None)
        shape = self._graph.value(first).shape if first else ()
        if shape is not None and len(shape) not in operator.ranks:
            return f"{node.op_type}: QNN does not take it with rank {len(shape)}"
        return None


def _refuse_type(kind: TensorType, allowed: Types) -> str | None:
    if kind.elem_type is None or kind.shape is None:
        return "the type or rank of a value is not known before a run"
    if kind.elem_type not in allowed:
        name = TensorProto.DataType.Name(kind.elem_type).lower()
        return f"QNN does not take {name} here"
    if not kind.is_static:
        return "a dimension is open, and QNN takes static shapes only"
    if 0 in kind.shape:
        return "a value is empty"
    if len(kind.shape) > MAX_RANK:
        rank = len(kind.shape)
        return f"a value has rank {rank}, and QNN takes at most {MAX_RANK}"
    return None
