"""Nodes with which onnx's own code would end the process or never come back are refused
before it sees them, and right ones are not.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx
from epctx_core.errors import EpctxError, InternalError, InvalidGraph
from epctx_core.plugin import ExecutionProvider, hookimpl

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
LARGE = 1 << 40


def model(node, inputs, *, opset=18, constants=(), before=(), outputs=None):
    """Return a model of one node; inputs as name, element type and shape."""
    imports = {"": opset, "made.up": 1, node.domain: opset}
    if node.domain == "ai.onnx.ml":
        imports |= {"": 21, "ai.onnx.ml": opset}
    graph = helper.make_graph(
        [*before, node],
        "one",
        [helper.make_tensor_value_info(*value) for value in inputs],
        outputs or [onnx.ValueInfoProto(name=name) for name in node.output],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants],
    )
    imports = [helper.make_opsetid(*pair) for pair in imports.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def split(count, outputs):
    names = [f"y{index}" for index in range(outputs)]
    node = helper.make_node("Split", ["x"], names, num_outputs=count)
    return model(node, [("x", FLOAT, [4])])


def einsum(equation, shape=(2, 2), opset=12):
    node = helper.make_node("Einsum", ["x"], ["y"], equation=equation)
    return model(node, [("x", FLOAT, shape)], opset=opset)


def gather_nd(batch_dims, data=(2, 2, 2), indices=(1, 1)):
    node = helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=batch_dims)
    return model(node, [("x", FLOAT, data), ("i", INT64, indices)], opset=13)


def layer_normalization(axis):
    node = helper.make_node("LayerNormalization", ["x", "s"], ["y", "m"], axis=axis)
    return model(node, [("x", FLOAT, [2, 3]), ("s", FLOAT, [3])], opset=17)


def tfidf(counts, pool=(1, 2)):
    node = helper.make_node(
        "TfIdfVectorizer", ["x"], ["y"], mode="TF", min_gram_length=1,
        max_gram_length=1, max_skip_count=0, ngram_counts=counts,
        ngram_indexes=[0, 1], pool_int64s=pool,
    )  # fmt: skip
    return model(node, [("x", INT64, [3])], opset=9)


def scan(count):
    values = [helper.make_tensor_value_info(name, FLOAT, [2]) for name in "ab"]
    body = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["b"])], "body", values[:1], values[1:]
    )
    node = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=count)
    return model(node, [("x", FLOAT, [3, 2])], opset=16)


def expand(length):
    node = helper.make_node("Expand", ["x", "s"], ["y"])
    return model(node, [("x", FLOAT, [2]), ("s", INT64, [length])], opset=8)


def with_an_empty_name(op_type, **attributes):
    node = helper.make_node(op_type, ["x", ""], ["y"], **attributes)
    return model(node, [("x", FLOAT, [2, 2])], opset=13)


REFUSED = {
    "an input of Max without a name": lambda: with_an_empty_name("Max"),
    "an input of Mean without a name": lambda: with_an_empty_name("Mean"),
    "an input of Min without a name": lambda: with_an_empty_name("Min"),
    "an input of Sum without a name": lambda: with_an_empty_name("Sum"),
    "an operand without a name": lambda: with_an_empty_name(
        "Einsum", equation="ij,ij->ij"
    ),
    "more outputs than Split splits into": lambda: split(2, 3),
    "fewer outputs than Split splits into": lambda: split(LARGE, 2),
    "Split into no outputs": lambda: split(0, 2),
    "a dot in an equation": lambda: einsum("i.j"),
    "a dot at the end of a term": lambda: einsum("ij.->ij", opset=28),
    "a dash in an equation": lambda: einsum("i-j"),
    "a tab in an equation": lambda: einsum("i\tj"),
    "two ellipses in a term": lambda: einsum("......", (2, 3)),
    "a negative number of batch dimensions": lambda: gather_nd(-1, indices=(2, 0)),
    "a very negative number of batch dimensions": lambda: gather_nd(-(1 << 31)),
    "an axis beyond 32 bits": lambda: layer_normalization(1 << 31),
    "an axis of 63 bits": lambda: layer_normalization((1 << 63) - 1),
    "n-grams beyond the pool": lambda: tfidf([0, LARGE]),
    "n-grams before the pool": lambda: tfidf([-LARGE]),
    "more inputs scanned than there are": lambda: scan(LARGE),
    "a shape of a million dimensions": lambda: expand(1_000_000),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_onnx_does_not_survive_is_refused(tmp_path, case):
    path = tmp_path / "m.onnx"
    onnx.save(REFUSED[case](), path)

    for engine in ("onnxruntime", "onnx.reference"):
        options = epctx.SessionOptions()
        options.add_session_config_entry("session.engine", engine)
        with pytest.raises(InvalidGraph):
            epctx.InferenceSession(path, options)
        with pytest.raises(InvalidGraph):
            epctx.ModelCompiler(options, path).compile_to_bytes()
        codes = {finding.code for finding in epctx.verify_model(path, options).findings}
        assert "model-invalid" in codes
    info = epctx.inspect_model(path)
    assert info.other_nodes - info.inside_nodes == 1


def test_a_refusal_names_the_node_and_what_the_specification_says():
    made = split(2, 3)
    made.graph.node[0].name = "thirds"

    with pytest.raises(InvalidGraph, match="Number of outputs to split") as caught:
        epctx.InferenceSession(made.SerializeToString())

    assert caught.value.node == "thirds"
    assert "'thirds' is not the Split" in caught.value.message


def test_a_node_in_a_subgraph_is_looked_at_too():
    inner = helper.make_graph(
        [helper.make_node("Einsum", ["x"], ["z"], equation="i.j")],
        "branch",
        [],
        [helper.make_tensor_value_info("z", FLOAT, None)],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    made = model(node, [("c", TensorProto.BOOL, []), ("x", FLOAT, [2, 2])], opset=13)

    with pytest.raises(InvalidGraph, match="comma-separated"):
        epctx.InferenceSession(made.SerializeToString())


RIGHT = {
    "Split into its outputs": lambda: split(2, 2),
    "letters, spaces and an ellipsis": lambda: einsum("... i j -> ... j i"),
    "batch dimensions": lambda: gather_nd(1, indices=(2, 1)),
    "a negative axis": lambda: layer_normalization(-1),
    "n-grams of a pool": lambda: tfidf([0]),
    "an input that is scanned": lambda: scan(1),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_the_specification_allows_is_loaded(case):
    data = RIGHT[case]().SerializeToString()

    epctx.InferenceSession(data).close()
    assert epctx.verify_model(data).ok


@pytest.mark.parametrize(
    "step", [1 << 32, -(1 << 32), 1 << 31, (1 << 63) - 1, -(1 << 63)]
)
def test_a_step_beyond_32_bits_is_a_step(step):
    node = helper.make_node("Slice", ["x", "b", "e", "a", "s"], ["y"])
    begin, end = (0, 3) if step > 0 else (2, -4)
    constants = [("b", [begin]), ("e", [end]), ("a", [0]), ("s", [step])]
    made = model(node, [("x", INT64, [3])], opset=13, constants=constants)

    with epctx.InferenceSession(made.SerializeToString()) as session:
        (result,) = session.run(None, {"x": np.array([5, 6, 7])})

    assert result.tolist() == [5 if step > 0 else 7]


TREE = {
    name: numpy_helper.from_array(np.array([1], kind))
    for name, kind in {
        "nodes_splits": "float32", "nodes_modes": "uint8", "leaf_weights": "float32",
    }.items()
} | {
    key: [0]
    for key in (
        "tree_roots", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids", "leaf_targetids",
    )
} | {key: [1] for key in ("nodes_trueleafs", "nodes_falseleafs")}  # fmt: skip
UNTYPED = {
    "EyeLike": ("", 22, {"dtype": FLOAT}),
    "RegexFullMatch": ("", 20, {"pattern": "a"}),
    "LabelEncoder": ("ai.onnx.ml", 4, {"keys_int64s": [1], "values_int64s": [2]}),
    "DictVectorizer": ("ai.onnx.ml", 1, {"int64_vocabulary": [1]}),
    "TreeEnsemble": ("ai.onnx.ml", 5, TREE),
}


@pytest.mark.parametrize("operator", UNTYPED)
def test_a_node_behind_an_operator_that_onnx_lacks_ends_nothing(operator):
    domain, opset, attributes = UNTYPED[operator]
    before = helper.make_node("Made", [], ["x"], domain="made.up")
    node = helper.make_node(operator, ["x"], ["y"], domain=domain, **attributes)
    data = model(node, [], opset=opset, before=[before]).SerializeToString()

    with pytest.raises(EpctxError, match=r"made\.up") as caught:
        epctx.InferenceSession(data)

    assert not isinstance(caught.value, InternalError)


def test_what_is_typed_by_an_operator_before_it_is_inferred():
    encode = {"keys_int64s": [1], "values_strings": ["one"], "default_string": "many"}
    chain = [
        helper.make_node("Cast", ["x"], ["whole"], to=INT64),
        helper.make_node("LabelEncoder", ["whole"], ["name"], domain="ai.onnx.ml", **encode),
    ]  # fmt: skip
    last = helper.make_node(
        "LabelEncoder", ["name"], ["y"], domain="ai.onnx.ml",
        keys_strings=["one", "many"], values_int64s=[10, 20],
    )  # fmt: skip
    made = model(last, [("x", FLOAT, [2])], opset=4, before=chain)

    with epctx.InferenceSession(made.SerializeToString()) as session:
        (output,) = session.get_outputs()
        (result,) = session.run(None, {"x": np.array([1, 5], np.float32)})

    assert (output.type, output.shape) == ("tensor(int64)", [2])
    assert result.tolist() == [10, 20]


# -- what hides behind other nodes
# -------------------------------------------------------------------------------------


class KeepsFunctions(ExecutionProvider):
    """An EP that has calls of a function left in a model."""

    name = "KeepsExecutionProvider"
    vendor = "tests"
    api_version = 1
    keeps_functions = (("mine", "F"),)

    @hookimpl
    def get_capability(self):
        return []

    @hookimpl
    def compile(self):
        return []


def outputs_with_kept(data):
    registry = epctx.Registry(entry_points=False)
    registry.register(KeepsFunctions)
    providers = [KeepsFunctions.name]
    with epctx.InferenceSession(data, providers=providers, registry=registry) as loaded:
        return [output.name for output in loaded.get_outputs()]


def declared(name, elem_type, shape=None):
    return helper.make_tensor_value_info(name, elem_type, shape)


GELU = helper.make_node("Gelu", ["x"], ["t"], domain="com.microsoft")
"""An operator that onnxruntime has and onnx has not."""
EYE = helper.make_node("EyeLike", ["t"], ["y"], dtype=FLOAT)
CONTRIB = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]


def graph_model(nodes, *, functions=(), constants=(), opsets=CONTRIB):
    graph = helper.make_graph(
        nodes,
        "graph",
        [declared("x", FLOAT, [2, 2])],
        [declared("y", FLOAT)],
        [numpy_helper.from_array(np.array(value), name) for name, value in constants],
    )
    return helper.make_model(
        graph, opset_imports=opsets, functions=functions, ir_version=10
    ).SerializeToString()


def test_a_value_of_unknown_type_runs_on_the_engine_that_knows_it():
    with epctx.InferenceSession(graph_model([GELU, EYE])) as session:
        (result,) = session.run(None, {"x": np.ones((2, 2), np.float32)})

    assert result.tolist() == np.eye(2).tolist()


def test_a_typed_value_of_another_branch_says_nothing_of_one_of_its_name():
    typed = [
        helper.make_node("Identity", ["x"], ["t"]),
        helper.make_node("Identity", ["t"], ["a"]),
    ]
    untyped = [GELU, helper.make_node("EyeLike", ["t"], ["b"], dtype=FLOAT)]
    branches = {
        "then_branch": helper.make_graph(typed, "then", [], [declared("a", FLOAT)]),
        "else_branch": helper.make_graph(untyped, "else", [], [declared("b", FLOAT)]),
    }
    nodes = [helper.make_node("If", ["c"], ["y"], **branches)]

    data = graph_model(nodes, constants=[("c", True)])
    with epctx.InferenceSession(data) as session:
        (result,) = session.run(None, {"x": np.ones((2, 2), np.float32)})

    assert result.tolist() == np.ones((2, 2)).tolist()


def test_a_function_that_is_called_with_a_value_of_unknown_type_ends_nothing():
    body = helper.make_node("EyeLike", ["x"], ["y"], dtype=FLOAT)
    opsets = [*CONTRIB, helper.make_opsetid("mine", 1)]
    function = helper.make_function("mine", "F", ["x"], ["y"], [body], opsets[:1])
    call = helper.make_node("F", ["t"], ["y"], domain="mine")

    data = graph_model([GELU, call], functions=[function], opsets=opsets)
    assert outputs_with_kept(data) == ["y"]


def test_what_a_functions_caller_gives_is_not_missed_in_the_function():
    node = tfidf([0, 2]).graph.node[0]
    kept = [a for a in node.attribute if a.name != "pool_int64s"]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.add(
        name="pool_int64s", type=onnx.AttributeProto.INTS, ref_attr_name="pool"
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    function = helper.make_function(
        "mine", "F", ["x"], ["y"], [node], opsets[:1], attributes=["pool"]
    )
    cast = helper.make_node("Cast", ["x"], ["whole"], to=INT64)
    call = helper.make_node("F", ["whole"], ["y"], domain="mine", pool=[1, 2])

    data = graph_model([cast, call], functions=[function], opsets=opsets)
    assert outputs_with_kept(data) == ["y"]


QUANTIZERS = [
    helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], domain="com.microsoft"),
    helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], domain="com.microsoft"),
]  # fmt: skip
SCALE = [("scale", np.float32(0.1)), ("zero", np.uint8(0))]


def slices(*steps, step="step"):
    """Return nodes whose result has a shape that a slice with steps computes."""
    return [
        *steps,
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "begin", "end", "axis", step], ["part"]),
        helper.make_node("ConstantOfShape", ["part"], ["y"]),
    ]


BOUNDS = [("begin", [0]), ("end", [2]), ("axis", [0])]
LONG = {
    "a Constant of numbers": [helper.make_node("Constant", [], ["step"], value_ints=[LARGE])],
    "a product": [helper.make_node("Mul", ["half", "half"], ["step"])],
    "behind quantisers": [helper.make_node("Constant", [], ["step"], value_ints=[LARGE]), *QUANTIZERS],
}  # fmt: skip


@pytest.mark.parametrize("case", LONG)
def test_a_step_that_is_computed_or_constant_in_another_form_is_a_step(case):
    data = graph_model(
        slices(*LONG[case]), constants=[*BOUNDS, *SCALE, ("half", [1 << 20])]
    )

    with epctx.InferenceSession(data) as session:
        (result,) = session.run(None, {"x": np.ones((2, 2), np.float32)})

    assert result.shape == (2,)


def test_nodes_behind_each_other_are_inferred_at_once(monkeypatch):
    infer, rounds = onnx.shape_inference.infer_shapes, []

    def counted(*arguments, **more):
        rounds.append(arguments)
        return infer(*arguments, **more)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", counted)
    nodes = [
        helper.make_node("EyeLike", [f"v{i}"], [f"v{i + 1}"], dtype=FLOAT)
        for i in range(300)
    ]
    nodes[0].input[0], nodes[-1].output[0] = "x", "y"
    options = epctx.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")

    epctx.InferenceSession(graph_model(nodes), options).close()

    assert 0 < len(rounds) < 5


@pytest.mark.parametrize("case", REFUSED)
def test_a_context_model_is_refused_for_the_same_nodes(case):
    """Its types are declared, so that nothing is inferred at first."""
    made = REFUSED[case]()
    made.graph.node.add(
        op_type="EPContext",
        domain="com.microsoft",
        name="context",
        input=[made.graph.input[0].name],
        output=["compiled"],
    )
    made.graph.value_info.append(declared("compiled", FLOAT, [1]))
    made.opset_import.add(domain="com.microsoft", version=1)

    report = epctx.verify_model(made.SerializeToString())

    assert "model-invalid" in {finding.code for finding in report.findings}
