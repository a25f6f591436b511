"""Types of initializers: those of their tensors, whatever `value_info` declares.

torch's exporter lists initializers there, which onnx's inference takes for values that
it knows nothing of.
"""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from models.test_loose_models import EPS, node, saved
from onnx import TensorProto, helper, numpy_helper
from support.taker import (
    Taker,
    assert_same,
    compile_with,
    expected,
    registry_with,
    through_everything,
)

import epctx_core as epctx

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
FEEDS = {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}
BOUNDS = {"starts": [1], "ends": [3], "axes": [1]}
"""Slice takes two columns of four."""


def tensors(values=BOUNDS):
    return [numpy_helper.from_array(np.array(v), name) for name, v in values.items()]


def infos(shape=(1,), elem_type=INT64, names=BOUNDS):
    return [helper.make_tensor_value_info(n, elem_type, list(shape)) for n in names]


def cut(**attributes):
    return node("Slice", "x starts ends axes", "s", **attributes)


def model(nodes, *, initializers=(), values=(), inputs=(), sparse=(), ir_version=9):
    """Return a model of `x` whose output `y` is declared without a shape."""
    graph = helper.make_graph(
        nodes,
        "declared",
        [helper.make_tensor_value_info("x", FLOAT, [3, 4]), *inputs],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        initializers,
        value_info=values,
        sparse_initializer=sparse,
    )
    opset = helper.make_opsetid("", 18)
    return helper.make_model(graph, opset_imports=[opset], ir_version=ir_version)


def sliced(**parts):
    """Return a model of Slice and Neg that gives the two middle columns of x."""
    parts.setdefault("initializers", tensors())
    return model([cut(), node("Neg", "s", "y")], **parts)


def body(name, output):
    """Return a subgraph that slices by initializers of its own, which it declares."""
    return helper.make_graph(
        [cut(), node("Neg", "s", output)],
        name,
        [],
        [helper.make_tensor_value_info(output, FLOAT, None)],
        tensors(),
        value_info=infos(),
    )


def in_branches():
    return model(
        [
            node("ReduceMax", "x", "m", keepdims=0),
            node("Cast", "m", "c", to=BOOL),
            node(
                "If",
                "c",
                "h",
                then_branch=body("then", "t"),
                else_branch=body("else", "e"),
            ),
            node("Neg", "h", "y"),
        ]
    )


def in_a_loop():
    inner = body("inner", "row")
    inner.node.append(node("Identity", "going", "on"))
    inner.input.extend(
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("going", BOOL, []),
        ]
    )
    inner.output.insert(0, helper.make_tensor_value_info("on", BOOL, []))
    count = helper.make_tensor("", INT64, [], [2])
    return model(
        [
            node("Constant", "", "n", value=count),
            helper.make_node("Loop", ["n", ""], ["h"], body=inner),
            node("Neg", "h", "y"),
        ]
    )


def with_sparse_axes():
    """Return the model with `ends` as a sparse tensor, which a declaration repeats."""
    values = numpy_helper.from_array(np.array([3]), "ends")
    indices = numpy_helper.from_array(np.array([0]))
    sparse = helper.make_sparse_tensor(values, indices, [1])
    dense = tensors({"starts": [1], "axes": [1]})
    return sliced(values=infos(), initializers=dense, sparse=[sparse])


RIGHT = {
    "declared as they are": sliced(values=infos()),
    "declared without a shape": sliced(
        values=[helper.make_tensor_value_info(name, INT64, None) for name in BOUNDS]
    ),
    "sparse": with_sparse_axes(),
    "in the branches of an If": in_branches(),
    "in the body of a Loop": in_a_loop(),
    "an output of the graph": sliced(),
    "an output and an input": sliced(inputs=infos()),
    "overridable": sliced(values=infos(), inputs=infos()),
    "overridable of IR version 3": sliced(values=infos(), inputs=infos(), ir_version=3),
}
for kind in ("an output of the graph", "an output and an input"):
    RIGHT[kind].graph.output.extend(infos(names=["axes"]))

OPEN = {"overridable", "an output and an input"}
"""Kinds whose callers may ask for other columns."""

FALSE = {
    "another length": (infos([3]), "int64[3] but is int64[1]"),
    "another rank": (infos([]), "int64[] but is int64[1]"),
    "another type": (infos(elem_type=FLOAT), "float[1] but is int64[1]"),
}


def outcome_of(made, tmp_path, ep):
    return through_everything(
        saved(made, tmp_path / "source"), FEEDS, tmp_path / "out", ep=ep
    )


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("kind", RIGHT)
def test_a_declared_initializer_changes_no_result_and_is_no_wrong_declaration(
    tmp_path, caplog, kind, ep
):
    made = RIGHT[kind]

    with caplog.at_level(logging.WARNING, "epctx"):
        outcome = outcome_of(made, tmp_path, ep)

    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, expected(made, FEEDS))
    assert "wrong declarations" not in caplog.text


@pytest.mark.parametrize("kind", FALSE)
def test_a_declaration_that_contradicts_its_initializer_is_named_and_not_believed(
    tmp_path, caplog, kind
):
    values, said = FALSE[kind]
    made = sliced(values=values)

    with caplog.at_level(logging.WARNING, "epctx"):
        outcome = outcome_of(made, tmp_path, Taker)

    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, expected(made, FEEDS))
    assert f"'axes' is declared {said}" in caplog.text
    assert f"'axes' is declared {said}" in outcome.report.contradictions


@pytest.mark.parametrize("kind", [*RIGHT, *FALSE])
def test_the_shapes_that_a_host_is_told_are_those_that_come_out(kind):
    made = RIGHT[kind] if kind in RIGHT else sliced(values=FALSE[kind][0])

    with epctx.InferenceSession(made.SerializeToString()) as session:
        (result, *_) = session.run(None, FEEDS)
        (told, *_) = session.get_outputs()

    lengths = zip(told.shape, result.shape, strict=True)
    assert all(
        length in {actual, None} or type(length) is str for length, actual in lengths
    )
    assert kind in {*OPEN, "in the body of a Loop"} or told.shape == [3, 2]


def test_of_a_default_that_a_caller_may_override_no_shape_is_computed(tmp_path):
    """onnxruntime gives open lengths, too, and other columns where they are asked for."""
    made = sliced(inputs=infos())
    others = {**FEEDS, "axes": np.array([0]), "ends": np.array([2])}
    compile_with(Taker, made.SerializeToString(), tmp_path / "m_ctx.onnx")

    for source in (made.SerializeToString(), tmp_path / "m_ctx.onnx"):
        with epctx.InferenceSession(source, registry=registry_with(Taker)) as session:
            for feeds in (FEEDS, others):
                assert_same(session.run(None, feeds), expected(made, feeds))
            (told,) = session.get_outputs()
            assert not any(isinstance(length, int) for length in told.shape)


def test_a_default_of_another_shape_than_its_input_is_refused_as_by_onnxruntime():
    made = sliced(inputs=infos([3]))

    with pytest.raises(
        epctx.InvalidGraph, match=r"declared int64\[3\], and its default"
    ):
        epctx.InferenceSession(made.SerializeToString())


def open_with_ep(source):
    """Open a session of which an EP is asked, so that types are inferred."""
    registry = registry_with(Taker)
    return epctx.InferenceSession(source, providers=[Taker.name], registry=registry)


def test_one_wrong_declaration_makes_no_right_one_suspect(caplog):
    made = sliced(values=infos([3], names=["axes"]))
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    made.graph.node.insert(0, node("Relu", "x", "r"))
    made.graph.node[1].input[0] = "r"
    made.graph.value_info.append(helper.make_tensor_value_info("r", FLOAT, [3, 4]))

    with caplog.at_level(logging.WARNING, "epctx"):
        open_with_ep(made.SerializeToString()).close()

    assert "'axes' is declared int64[3] but is int64[1]." in caplog.text
    assert "'r'" not in caplog.text


def test_a_contradiction_of_a_weight_in_a_file_is_named_too(tmp_path, caplog):
    weight = numpy_helper.from_array(np.ones((3, 40_000), np.float32), "w")
    wrong = helper.make_tensor_value_info("w", FLOAT, [3, 7])
    made = model([node("Neg", "w", "y")], initializers=[weight], values=[wrong])
    onnx.save(made, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")

    with caplog.at_level(logging.WARNING, "epctx"):
        open_with_ep(tmp_path / "m.onnx").close()

    assert "'w' is declared float[3,7] but is float[3,40000]" in caplog.text


@pytest.mark.parametrize("kind", RIGHT)
def test_what_is_compiled_verifies_and_declares_true_shapes(tmp_path, kind):
    made = RIGHT[kind]
    compile_with(Taker, made.SerializeToString(), tmp_path / "m_ctx.onnx")

    report = epctx.verify_model(tmp_path / "m_ctx.onnx", registry=registry_with(Taker))

    assert report.ok
    graph = onnx.load(tmp_path / "m_ctx.onnx").graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.output)
    }
    # An open length is read as 0.
    expected_shape = [0, 0] if kind in OPEN else [3, 2]
    assert (shapes["s"] if "s" in shapes else shapes["h"][-2:]) == expected_shape
