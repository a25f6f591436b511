"""What a model computes from constants and static shapes is folded before EPs see it, in
compiles and sessions alike.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from support.compiling import compiler, proto_of
from support.count_instructions import counting_instructions
from support.engine_eps import EngineProvider
from support.onnxruntime_results import onnxruntime_result
from support.validating_eps import options_with, registry_with, session

import epctx_core as epctx
from epctx_core.plugin import ComputeCapability, Refusal, hookimpl

LEVEL = epctx.GraphOptimizationLevel


class Onlooker(EngineProvider):
    """EP that takes Relu alone and remembers the operators of each graph."""

    name = "OnlookerExecutionProvider"
    operators = frozenset({"Relu"})
    seen: ClassVar[list[list[str]]] = []

    @hookimpl
    def get_capability(self, graph):
        self.seen.append([node.op_type for node in graph.nodes])
        taken = [node for node in graph.nodes if node.op_type == "Relu"]
        return [
            *(ComputeCapability([node]) for node in taken),
            Refusal("not Relu", [n for n in graph.nodes if n not in taken]),
        ]


@pytest.fixture(autouse=True)
def seen():
    Onlooker.seen.clear()
    return Onlooker.seen


def parsed(text, **initializers):
    """Return a model of a graph as text, with initializers by name."""
    imports = '"": 17, "com.microsoft": 1'
    model = onnx.parser.parse_model(
        f"<ir_version: 8, opset_import: [{imports}]> {text}"
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in initializers.items()
    )
    return model.SerializeToString()


def compiled(model, **arguments):
    made = compiler(
        model,
        Onlooker,
        embed_compiled_data_into_model=True,
        **arguments,
    )
    return made.compile_to_bytes()


RESHAPED = parsed(
    "g (float[2,3,4] x) => (float[2,12] y) {"
    "shape = Shape (x)  first = Gather <axis = 0> (shape, zero)"
    "dims = Concat <axis = 0> (first, rest)"
    "flat = Reshape (x, dims)  y = Relu (flat) }",
    zero=np.array([0]),
    rest=np.array([-1]),
)


def test_arithmetic_on_static_shapes_becomes_an_initializer(seen):
    made = proto_of(compiled(RESHAPED))

    assert seen == [["Reshape", "Relu"]]
    (dims,) = made.graph.initializer
    assert (dims.name, numpy_helper.to_array(dims).tolist()) == ("dims", [2, -1])


def test_a_session_folds_like_a_compile(seen, tmp_path):
    (tmp_path / "m.onnx").write_bytes(RESHAPED)
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)

    with session(tmp_path / "m.onnx", Onlooker) as opened:
        (result,) = opened.run(None, {"x": x})

    assert seen == [["Reshape", "Relu"]]
    assert np.array_equal(result, np.maximum(x, 0).reshape(2, 12))


def test_without_optimisation_eps_see_the_model_as_it_is(seen):
    options = options_with(Onlooker)
    options.graph_optimization_level = LEVEL.ORT_DISABLE_ALL

    compiled(RESHAPED, graph_optimization_level=LEVEL.ORT_DISABLE_ALL)
    epctx.InferenceSession(RESHAPED, options, registry=registry_with(Onlooker)).close()

    assert seen == [["Shape", "Gather", "Concat", "Reshape", "Relu"]] * 2


def test_the_report_counts_the_folded_nodes(tmp_path):
    made = compiler(RESHAPED, Onlooker).compile_to_file(tmp_path / "m_ctx.onnx")

    assert made.folded_nodes == 3
    assert sum(made.assignments.values()) == 2


def test_values_that_are_folded_prove_further_shapes(seen):
    compiled(
        parsed(
            "g (float[2,3] x) => (float y) {"
            "s = Shape (x)  n = Gather <axis = 0> (s, one)"
            "r = Range (zero, n, one)  d = Unsqueeze (n, axes)"
            "z = ConstantOfShape (d)  size = Size (z)"
            "o = Add (size, n)  f = Cast <to = 1> (o)  y = Mul (x, f) }",
            zero=np.int64(0),
            one=np.int64(1),
            axes=np.array([0]),
        )
    )

    assert seen == [["Mul"]]


STAYS = {
    "an open dimension": (
        "g (float[N] x) => (float y) {"
        "s = Shape (x)  f = Cast <to = 1> (s)  y = Mul (x, f) }"
    ),
    "a quantised group": (
        "g (float[2] x) => (float y) {"
        "q = QuantizeLinear (small, scale, zero)"
        "d = DequantizeLinear (q, scale, zero)  y = Mul (x, d) }"
    ),
    "random numbers": (
        "g (float[2] x) => (float y) { r = RandomNormalLike (small)  y = Mul (x, r) }"
    ),
    "a large result": (
        "g (float[2] x) => (float y) {"
        "c = ConstantOfShape (long)  d = ReduceSum <keepdims = 0> (c)"
        "y = Mul (x, d) }"
    ),
    "a weight that is only rearranged": (
        "g (float[32] x) => (float y) { t = Transpose (large)  y = MatMul (x, t) }"
    ),
    "a computation that fails": (
        "g (float[2] x) => (float y) {"
        "v = Gather <axis = 0> (small, seven)  y = Mul (x, v) }"
    ),
    "text": (
        "g (float[2] x) => (bool y) { e = Equal (words, words)  y = Identity (e) }"
    ),
    "what is an output": "g (float[2] x) => (int64[1] y) { y = Shape (x) }",
}
CONSTANTS = {
    "small": np.ones(2, np.float32),
    "scale": np.float32(0.5),
    "zero": np.uint8(0),
    "long": np.array([1000, 1000]),
    "large": np.ones((32, 32), np.float32),
    "seven": np.int64(7),
    "words": np.array(["a"], object),
}


@pytest.mark.parametrize("graph", STAYS.values(), ids=STAYS)
def test_what_stays(graph, seen):
    names = [name for name in CONSTANTS if name in graph]
    model = parsed(graph, **{name: CONSTANTS[name] for name in names})
    operators = [node.op_type for node in onnx.load_from_string(model).graph.node]

    compiled(model)

    assert seen == [operators]


def test_a_default_that_the_caller_may_replace_is_no_constant(seen):
    compiled(
        parsed(
            "g (float[2] x, float[2] w = {1, 2}) => (float[2] y) {"
            "n = Neg (w)  y = Add (x, n) }"
        )
    )

    assert seen == [["Neg", "Add"]]


def test_a_small_part_of_a_large_weight_is_folded(seen):
    compiled(
        parsed(
            "g (float[8] x) => (float y) {"
            "part = Slice (w, start, end)  y = Add (x, part) }",
            w=np.arange(4096, dtype=np.float32).reshape(512, 8),
            start=np.array([0]),
            end=np.array([4]),
        )
    )

    assert seen == [["Add"]]


class Shared(Onlooker):
    """EP that remembers origin and digest of the weight `w`, by which weightless mode
    and share groups find it.
    """

    name = "SharedExecutionProvider"
    weights: ClassVar[list[tuple[object, str]]] = []

    @hookimpl
    def get_capability(self, graph):
        weight = graph.initializer("w")
        self.weights.append((weight.extent, weight.digest))
        return super().get_capability(graph)


def test_a_weight_keeps_its_extent_in_a_file_and_its_digest_beside_folded_parts(
    tmp_path, seen
):
    model = onnx.load_from_string(
        parsed(
            "g (float[2,8] x) => (float[2,512] y) {"
            "part = Slice (w, start, end)  moved = Transpose (w)"
            "a = Add (x, part)  r = Relu (a)  y = MatMul (r, moved) }",
            w=np.arange(4096, dtype=np.float32).reshape(512, 8),
            start=np.array([0]),
            end=np.array([1]),
        )
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data")
    Shared.weights.clear()

    for level in (LEVEL.ORT_DISABLE_ALL, None):
        compiler(
            str(path),
            Shared,
            embed_compiled_data_into_model=True,
            graph_optimization_level=level,
        ).compile_to_bytes()

    assert seen[1] == ["Transpose", "Add", "Relu", "MatMul"]
    before, after = Shared.weights
    assert before[0] is not None
    assert after == before


def test_folding_costs_no_more_for_each_node_of_a_larger_model():
    counts = []
    for nodes in (100, 200):
        sums = " ".join(
            f"s{i} = Shape (x)  f{i} = Cast <to = 1> (s{i})"
            f"  y{i + 1} = Mul (y{i}, f{i})"
            for i in range(nodes)
        )
        model = parsed(
            "g (float[1] x) => (float[1] y) { y0 = Relu (x) "
            f"{sums} y = Relu (y{nodes}) }}"
        )
        options = options_with(Onlooker)
        with counting_instructions() as count:
            explained = epctx.explain_model(
                model, options, registry=registry_with(Onlooker)
            )
        assert explained.placement.folded_nodes == 2 * nodes
        counts += count

    assert counts[1] < 3 * counts[0]


def test_constants_and_nodes_that_only_folded_ones_read_are_gone(seen):
    made = proto_of(
        compiled(
            parsed(
                "g (float[2,3] x) => (float y) {"
                "axis = Constant <value = int64 {1}> ()"
                "t = Transpose (x)  s = Shape (t)"
                "n = Gather <axis = 0> (s, axis)  f = Cast <to = 1> (n)"
                "y = Mul (x, f) }",
            )
        )
    )

    assert seen == [["Mul"]]
    assert [tensor.name for tensor in made.graph.initializer] == ["f"]


def test_bodies_of_control_flow_are_folded_too(seen):
    compiled(
        parsed(
            "g (float[2] x, bool c) => (float[2] y) {"
            "s = Shape (x)"
            "y = If (c) <"
            "  then_branch = a () => (float[2] p)"
            "    { f = Cast <to = 1> (s)  p = Mul (x, f) },"
            "  else_branch = b () => (float[2] q) { q = Relu (x) }> }"
        )
    )

    assert sorted(seen) == [[], ["Mul"], ["Relu"]]


def test_one_source_gives_the_same_bytes_each_time():
    assert compiled(RESHAPED) == compiled(RESHAPED)


UNARY = st.sampled_from(["Sqrt", "Exp", "Neg", "Floor", "Abs", "Log", "Sigmoid"])
BINARY = st.sampled_from(["Add", "Sub", "Mul", "Div", "Pow", "Min"])


@st.composite
def computations(draw):
    """Return text of nodes over the constants `v0` and `v1` and the result's name."""
    text = "s = Shape (x)  v2 = Cast <to = 1> (s)"
    names = ["v0", "v1", "v2"]
    for number in range(3, 3 + draw(st.integers(1, 8))):
        inputs = draw(st.lists(st.sampled_from(names), min_size=2, max_size=2))
        if draw(st.booleans()):
            text += f"  v{number} = {draw(UNARY)} ({inputs[0]})"
        else:
            text += f"  v{number} = {draw(BINARY)} ({', '.join(inputs)})"
        names.append(f"v{number}")
    return text, names[-1]


@settings(max_examples=40, deadline=None)
@given(
    computation=computations(),
    constants=st.lists(
        st.floats(-8, 8, width=32, allow_nan=False), min_size=4, max_size=4
    ),
)
def test_folded_results_are_bit_equal_to_onnxruntimes(
    computation, constants, tmp_path_factory
):
    text, last = computation
    model = parsed(
        f"g (float[2,2] x) => (float y) {{ {text}  y = Mul (x, {last}) }}",
        v0=np.array(constants[:2], np.float32),
        v1=np.array(constants[2:], np.float32),
    )
    path = tmp_path_factory.mktemp("m") / "m.onnx"
    path.write_bytes(model)
    x = np.array([[1, -2], [0.5, 3]], np.float32)

    with session(path, Onlooker) as opened:
        (result,) = opened.run(None, {"x": x})

    (expected,) = onnxruntime_result(path, {"x": x})
    assert result.tobytes() == expected.tobytes()


def deciding(condition, **initializers):
    """Return a model of an If with branches that name their values alike."""
    return parsed(
        "g (float[2] x) => (float[2] y, float[2] z) {" + condition + "y, z = If (c) <"
        "then_branch = then () => (float[2] v, float[2] w) "
        "<float[2] two = {2, 2}> {v = Mul (x, two)  w = Relu (v)},"
        "else_branch = else () => (float[2] v, float[2] w) "
        "{v = Neg (x)  w = Tanh (v)}> }",
        **initializers,
    )


@pytest.mark.parametrize(
    ("condition", "initializers", "operators"),
    [
        ("", {"c": np.array(True)}, ["Mul", "Relu"]),
        ("", {"c": np.array([False])}, ["Neg", "Tanh"]),
        ("n = Size (x)  c = Equal (n, k)", {"k": np.array(2)}, ["Mul", "Relu"]),
    ],
)
def test_an_if_with_a_constant_condition_becomes_the_branch_that_runs(
    seen, condition, initializers, operators
):
    model = deciding(condition, **initializers)
    x = np.array([-1, 2], np.float32)

    with session(model, Onlooker) as opened:
        results = opened.run(None, {"x": x})

    assert seen == [operators]
    for result, expected in zip(
        results, onnxruntime_result(model, {"x": x}), strict=True
    ):
        assert np.array_equal(result, expected)


@pytest.mark.parametrize("last", ["Relu", "com.microsoft.Gelu"])
def test_an_if_stays_where_its_branch_proves_a_rank_that_inference_refuses(seen, last):
    model = parsed(
        "g (float[3] x) => (float[3] z) {"
        "n = If (c) <then_branch = t () => (int64[1] v) {v = Identity (one_element)},"
        "else_branch = e () => (int64 v) {v = Identity (scalar)}>"
        "steps = Range (zero, n, one)  s = Cast <to = 1> (steps)  y = Add (x, s)"
        f"z = {last} (y) }}",
        c=np.array(True),
        one_element=np.array([3]),
        scalar=np.array(3),
        zero=np.array(0),
        one=np.array(1),
    )
    x = np.array([-1, 0, 2], np.float32)

    with session(model, Onlooker) as opened:
        (result,) = opened.run(None, {"x": x})

    assert seen[-1] == ["If", "Range", "Cast", "Add", last.rpartition(".")[2]]
    assert np.array_equal(result, onnxruntime_result(model, {"x": x})[0])


def test_an_if_within_a_branch_and_one_within_a_loop_become_nodes_around_them(seen):
    model = parsed(
        "g (float[2] x) => (float[2] y) {"
        "a = If (yes) <then_branch = outer () => (float[2] b) {"
        "v = Neg (x)  b = If (no) <"
        "then_branch = inner () => (float[2] v2) {v2 = Tanh (v)},"
        "else_branch = other () => (float[2] v2) {u = Relu (v)  v2 = Exp (u)}>},"
        "else_branch = none () => (float[2] b) {b = Identity (x)}>"
        "y = Loop (times, yes, a) <body = body (int64 i, bool on, float[2] s) => "
        "(bool on2, float[2] s2) {on2 = Identity (on) s2 = If (yes) <"
        "then_branch = t () => (float[2] v) {v = Mul (s, x)},"
        "else_branch = e () => (float[2] v) {v = Add (s, x)}>}> }",
        yes=np.array(True),
        no=np.array(False),
        times=np.array(3),
    )
    x = np.array([-1, 2], np.float32)

    with session(model, Onlooker) as opened:
        (result,) = opened.run(None, {"x": x})

    assert seen == [["Identity", "Mul"], ["Neg", "Relu", "Exp", "Loop"]]
    assert np.array_equal(result, onnxruntime_result(model, {"x": x})[0])


def test_a_branch_that_returns_one_value_twice_or_a_weight_keeps_its_results(seen):
    model = parsed(
        "g (float[2] x) => (float[2] y, float[2] z, float[2] w) {"
        "y, z, w = If (c) <then_branch = t () => (float[2] v, float[2] v, float[2] k) "
        "<float[2] k = {1, 2}> {v = Neg (x)},"
        "else_branch = e () => (float[2] v, float[2] v, float[2] v) {v = Exp (x)}> }",
        c=np.array(True),
    )
    x = np.array([-1, 2], np.float32)

    with session(model, Onlooker) as opened:
        results = opened.run(None, {"x": x})

    assert [list(result) for result in results] == [[1, -2], [1, -2], [1, 2]]


def branch(name, nodes, results, **arguments):
    """Return a subgraph of nodes, with results of floats."""
    values = [
        onnx.helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, [2])
        for result in results
    ]
    return onnx.helper.make_graph(nodes, name, [], values, **arguments)


def choosing(then, other, *results, condition=True, before=()):
    """Return a model of an If with a constant condition, after some nodes."""
    x, *outputs = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2])
        for name in ("x", *results)
    )
    node = onnx.helper.make_node(
        "If", ["c"], list(results), then_branch=then, else_branch=other
    )
    graph = onnx.helper.make_graph(
        [*before, node],
        "g",
        [x],
        outputs,
        [numpy_helper.from_array(np.asarray(condition), "c")],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def neg(source, result, name=""):
    return onnx.helper.make_node("Neg", [source], [result], name)


@pytest.mark.parametrize(
    "model",
    [
        choosing(
            branch("t", [neg("x", "a"), neg("a", "b")], ["b"]),
            branch("e", [neg("x", "a")], ["a"]),
            "y",
            "z",
        ),
        choosing(
            branch("t", [neg("x", "a"), neg("a", "b")], ["a", "b"]),
            branch("e", [neg("x", "a")], ["a"]),
            "y",
        ),
        choosing(
            branch("t", [neg("x", "a")], ["a"]),
            branch("e", [neg("x", "a")], ["a"]),
            "y",
            condition=np.array(1, np.int64),
        ),
    ],
    ids=["fewer results", "more results", "a number as the condition"],
)
def test_an_if_that_is_wrong_has_the_error_that_it_has_without_folding(model):
    errors = []
    for level in (LEVEL.ORT_ENABLE_ALL, LEVEL.ORT_DISABLE_ALL):
        options = options_with(Onlooker)
        options.graph_optimization_level = level
        with pytest.raises(epctx.InvalidGraph) as caught:
            epctx.InferenceSession(
                model.SerializeToString(), options, registry=registry_with(Onlooker)
            )
        errors.append(str(caught.value))

    assert errors[0] == errors[1]


def test_long_names_of_results_are_not_repeated_for_each_value_of_a_branch():
    name = "y" * 10_000
    nodes = [neg("x", "v0"), *(neg(f"v{i}", f"v{i + 1}") for i in range(500))]
    model = choosing(
        branch("t", nodes, ["v500"]), branch("e", [neg("x", "v0")], ["v0"]), name
    )

    made = compiled(model.SerializeToString())

    assert len(made) < 5 * len(name) + 200 * len(nodes)


def test_nodes_of_a_branch_get_names_that_no_other_node_has():
    model = choosing(
        branch("t", [neg("x", "a", "n1"), neg("a", "b", "n2")], ["b"]),
        branch("e", [neg("x", "a", "n1")], ["a"]),
        "y",
        before=[neg("x", "p", "if0/1/1/n1"), neg("p", "q", "y/n1")],
    )

    names = [
        node.name for node in proto_of(compiled(model.SerializeToString())).graph.node
    ]

    assert len({*names}) == len(names) > 3


def test_what_only_the_branch_read_that_does_not_run_is_removed(seen):
    weight = numpy_helper.from_array(np.ones((2, 1000), np.float32), "large")
    unread = onnx.helper.make_node("ReduceSum", ["large"], ["sum"])
    model = choosing(
        branch("t", [neg("x", "a")], ["a"]),
        branch("e", [onnx.helper.make_node("Add", ["x", "sum"], ["a"])], ["a"]),
        "y",
        before=[unread],
    )
    model.graph.initializer.append(weight)

    made = proto_of(compiled(model.SerializeToString()))

    assert seen == [["Neg"]]
    assert list(made.graph.initializer) == []


def test_a_value_that_a_subgraph_before_it_defines_too_is_not_folded():
    model = parsed(
        "g (float[2] x, bool f) => (float[2] y, float[2] z) {"
        "y = If (f) <then_branch = t () => (float[2] a) {a = Neg (x)},"
        "else_branch = e () => (float[2] a) {a = Relu (x)}>"
        "a = Add (k, k)  z = Mul (x, a) }",
        k=np.array([1, 2], np.float32),
    )

    made = compiled(model)

    with epctx.InferenceSession(made, registry=registry_with(Onlooker)) as opened:
        _, z = opened.run(None, {"x": np.ones(2, np.float32), "f": np.array(True)})
    assert list(z) == [2, 4]
