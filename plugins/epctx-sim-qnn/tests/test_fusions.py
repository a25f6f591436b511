"""Gelu written out in ONNX operators: taken whole, or not at all."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from epctx_sim_qnn.fusions import find_fusions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, parser

import epctx_core as epctx
from epctx_core.plugin import Refusal

pytestmark = pytest.mark.internal

FLOAT = TensorProto.FLOAT
ERF = "d = Div(x, two)\ne = Erf(d)\n"
SCALED_ERF = "d = Mul(less, x)\ne = Erf(d)\n"
HALVED_BEFORE = "h = Mul(x, half)\na = Add(e, one)\ny = Mul(h, a)"
HALVED_BEHIND = "a = Add(one, e)\nm = Mul(a, x)\ny = Mul(m, half)"
HALVED_BETWEEN = "a = Add(e, one)\nh = Mul(half, a)\ny = Mul(x, h)"
HALVED_INSIDE = "h = Mul(e, half)\na = Add(h, half)\ny = Mul(a, x)"
WAYS = [HALVED_BEFORE, HALVED_BEHIND, HALVED_BETWEEN, HALVED_INSIDE]
NUMBERS = {"two": 2**0.5, "less": 0.5**0.5, "half": 0.5, "one": 1.0}


def text_model(
    body, *, kind="float[2,3]", outputs=None, shape=(), dtype=np.float32, **numbers
):
    """A model of a text's nodes, with the numbers above as weights where the text reads
    them.
    """
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g ({kind} x) => '
        f"({outputs or f'{kind} y'}) {{ {body} }}"
    )
    read = {name for node in model.graph.node for name in node.input}
    made = {name for node in model.graph.node for name in node.output}
    for name, number in {**NUMBERS, **numbers}.items():
        if name in read - made:
            model.graph.initializer.append(
                onnx.numpy_helper.from_array(np.full(shape, number, dtype), name)
            )
    return model


def answer(scene, model, **options):
    """The operators of each set taken, and those refused."""
    taken, refused = [], []
    for item in scene.asked(model, **options)[1]:
        names = [node.op_type for node in item.nodes]
        if isinstance(item, Refusal):
            refused.extend(names)
        else:
            taken.append(names)
    return taken, refused


@pytest.mark.parametrize("start", [ERF, SCALED_ERF], ids=["Div", "Mul"])
@pytest.mark.parametrize("way", WAYS, ids=["before", "behind", "between", "inside"])
def test_gelu_is_taken_in_every_way_of_writing_it(scene, start, way):
    model = text_model(start + way)

    taken, refused = answer(scene, model)

    assert (len(taken), refused) == (1, [])
    assert sorted(taken[0]) == sorted(node.op_type for node in model.graph.node)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"two": 1.5}, id="another divisor"),
        pytest.param({"one": 1.1}, id="another summand"),
        pytest.param({"half": 0.25}, id="another factor"),
        pytest.param({"two": -(2**0.5)}, id="negative"),
        pytest.param({"shape": (2, 3)}, id="a whole tensor"),
        pytest.param(
            {"kind": "double[2,3]", "dtype": np.float64}, id="a type that QNN has not"
        ),
        pytest.param({"kind": "float[N,3]"}, id="an open dimension"),
    ],
)
def test_other_constants_and_values_are_no_gelu(scene, change):
    _, refused = answer(scene, text_model(ERF + HALVED_BEHIND, **change))

    assert "Erf" in refused


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            "d = Div(two, x)\ne = Erf(d)\n" + HALVED_BEFORE, id="divided the other way"
        ),
        pytest.param(
            "r = Relu(x)\nd = Div(r, two)\ne = Erf(d)\n" + HALVED_BEFORE, id="two roots"
        ),
        pytest.param("d = Div(x, two)\ne = Tanh(d)\n" + HALVED_BEFORE, id="no Erf"),
        pytest.param(
            ERF + "a = Sub(e, one)\nm = Mul(a, x)\ny = Mul(m, half)",
            id="another operator",
        ),
        pytest.param(ERF + "a = Add(e, one)\ny = Mul(a, x)", id="unfinished"),
        pytest.param(
            ERF + "a = Add(e, half)\nh = Mul(half, a)\ny = Mul(x, h)", id="other places"
        ),
        pytest.param(
            "two = Exp(x)\n" + ERF + HALVED_BEHIND, id="a divisor that is computed"
        ),
    ],
)
def test_other_wiring_is_no_gelu(scene, body):
    assert find_fusions(scene.view(text_model(body))) == []


@pytest.mark.parametrize("inner", ["d", "e", "a", "m"])
def test_a_group_whose_inner_value_is_read_outside_is_not_closed(scene, inner):
    read = text_model(
        f"{ERF}{HALVED_BEHIND}\nz = Relu({inner})", outputs="float[2,3] y, float[2,3] z"
    )
    given_out = text_model(
        ERF + HALVED_BEHIND, outputs=f"float[2,3] y, float[2,3] {inner}"
    )

    assert "Erf" in answer(scene, read)[1]
    assert "Erf" in answer(scene, given_out)[1]


def test_a_constant_that_widens_the_result_is_no_gelu(scene):
    model = text_model(
        ERF + HALVED_BEHIND, kind="float[]", outputs="float[1] y", shape=(1,)
    )

    assert find_fusions(scene.view(model)) == []


def test_constants_in_float16_may_be_rounded(scene):
    model = text_model(ERF + HALVED_BEHIND, kind="float16[2,3]", dtype=np.float16)

    assert answer(scene, model)[1] == []


def test_constants_may_be_nodes_and_go_with_the_group(scene):
    names = ("two", "one", "half")
    constants = "".join(
        f"{name} = Constant<value_float = {NUMBERS[name]}>()\n" for name in names
    )

    taken, refused = answer(scene, text_model(constants + ERF + HALVED_BETWEEN))

    assert (len(taken), refused) == (1, [])
    assert taken[0].count("Constant") == 3


def test_gelus_one_after_another_and_beside_one_another_are_each_found(scene):
    second = (
        "D = Div(y1, two)\nE = Erf(D)\nA = Add(E, one)\nH = Mul(half, A)\nY = Mul(y1, "
        "H)"
    )
    first = (ERF + HALVED_BETWEEN).replace("y =", "y1 =")
    third = (
        "D3 = Div(x, two)\nE3 = Erf(D3)\nA3 = Add(E3, one)\nH3 = Mul(half, A3)\nY3 = "
        "Mul(x, H3)"
    )
    model = text_model(
        f"{first}\n{second}\n{third}", outputs="float[2,3] Y, float[2,3] Y3"
    )

    fusions = find_fusions(scene.view(model))

    assert [(f.op_type, f.root, f.result) for f in fusions] == [
        ("Gelu", "x", "y1"),
        ("Gelu", "y1", "Y"),
        ("Gelu", "x", "Y3"),
    ]
    assert [node.index for f in fusions for node in f.nodes] == list(range(15))


QUANTISED = (
    "q = QuantizeLinear(x, s, z)\nx2 = DequantizeLinear(q, s, z)\n"
    + (ERF + HALVED_BETWEEN).replace("x", "x2").replace("y =", "y2 =")
    + "\nq2 = QuantizeLinear(y2, s, z)\ny = DequantizeLinear(q2, s, z)"
)


@pytest.mark.parametrize("offload", ["0", "1"])
def test_between_quantised_values_gelu_goes_with_what_quantises_around_it(
    scene, offload
):
    model = text_model(QUANTISED)
    scale = onnx.numpy_helper.from_array(np.array(0.1, np.float32), "s")
    model.graph.initializer.extend(
        [scale, onnx.numpy_helper.from_array(np.array(3, np.uint8), "z")]
    )

    taken, _ = answer(scene, model, offload_graph_io_quantization=offload)

    assert [names.count("Erf") for names in taken] == [1]
    assert len(taken[0]) == (9 if offload == "0" else 7)


def test_what_quantises_around_it_and_is_refused_leaves_gelu_to_the_cpu(scene):
    model = text_model(
        QUANTISED.replace(
            "q2 = QuantizeLinear(y2, s, z)", "q2 = QuantizeLinear(y2, s2, z)"
        )
    )
    # The last scale is an input: QNN wants a constant.
    model.graph.input.append(onnx.helper.make_tensor_value_info("s2", FLOAT, []))
    scale = onnx.numpy_helper.from_array(np.array(0.1, np.float32), "s")
    model.graph.initializer.extend(
        [scale, onnx.numpy_helper.from_array(np.array(3, np.uint8), "z")]
    )

    taken, refused = answer(scene, model)

    assert "Erf" in refused
    assert all("Erf" not in names for names in taken)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.sampled_from(["gelu", "Relu", "Softsign", "Add"]), min_size=2, max_size=12
    ),
    st.randoms(),
)
def test_whatever_stands_around_it_a_gelu_is_in_one_partition_and_computes_the_same(
    scene, pieces, random
):
    model, feeds = (
        _network(pieces, random),
        {"x": np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)},
    )

    taken, _ = answer(scene, model)
    with epctx.InferenceSession(model.SerializeToString()) as alone:
        expected = alone.run(None, feeds)
    with epctx.InferenceSession(
        model.SerializeToString(), providers=["QNN"]
    ) as session:
        results = session.run(None, feeds)

    erfs = [names.count("Erf") for names in taken]
    assert sum(erfs) == pieces.count("gelu")
    assert (
        erfs
        == [names.count("Div") for names in taken]
        == [names.count("Mul") // 2 for names in taken]
    )
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)


def _network(pieces, random):
    """A model of Gelus and single operators, each on one of the last values, all of
    them results.
    """
    values, lines = ["x"], []
    for number, piece in enumerate(pieces):
        root = random.choice(values[-3:])
        result = f"v{number}"
        way = random.choice(WAYS)
        second = f", {random.choice(values)}" if piece == "Add" else ""
        text = ERF + way if piece == "gelu" else f"y = {piece}(x{second})"
        inner = [(name, f"{name}_{number}") for name in "deahm"]
        for old, new in (("y", result), ("x", root), *inner):
            text = "\n".join(_renamed(line, old, new) for line in text.splitlines())
        lines.append(text)
        values.append(result)
    return text_model(
        "\n".join(lines),
        outputs=", ".join(f"float[2,3] {value}" for value in values[1:]),
    )


def _renamed(line, old, new):
    target, _, call = line.partition(" = ")
    operator, _, operands = call.partition("(")
    names = [new if name == old else name for name in operands.rstrip(")").split(", ")]
    return f"{new if target == old else target} = {operator}({', '.join(names)})"
