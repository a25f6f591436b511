"""Models of every kind, each with inputs: what surrounds the nodes that an EP takes is
special.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FLOAT = TensorProto.FLOAT
NEWEST_OPSET = onnx.defs.onnx_opset_version()
OPSET = 21
IR_VERSION = 10


class Example(NamedTuple):
    """A model, what it is fed, and how many of its nodes `Taker` takes."""

    model: onnx.ModelProto
    feeds: dict[str, Any]
    taken: int


def node(
    op_type: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    domain: str = "",
    **attributes: Any,
) -> onnx.NodeProto:
    """Return a node without a name."""
    return helper.make_node(op_type, inputs, outputs, domain=domain, **attributes)


def value(
    name: str, kind: int = FLOAT, shape: Sequence[int | str | None] | None = (2, 3)
) -> onnx.ValueInfoProto:
    """Return a tensor value's declaration."""
    return helper.make_tensor_value_info(name, kind, shape)


def made(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[TensorProto] = (),
    *,
    opset: int = OPSET,
    ir_version: int = IR_VERSION,
    domains: Sequence[tuple[str, int]] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """Return a model of these parts."""
    graph = helper.make_graph(nodes, "special", inputs, outputs, weights)
    return helper.make_model(
        graph,
        opset_imports=[
            helper.make_opsetid("", opset),
            *(helper.make_opsetid(*d) for d in domains),
        ],
        ir_version=ir_version,
        functions=functions,
    )


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Return an array of floats."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def weight(name: str, *shape: int, seed: int = 1) -> TensorProto:
    """Return a float weight."""
    return numpy_helper.from_array(numbers(*shape, seed=seed), name)


X = {"x": numbers(2, 3)}


def optional_inputs_and_outputs() -> Example:
    """Return Clip without its minimum, and LSTM that gives its last of three outputs
    only.
    """
    return Example(
        made(
            [
                node("Clip", ["x", "", "top"], ["clipped"]),
                node("Relu", ["clipped"], ["r"]),
                node(
                    "LSTM",
                    ["r", "w", "u", "", "", "h"],
                    ["", "", "cell"],
                    hidden_size=2,
                ),
                node("Abs", ["cell"], ["y"]),
            ],
            [value("x", shape=(4, 2, 3))],
            [value("y", shape=(1, 2, 2))],
            [
                numpy_helper.from_array(np.float32(0.5), "top"),
                weight("w", 1, 8, 3),
                weight("u", 1, 8, 2),
                weight("h", 1, 2, 2),
            ],
        ),
        {"x": numbers(4, 2, 3)},
        2,
    )


def several_operator_domains() -> Example:
    """Return operators of the classical machine learning domain and of onnxruntime's
    between others.
    """
    return Example(
        made(
            [
                node("Relu", ["x"], ["r"]),
                node(
                    "Scaler",
                    ["r"],
                    ["s"],
                    domain="ai.onnx.ml",
                    offset=[0.1],
                    scale=[2.0],
                ),
                node("Abs", ["s"], ["a"]),
                node("Gelu", ["a"], ["g"], domain="com.microsoft"),
                node("Neg", ["g"], ["n"]),
                node(
                    "FusedMatMul", ["n", "w"], ["m"], domain="com.microsoft", alpha=0.5
                ),
                node("Exp", ["m"], ["e"]),
                node("Relu", ["e"], ["y"]),
            ],
            [value("x", shape=("n", 3))],
            [value("y", shape=("n", 2))],
            [weight("w", 3, 2)],
            domains=[("ai.onnx.ml", 3), ("com.microsoft", 1)],
        ),
        X,
        5,
    )


def strings() -> Example:
    """Return a model in which text comes in, is compared, and goes out."""
    return Example(
        made(
            [
                node("StringConcat", ["words", "tail"], ["small"]),
                node("Equal", ["small", "expected"], ["same"]),
                node("Cast", ["same"], ["f"], to=FLOAT),
                node("Add", ["f", "x"], ["s"]),
                node("Relu", ["s"], ["y"]),
                node("Identity", ["expected"], ["echo"]),
            ],
            [value("words", TensorProto.STRING, (3,)), value("x", shape=(3,))],
            [
                value("y", shape=(3,)),
                value("echo", TensorProto.STRING, (1,)),
                value("small", TensorProto.STRING, (3,)),
            ],
            [
                helper.make_tensor("expected", TensorProto.STRING, [1], [b"two!"]),
                helper.make_tensor("tail", TensorProto.STRING, [1], [b"!"]),
            ],
        ),
        {"words": np.array(["one", "two", "drei"], dtype=object), "x": numbers(3)},
        2,
    )


def sparse_weights() -> Example:
    """Return a sparse initializer read by a CPU node, beside nodes that an EP takes."""
    model = made(
        [
            node("Relu", ["x"], ["r"]),
            node("MatMul", ["r", "sparse"], ["m"]),
            node("Neg", ["m"], ["y"]),
        ],
        [value("x", shape=(2, 4))],
        [value("y", shape=(2, 3))],
    )
    values = helper.make_tensor("sparse", FLOAT, [3], [1.5, -2.0, 0.25])
    places = helper.make_tensor("places", TensorProto.INT64, [3], [0, 5, 10])
    model.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, places, [4, 3])
    )
    return Example(model, {"x": numbers(2, 4)}, 2)


def sparse_weights_taken() -> Example:
    """Return a sparse initializer that a node of the EP reads."""
    example = sparse_weights()
    example.model.graph.node[1].op_type = "Add"
    del example.model.graph.sparse_initializer[0].dims[:]
    example.model.graph.sparse_initializer[0].dims.extend([2, 4])
    del example.model.graph.sparse_initializer[0].indices.int64_data[:]
    example.model.graph.sparse_initializer[0].indices.int64_data.extend([0, 3, 6])
    del example.model.graph.output[:]
    example.model.graph.output.append(value("y", shape=(2, 4)))
    return Example(example.model, example.feeds, 3)


def sequences() -> Example:
    """Return tensors that are put into a sequence, taken out, and a sequence that comes
    in and goes out.
    """
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    return Example(
        made(
            [
                node("Relu", ["x"], ["r"]),
                node("SequenceInsert", ["given", "r"], ["longer"]),
                node("SequenceAt", ["longer", "place"], ["one"]),
                node("Neg", ["one"], ["y"]),
                node("SplitToSequence", ["x"], ["pieces"], axis=1),
                node("ConcatFromSequence", ["pieces"], ["whole"], axis=0),
                node("Abs", ["whole"], ["z"]),
            ],
            [value("x"), helper.make_value_info("given", kind)],
            [
                value("y", shape=None),
                helper.make_value_info("longer", kind),
                value("z", shape=None),
            ],
            [numpy_helper.from_array(np.int64(0), "place")],
        ),
        {"x": numbers(2, 3), "given": [numbers(4, seed=3), numbers(2, 2, seed=4)]},
        3,
    )


def optionals() -> Example:
    """Return an optional that comes in, is asked, opened and passed on."""
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2, 3]))
    return Example(
        made(
            [
                node("OptionalHasElement", ["maybe"], ["there"]),
                node("OptionalGetElement", ["maybe"], ["got"]),
                node("Relu", ["got"], ["r"]),
                node("Add", ["r", "x"], ["y"]),
            ],
            [helper.make_value_info("maybe", kind), value("x")],
            [value("there", TensorProto.BOOL, ()), value("y")],
        ),
        {"maybe": numbers(2, 3, seed=5), "x": numbers(2, 3)},
        2,
    )


def optionals_without_a_value() -> Example:
    """Return an optional that holds nothing, is asked, and goes out as it came and
    through a node.
    """
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2, 3]))
    return Example(
        made(
            [
                node("OptionalHasElement", ["maybe"], ["there"]),
                node("Identity", ["maybe"], ["same"]),
                node("Relu", ["x"], ["y"]),
            ],
            [helper.make_value_info("maybe", kind), value("x")],
            [
                value("there", TensorProto.BOOL, ()),
                helper.make_value_info("same", kind),
                helper.make_value_info("maybe", kind),
                value("y"),
            ],
        ),
        {"maybe": None, "x": numbers(2, 3)},
        1,
    )


def maps() -> Example:
    """Return a sequence of maps that goes out, and a map that comes in."""
    kind = helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(FLOAT, [])
    )
    given = onnx.ValueInfoProto(name="given")
    given.type.map_type.key_type = TensorProto.STRING
    given.type.map_type.value_type.tensor_type.elem_type = FLOAT
    return Example(
        made(
            [
                node("Relu", ["x"], ["r"]),
                node(
                    "ZipMap",
                    ["r"],
                    ["z"],
                    domain="ai.onnx.ml",
                    classlabels_strings=["a", "b", "c"],
                ),
                node(
                    "DictVectorizer",
                    ["given"],
                    ["v"],
                    domain="ai.onnx.ml",
                    string_vocabulary=["p", "q"],
                ),
                node("Neg", ["v"], ["n"]),
            ],
            [value("x"), given],
            [
                helper.make_value_info("z", helper.make_sequence_type_proto(kind)),
                value("n", shape=None),
            ],
            domains=[("ai.onnx.ml", 3)],
        ),
        {"x": numbers(2, 3), "given": {"q": 2.5}},
        2,
    )


def empty_and_scalar_tensors() -> Example:
    """Return tensors without elements and without dimensions, as inputs, weights, inner
    values, outputs.
    """
    return Example(
        made(
            [
                node("Add", ["x", "scalar"], ["s"]),
                node("Concat", ["s", "nothing"], ["c"], axis=0),
                node("Relu", ["c"], ["y"]),
                node("Neg", ["e"], ["n"]),
                node("Slice", ["n", "from", "to"], ["none"]),
                node("Abs", ["none"], ["z"]),
                node("ReduceSum", ["y"], ["total"], keepdims=0),
                node("Exp", ["total"], ["t"]),
            ],
            [value("x"), value("e", shape=(0, 3))],
            [value("y", shape=(2, 3)), value("z", shape=(0, 3)), value("t", shape=())],
            [
                numpy_helper.from_array(np.float32(2), "scalar"),
                numpy_helper.from_array(np.zeros((0, 3), np.float32), "nothing"),
                numpy_helper.from_array(np.array([0]), "from"),
                numpy_helper.from_array(np.array([0]), "to"),
            ],
        ),
        {"x": numbers(2, 3), "e": np.zeros((0, 3), np.float32)},
        5,
    )


def outputs_that_no_node_makes() -> Example:
    """Return a graph whose outputs are an input, an initializer, and a value that is
    read on.
    """
    return Example(
        made(
            [
                node("Relu", ["x"], ["r"]),
                node("Sigmoid", ["r"], ["s"]),
                node("Neg", ["s"], ["y"]),
            ],
            [value("x")],
            [
                value("x"),
                value("w", shape=(3,)),
                value("r"),
                value("y"),
                value("label", TensorProto.STRING, (2,)),
            ],
            [
                weight("w", 3),
                helper.make_tensor("label", TensorProto.STRING, [2], [b"a", b"b"]),
            ],
        ),
        X,
        2,
    )


def no_nodes() -> Example:
    """Return a graph that only passes on."""
    return Example(made([], [value("x")], [value("x")]), X, 0)


def nodes_without_names_and_with_one_name() -> Example:
    """Return nodes of which some have no name and others the same."""
    nodes = [
        node(op, [i], [o])
        for op, i, o in [
            ("Relu", "x", "a"),
            ("Sigmoid", "a", "b"),
            ("Neg", "b", "c"),
            ("Sigmoid", "c", "d"),
            ("Abs", "d", "e"),
            ("Sigmoid", "e", "y"),
        ]
    ]
    for one in nodes[2:]:
        one.name = "same"
    return Example(made(nodes, [value("x")], [value("y")]), X, 3)


def defaults_that_may_be_overridden() -> Example:
    """Return an input with a default that an EP's node reads."""
    return Example(
        made(
            [node("Add", ["x", "w"], ["a"]), node("Sigmoid", ["a"], ["y"])],
            [value("x"), value("w", shape=(3,))],
            [value("y")],
            [weight("w", 3)],
        ),
        X,
        1,
    )


def constants_as_nodes() -> Example:
    """Return Constant nodes of each kind of attribute."""
    return Example(
        made(
            [
                node("Constant", [], ["f"], value_float=2.0),
                node("Constant", [], ["fs"], value_floats=[1.0, 2.0, 3.0]),
                node("Constant", [], ["t"], value=weight("inside", 3)),
                node("Constant", [], ["text"], value_strings=["a", "b"]),
                node("Add", ["x", "f"], ["a"]),
                node("Mul", ["a", "fs"], ["b"]),
                node("Add", ["b", "t"], ["y"]),
            ],
            [value("x")],
            [value("y"), value("text", TensorProto.STRING, (2,))],
        ),
        X,
        3,
    )


def sequence_of_functions() -> Example:
    """Return functions that call each other, one of them twice and with an
    attribute.
    """
    scaled = helper.make_function(
        "mine",
        "Scaled",
        ["a"],
        ["b"],
        [
            onnx.parser.parse_node("f = Constant <value_float: float = @by> ()"),
            node("Mul", ["a", "f"], ["m"]),
            node("Relu", ["m"], ["b"]),
        ],
        [helper.make_opsetid("", OPSET)],
        ["by"],
    )
    twice = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["b"],
        [
            node("Scaled", ["a"], ["m"], domain="mine", by=3.0),
            node("Scaled", ["m"], ["b"], domain="mine", by=0.5),
        ],
        [helper.make_opsetid("", OPSET), helper.make_opsetid("mine", 1)],
    )
    return Example(
        made(
            [
                node("Twice", ["x"], ["t"], domain="mine"),
                node("Sigmoid", ["t"], ["m"]),
                node("Scaled", ["m"], ["y"], domain="mine", by=2.0),
            ],
            [value("x")],
            [value("y")],
            domains=[("mine", 1)],
            functions=[scaled, twice],
        ),
        X,
        6,
    )


KINDS: dict[str, Callable[[], Example]] = {
    made.__name__: made
    for made in (
        optional_inputs_and_outputs,
        several_operator_domains,
        strings,
        sparse_weights,
        sparse_weights_taken,
        sequences,
        optionals,
        optionals_without_a_value,
        maps,
        empty_and_scalar_tensors,
        outputs_that_no_node_makes,
        no_nodes,
        nodes_without_names_and_with_one_name,
        defaults_that_may_be_overridden,
        constants_as_nodes,
        sequence_of_functions,
    )
}

ELEMENT_TYPES = sorted(
    kind
    for name, kind in TensorProto.DataType.items()
    if name not in {"UNDEFINED", "STRING"} and not name.startswith("FLOAT6")
)
"""All that tensors of numbers can have, but for those that no operator of ONNX
takes.
"""
COMPLEX = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)
ONNXRUNTIME_TYPES = [
    kind
    for kind in ELEMENT_TYPES
    if kind not in COMPLEX
    and not TensorProto.DataType.Name(kind).startswith(
        ("FLOAT8", "FLOAT4", "UINT2", "INT2")
    )
    and TensorProto.DataType.Name(kind) not in {"UINT4", "INT4"}
]
"""Those for which onnxruntime has all kernels of `of_element_type`."""


def of_element_type(kind: int) -> Example:
    """Return a model through which tensors of one type run: as input, weight, inner
    value and output.
    """
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(
        helper.tensor_dtype_to_np_dtype(kind)
    )
    to_float = [node("Cast", ["again"], ["f"], to=FLOAT)]
    if kind in COMPLEX:
        to_float = [
            node("Shape", ["again"], ["dims"]),
            node("Cast", ["dims"], ["f"], to=FLOAT),
        ]
    newest = TensorProto.DataType.Name(kind).startswith("FLOAT6")
    return Example(
        made(
            [
                node("Relu", ["x"], ["r"]),
                node("Identity", ["t"], ["same"]),
                node("Reshape", ["w", "flat"], ["again"]),
                *to_float,
                node("Neg", ["f"], ["n"]),
                node("Exp", ["n"], ["y"]),
                node("Sigmoid", ["r"], ["z"]),
            ],
            [value("x"), value("t", kind)],
            [
                value("z"),
                value("y", shape=(2,) if kind in COMPLEX else (3, 2)),
                value("same", kind),
                value("again", kind, (3, 2)),
            ],
            [
                numpy_helper.from_array(array, "w"),
                numpy_helper.from_array(np.array([3, 2]), "flat"),
            ],
            opset=NEWEST_OPSET if newest else min(NEWEST_OPSET, 25),
            ir_version=onnx.IR_VERSION if newest else min(onnx.IR_VERSION, 12),
        ),
        {"x": numbers(2, 3), "t": array},
        2 if kind in COMPLEX else 3,  # what follows a Shape is folded
    )
