"""Models of every IR and operator version, from the oldest that onnxruntime takes to
onnx's newest.
"""

from __future__ import annotations

import logging

import onnx
import pytest
from support.onnxruntime_results import onnxruntime_reads
from support.special_models import NEWEST_OPSET, X, made, node, value, weight
from support.taker import Taker, assert_same, expected, through_everything

OLDEST_OPSET = 7


def is_read_by_onnxruntime(opset, ir_version):
    """Whether onnxruntime takes models of these versions."""
    probe = made(
        [node("Relu", ["x"], ["y"])],
        [value("x")],
        [value("y")],
        opset=opset,
        ir_version=ir_version,
    )
    return onnxruntime_reads(probe.SerializeToString())


ONNXRUNTIME_OPSET = max(
    v for v in range(OLDEST_OPSET, NEWEST_OPSET + 1) if is_read_by_onnxruntime(v, 8)
)
ONNXRUNTIME_IR = max(
    v for v in range(3, onnx.IR_VERSION + 1) if is_read_by_onnxruntime(8, v)
)
"""The newest that this onnxruntime takes (1.31: 26 and 13); epctx's own engines may
take more.
"""
BEYOND = pytest.mark.not_for_onnxruntime("the source is too new for it")


def marked(versions, newest):
    """Return versions, those above the newest of onnxruntime with the mark."""
    return [pytest.param(v, marks=BEYOND) if v > newest else v for v in versions]


def model_of(opset, ir_version):
    """Return a model whose operators changed over the versions, with a weight as ONNX
    once wanted it.
    """
    model = made(
        [
            node("Add", ["x", "w"], ["a"]),
            node("Sigmoid", ["a"], ["s"]),
            node("Relu", ["s"], ["r"]),
            node("Softmax", ["r"], ["m"], axis=1),
            node("Neg", ["m"], ["y"]),
        ],
        [value("x"), *([value("w", shape=(3,))] if ir_version < 4 else [])],
        [value("y")],
        [weight("w", 3)],
        opset=opset,
        ir_version=ir_version,
    )
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize(
    "opset", marked(range(OLDEST_OPSET, NEWEST_OPSET + 1), ONNXRUNTIME_OPSET)
)
def test_any_operator_version_goes_through(tmp_path, caplog, opset):
    ir_version = onnx.helper.find_min_ir_version_for(
        [onnx.helper.make_opsetid("", opset)]
    )
    check_version(tmp_path, caplog, model_of(opset, ir_version))


@pytest.mark.parametrize(
    "ir_version", marked(range(3, onnx.IR_VERSION + 1), ONNXRUNTIME_IR)
)
def test_any_ir_version_goes_through(tmp_path, caplog, ir_version):
    check_version(tmp_path, caplog, model_of(8, ir_version))


@BEYOND
def test_the_newest_of_both_goes_through(tmp_path, caplog):
    check_version(tmp_path, caplog, model_of(NEWEST_OPSET, onnx.IR_VERSION))


def check_version(folder, caplog, model):
    """Compile, move and run a model; nothing may run on the slow engine, and versions
    stay as they were.
    """
    source = folder / "in" / "m.onnx"
    source.parent.mkdir()
    source.write_bytes(model.SerializeToString())
    wanted = expected(lowered(model), X)

    with caplog.at_level(logging.WARNING, "epctx"):
        outcome = through_everything(source, X, folder / "out")

    for results in (outcome.original, outcome.compiled, outcome.loaded):
        assert_same(results, wanted)
    assert outcome.taken == 3
    assert caplog.messages == []
    written = onnx.load(folder / "out" / "m_ctx.onnx")
    assert written.ir_version == model.ir_version
    assert {o.domain: o.version for o in written.opset_import}[
        ""
    ] == model.opset_import[0].version


def lowered(model):
    """Return a model that onnxruntime takes: its operators are the same from version 14
    on.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = min(copy.ir_version, 10)
    copy.opset_import[0].version = min(copy.opset_import[0].version, 21)
    return copy


@pytest.mark.skipif(
    onnx.defs.get_schema("Cast").since_version <= ONNXRUNTIME_OPSET,
    reason=(
        "this onnx has nothing in Cast that onnxruntime lacks; "
        "tests/engines/test_splitting.py has operators without a kernel"
    ),
)
def test_an_operator_newer_than_onnxruntime_runs_alone_on_the_reference(
    tmp_path, caplog
):
    model = made(
        [
            node("Sigmoid", ["x"], ["s"]),
            node("Cast", ["s"], ["c"], to=11),
            node("Tanh", ["c"], ["y"]),
        ],
        [value("x")],
        [value("y", 11)],
        opset=NEWEST_OPSET,
        ir_version=onnx.IR_VERSION,
    )
    source = tmp_path / "in" / "m.onnx"
    source.parent.mkdir()
    source.write_bytes(model.SerializeToString())

    with caplog.at_level(logging.WARNING, "epctx"):
        outcome = through_everything(source, X, tmp_path / "out")

    assert_same(outcome.original, expected(lowered(model), X))
    assert "1 of the 3 nodes" in caplog.messages[0]
    assert "Cast" in caplog.messages[0]


def test_the_ep_of_these_tests_takes_three_of_five():
    assert {"Add", "Relu", "Neg"} <= Taker.operators
    assert not {"Sigmoid", "Softmax"} & Taker.operators
