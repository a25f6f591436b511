"""Models of every kind give the same on every way through, and no node or value is
lost.
"""

from __future__ import annotations

import logging

import onnx
import onnxruntime
import pytest
from onnx import TensorProto
from support import special_models
from support.special_models import KINDS, ONNXRUNTIME_TYPES, of_element_type
from support.taker import (
    Taker,
    assert_same,
    compile_with,
    expected,
    through_everything,
)

import epctx_core as epctx

MODES = [pytest.param(False, id="file"), pytest.param(True, id="embedded")]
BEYOND = pytest.mark.not_for_onnxruntime("it refuses the source, too")
MARKED_KINDS = [
    pytest.param(kind, marks=BEYOND)
    if kind == "nodes_without_names_and_with_one_name"
    else kind
    for kind in sorted(KINDS)
]


def saved(model, folder):
    folder.mkdir()
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize("embedded", MODES)
@pytest.mark.parametrize("kind", MARKED_KINDS)
def test_a_model_of_any_kind_is_compiled_moved_and_run(tmp_path, kind, embedded):
    example = KINDS[kind]()
    wanted = expected(example.model, example.feeds)

    outcome = through_everything(
        saved(example.model, tmp_path / "source"),
        example.feeds,
        tmp_path / "out",
        embedded=embedded,
    )

    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, wanted)
    assert outcome.taken == example.taken


@pytest.mark.parametrize("kind", MARKED_KINDS)
def test_every_node_is_in_one_place_and_everything_else_stays(tmp_path, kind):
    example = KINDS[kind]()
    source = saved(example.model, tmp_path / "source")

    report = through_everything(source, example.feeds, tmp_path / "out").report

    left = onnx.load(tmp_path / "out" / "m_ctx.onnx").graph
    contexts = [node for node in left.node if node.op_type == "EPContext"]
    assert len(contexts) == len(report.partitions)
    total = sum(report.assignments.values())
    assert len(left.node) - len(contexts) + example.taken == total
    if not example.model.functions:
        assert total == len(example.model.graph.node)
        before = [n.SerializeToString() for n in example.model.graph.node]
        after = [n.SerializeToString() for n in left.node if n.op_type != "EPContext"]
        assert sorted(after) == sorted(set(after) & set(before))
    assert list(left.input) == list(example.model.graph.input)
    for value, declared in zip(left.output, example.model.graph.output, strict=True):
        del value.metadata_props[:]  # says what is known from the declaration alone
        tensor = declared.type.tensor_type
        if value.type.HasField("tensor_type") and not tensor.HasField("shape"):
            # What was proven of it is written.
            value.type.tensor_type.ClearField("shape")
    assert list(left.output) == list(example.model.graph.output)


@pytest.mark.parametrize(
    "element",
    [
        kind if kind in ONNXRUNTIME_TYPES else pytest.param(kind, marks=BEYOND)
        for kind in special_models.ELEMENT_TYPES
    ],
    ids=[TensorProto.DataType.Name(k) for k in special_models.ELEMENT_TYPES],
)
def test_tensors_of_any_type_pass_through_around_the_eps_nodes(tmp_path, element):
    example = of_element_type(element)
    wanted = expected(example.model, example.feeds)

    outcome = through_everything(
        saved(example.model, tmp_path / "source"),
        example.feeds,
        tmp_path / "out",
        embedded=True,
    )

    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, wanted)
    assert outcome.taken == example.taken


@pytest.mark.parametrize(
    "element",
    ONNXRUNTIME_TYPES,
    ids=[TensorProto.DataType.Name(k) for k in ONNXRUNTIME_TYPES],
)
def test_nothing_slow_runs_what_onnxruntime_can(tmp_path, caplog, element):
    example = of_element_type(element)

    with caplog.at_level(logging.WARNING, "epctx"):
        through_everything(
            saved(example.model, tmp_path / "source"), example.feeds, tmp_path / "out"
        )

    assert caplog.messages == []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_inputs_and_outputs_are_spelled_as_onnxruntime_spells_them(kind):
    data = KINDS[kind]().model
    for number, node in enumerate(data.graph.node):
        node.name = f"n{number}"  # onnxruntime refuses equal names
    theirs = onnxruntime.InferenceSession(
        data.SerializeToString(), providers=["CPUExecutionProvider"]
    )

    with epctx.InferenceSession(data.SerializeToString()) as ours:
        for mine, other in (
            (ours.get_inputs(), theirs.get_inputs()),
            (ours.get_outputs(), theirs.get_outputs()),
        ):
            assert [(v.name, v.type) for v in mine] == [(v.name, v.type) for v in other]


def test_an_operator_of_an_unknown_type_stays_on_the_cpu_where_the_engine_is_the_reference(
    tmp_path,
):
    example = KINDS["several_operator_domains"]()

    report = compile_with(
        Taker,
        saved(example.model, tmp_path / "source"),
        session__engine="onnx.reference",
    )

    assert [p.operators for p in report.partitions] == [("Relu",), ("Abs",)]
    assert [r.reason for r in report.refusals if "boundary" in r.reason]


def test_a_model_of_whose_outputs_neither_type_nor_shape_is_declared_is_taken(tmp_path):
    example = KINDS["several_operator_domains"]()
    wanted = expected(example.model, example.feeds)
    del example.model.graph.output[0].type.tensor_type.shape.dim[:]
    example.model.graph.output[0].ClearField("type")

    outcome = through_everything(
        saved(example.model, tmp_path / "source"), example.feeds, tmp_path / "out"
    )

    assert_same(outcome.loaded, wanted)
    assert outcome.taken == example.taken


def test_an_input_without_a_type_is_refused():
    model = KINDS["no_nodes"]().model
    model.graph.input[0].ClearField("type")

    with pytest.raises(epctx.InvalidGraph, match="required but missing"):
        epctx.InferenceSession(model.SerializeToString())
