"""Differences of two models: none is missed, and none is reported of equal models."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from epctx_files import diff, embed, externalize
from file_models import product
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

ONES = np.ones((2, 256), np.float32)


def write(path, text):
    """Write a model given by its graph in ONNX's text form."""
    head = '<ir_version: 10, opset_import: ["" : 21]> '
    path.write_bytes(onnx.parser.parse_model(head + text).SerializeToString())
    return path


def write_if(path, value, *, file=None):
    """Write an If whose then-branch adds a weight, in the model or in a file."""
    write(
        path,
        """g (bool c, float[2, 256] x) => (float[2, 256] y) { [choice] y = If (c) <
            then_branch = t () => (float[2, 256] u) { u = Add(x, w) },
            else_branch = e () => (float[2, 256] v) { v = Neg(x) }
        > }""",
    )
    model = onnx.load(path)
    (branch,) = (
        each.g for each in model.graph.node[0].attribute if each.name == "then_branch"
    )
    weight = numpy_helper.from_array(ONES * np.float32(value), "w")
    if file is not None:
        path.with_name(file).write_bytes(weight.raw_data)
        set_external_data(weight, file, 0, len(weight.raw_data))
        weight.ClearField("raw_data")
    branch.initializer.append(weight)
    path.write_bytes(model.SerializeToString())
    return path


def write_sum(path, weight):
    """Write `y = x + w` for a weight."""
    shape = ", ".join(map(str, weight.dims))
    write(path, f"g (float[{shape}] x) => (float[{shape}] y) {{ [add] y = Add(x, w) }}")
    model = onnx.load(path)
    model.graph.initializer.append(weight)
    path.write_bytes(model.SerializeToString())
    return path


def list_names(report):
    return [(each.part, each.name) for each in report.differences]


def test_nodes_of_one_name_are_told_apart_by_their_outputs(tmp_path):
    text = "g (float[2] x) => (float[2] y) {{ [n] a = {}(x)  [n] y = Abs(a) }}"
    first = write(tmp_path / "a.onnx", text.format("Exp"))
    second = write(tmp_path / "b.onnx", text.format("Neg"))

    assert list_names(diff(first, second)) == [("node", "n (a)")]
    assert not diff(first, first).differences


def test_a_node_is_not_taken_for_an_unnamed_one_whose_output_has_its_name(tmp_path):
    text = "g (float[2] x) => (float[2] y) {{ a = {}(x)  [a] y = Abs(a) }}"
    first = write(tmp_path / "a.onnx", text.format("Exp"))
    second = write(tmp_path / "b.onnx", text.format("Neg"))

    assert list_names(diff(first, second)) == [("node", "a (a)")]


def test_renamed_nodes_are_paired_by_what_they_do(tmp_path):
    text = "g (float[2] x) => (float[2] y) {{ [{}] a = Exp(x)  [{}] y = {}(a) }}"
    first = write(tmp_path / "a.onnx", text.format("first", "second", "Abs"))
    renamed = write(tmp_path / "b.onnx", text.format("one", "two", "Abs"))
    changed = write(tmp_path / "c.onnx", text.format("one", "two", "Neg"))

    found = diff(first, renamed).differences

    assert [(each.name, each.first, each.second) for each in found] == [
        ("first -> one", "named first", "named one"),
        ("second -> two", "named second", "named two"),
    ]
    assert list_names(diff(first, changed)) == [
        ("node", "first -> one"),
        ("node", "second"),
        ("node", "two"),
    ]


def test_an_unnamed_node_is_paired_by_its_operator_and_inputs(tmp_path):
    text = "g (float[2] x) => (float[2] y) {{ {0} = Exp(x)  [n] y = Abs({0}) }}"
    first = write(tmp_path / "a.onnx", text.format("before"))
    second = write(tmp_path / "b.onnx", text.format("after"))

    node, reader = diff(first, second).differences

    assert (node.name, node.first, node.second) == (
        "before -> after",
        "Exp(x) -> before",
        "Exp(x) -> after",
    )
    assert reader.name == "n"


def test_a_node_is_the_same_where_only_one_model_has_another_of_its_name(tmp_path):
    text = "g (float[2] x) => (float[2] y) {{ [n] a = Exp(x)  {} y = Abs(a) }}"
    first = write(tmp_path / "a.onnx", text.format("[n]"))
    second = write(tmp_path / "b.onnx", text.format("[m]"))

    assert list_names(diff(first, second)) == [("node", "n (y) -> m")]


def test_nodes_that_nothing_tells_apart_are_compared_together(tmp_path):
    paths = []
    for read in ("x", "z"):
        graph = helper.make_graph(
            [helper.make_node("Own", [each], [], name="n") for each in (read, "x")],
            "g",
            [],
            [],
        )
        paths.append(tmp_path / f"{read}.onnx")
        paths[-1].write_bytes(helper.make_model(graph).SerializeToString())

    (difference,) = diff(*paths).differences

    assert difference.name == "n (Own)"
    assert difference.first == "Own(x) -> ; Own(x) -> "
    assert difference.second == "Own(z) -> ; Own(x) -> "


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("<alpha>|LeakyRelu <alpha: float = @alpha> (x)", "<beta>|LeakyRelu <alpha: float = @beta> (x)"),
        ("<a: float = 1.0>|LeakyRelu <alpha: float = @a> (x)", "<a: float = 3.0>|LeakyRelu <alpha: float = @a> (x)"),
    ],
    ids=["parameter", "default"],
)  # fmt: skip
def test_attributes_of_functions_are_compared(tmp_path, one, other):
    paths = []
    for name, text in (("a.onnx", one), ("b.onnx", other)):
        parameters, _, body = text.partition("|")
        paths.append(tmp_path / name)
        model = onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["": 17, "f": 1]> g (float[2] x) => '
            "(float[2] y) { y = f.act(x) } "
            f'<domain: "f", opset_import: ["": 17]> act {parameters} (x) => (y) '
            f"{{ y = {body} }}"
        )
        paths[-1].write_bytes(model.SerializeToString())

    (difference,) = diff(*paths).differences

    assert difference.part == "function"


def test_weights_of_subgraphs_are_compared(tmp_path):
    first = write_if(tmp_path / "a.onnx", 1)
    second = write_if(tmp_path / "b.onnx", 100)

    assert list_names(diff(first, second)) == [("node", "choice")]
    assert not diff(first, first).differences


@pytest.mark.parametrize("value", [1, 100])
def test_weights_of_subgraphs_are_compared_wherever_they_lie(tmp_path, value):
    inside = write_if(tmp_path / "a.onnx", 1)
    outside = write_if(tmp_path / "b.onnx", value, file="b.data")
    other = write_if(tmp_path / "c.onnx", 1, file="c.data")

    for path in (inside, other):
        report = diff(path, outside)
        assert bool(report.differences) is (value != 1)
        assert not report.notes


def test_types_of_a_subgraph_are_compared(tmp_path):
    text = """g (float[2] x, int64 m, bool c) => (float[2] y) {{
        [loop] y = Loop (m, c, x) <body = b
        (int64 i, bool p, {} s) => (bool q, float[2] t) {{
        q = Identity(p)  t = Neg(s) }}> }}"""
    first = write(tmp_path / "a.onnx", text.format("float[2]"))
    second = write(tmp_path / "b.onnx", text.format("float[N]"))

    assert list_names(diff(first, second)) == [("node", "loop")]


def test_a_model_equals_what_embed_and_externalize_make_of_it(tmp_path):
    plain = product(tmp_path / "net.onnx", external=False)
    outside = externalize(plain, tmp_path / "outside" / "net.onnx").model
    inside = embed(outside, tmp_path / "inside" / "net.onnx").model

    unread = diff(plain, outside)

    assert not diff(plain, inside).differences
    assert not unread.differences
    assert unread.notes == ("the bytes of 1 weight in files were not compared",)
    assert not diff(plain, outside, weights=True).differences
    assert not diff(outside, plain, weights=True).notes


def test_a_weight_in_the_model_and_another_in_a_file_differ(tmp_path):
    plain = product(tmp_path / "net.onnx", external=False)
    other = product(tmp_path / "other" / "net.onnx", external=False, seed=1)
    outside = externalize(other, tmp_path / "outside" / "net.onnx").model

    assert ("weight", "weight") in list_names(diff(plain, outside, weights=True))
    assert ("weight", "weight") not in list_names(diff(plain, outside))


@pytest.mark.parametrize(
    ("element", "values"),
    [
        (TensorProto.FLOAT, np.arange(6, dtype=np.float32)),
        (TensorProto.INT64, np.arange(6)),
        (TensorProto.UINT8, np.arange(6, dtype=np.uint8)),
        (TensorProto.INT4, np.arange(6)),
        (TensorProto.BFLOAT16, np.arange(6, dtype=np.float32)),
    ],
)
def test_equal_weights_are_equal_in_whatever_field_they_lie(tmp_path, element, values):
    fields = helper.make_tensor("w", element, [2, 3], values)
    raw = numpy_helper.from_array(numpy_helper.to_array(fields), "w")
    other = helper.make_tensor("w", element, [2, 3], values[::-1])
    assert raw.HasField("raw_data")
    assert not fields.HasField("raw_data")

    first = write_sum(tmp_path / "a.onnx", fields)
    second = write_sum(tmp_path / "b.onnx", raw)

    assert not diff(first, second).differences
    third = write_sum(tmp_path / "c.onnx", other)
    assert list_names(diff(second, third)) == [("weight", "w")]


def test_weights_of_text_are_compared(tmp_path):
    paths = [
        write_sum(
            tmp_path / f"{text}.onnx",
            helper.make_tensor("w", TensorProto.STRING, [1], [text.encode()]),
        )
        for text in ("a", "b")
    ]

    assert list_names(diff(*paths)) == [("weight", "w")]


def test_the_order_of_inputs_and_of_outputs_is_compared(tmp_path):
    text = "g ({}) => ({}) {{ [one] a = Exp(x)  [two] b = Neg(z) }}"
    x, z, a, b = (f"float[2] {name}" for name in "xzab")
    first = write(tmp_path / "a.onnx", text.format(f"{x}, {z}", f"{a}, {b}"))
    second = write(tmp_path / "b.onnx", text.format(f"{z}, {x}", f"{b}, {a}"))

    found = [tuple(each.as_dict().values()) for each in diff(first, second).differences]

    assert found == [
        ("input", "(order)", "x, z", "z, x"),
        ("output", "(order)", "a, b", "b, a"),
    ]


def test_the_order_of_outputs_that_both_have_is_compared(tmp_path):
    text = "g (float[2] x) => ({}) {{ [a] a = Exp(x)  [b] b = Neg(x)  [c] c = Abs(x) }}"
    first = write(tmp_path / "a.onnx", text.format("float[2] a, float[2] b"))
    second = write(
        tmp_path / "b.onnx", text.format("float[2] b, float[2] c, float[2] a")
    )
    third = write(
        tmp_path / "c.onnx", text.format("float[2] a, float[2] c, float[2] b")
    )

    expected = [("output", "c"), ("output", "(order)")]
    assert list_names(diff(first, second)) == expected
    assert list_names(diff(first, third)) == expected[:1]


@pytest.mark.parametrize(
    ("values", "others", "shown"),
    [
        ([*range(1000)], [*range(999), 7], "[0, 1, 2, … 1,000 values, data "),
        ([0.5] * 17, [0.5] * 16 + [1.5], "[0.5, 0.5, 0.5, … 17 values, data "),
        (["é"] * 17, ["é"] * 16 + ["e"], "['é', 'é', 'é', … 17 values, data "),
        ("é" * 999, "é" * 998 + "e", f"'{'é' * 64}' … 999 characters, data "),
        ([*range(16)], [*range(17)], f"{[*range(16)]}]"),
    ],
)
def test_long_values_of_attributes_are_abbreviated(tmp_path, values, others, shown):
    paths = []
    for number, value in enumerate((values, others)):
        node = helper.make_node("Own", ["x"], ["y"], name="n", domain="own", a=value)
        paths.append(tmp_path / f"{number}.onnx")
        graph = helper.make_graph([node], "g", [], [])
        paths[-1].write_bytes(helper.make_model(graph).SerializeToString())

    (difference,) = diff(*paths).differences

    assert f"[a={shown}" in difference.first
    assert difference.first != difference.second
    assert len(difference.first) < 200
