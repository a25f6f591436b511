"""Differences of two models: none is missed, and none is reported of equal models."""

from __future__ import annotations

import onnx
import onnx.parser
from epctx_files import diff
from onnx import helper


def write(path, text):
    """Write a model given by its graph in ONNX's text form."""
    head = '<ir_version: 10, opset_import: ["" : 21]> '
    path.write_bytes(onnx.parser.parse_model(head + text).SerializeToString())
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


def test_a_node_is_the_same_where_only_one_model_has_another_of_its_name(tmp_path):
    text = "g (float[2] x) => (float[2] y) {{ [n] a = Exp(x)  {} y = Abs(a) }}"
    first = write(tmp_path / "a.onnx", text.format("[n]"))
    second = write(tmp_path / "b.onnx", text.format("[m]"))

    assert list_names(diff(first, second)) == [("node", "n (y)"), ("node", "m")]


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
