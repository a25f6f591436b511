"""Weightless mode: a source that is missing, damaged or another one is refused, and the
error says what helps.
"""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest
from support.compiling import compiler
from support.engine_eps import Alpha
from support.onnxruntime_results import onnxruntime_result
from support.small_models import chain, example, saved
from support.validating_eps import options_with, registry_with
from support.weightless import (
    ALL,
    EXTERNAL_ONLY,
    FOLDER_OPTION,
    PATH_OPTION,
    SIZE,
    Harness,
    with_openvino,
)

import epctx_core as epctx
from epctx_core import InvalidArgument, InvalidGraph, InvalidProtobuf, NoSuchFile


@pytest.fixture
def harness(tmp_path):
    return Harness(tmp_path)


def flip(path, array):
    """Change one byte of an array where it lies in a file."""
    data = bytearray(path.read_bytes())
    place = data.index(array.tobytes())
    data[place + 2] ^= 1
    path.write_bytes(data)


@pytest.mark.entry(128)
@pytest.mark.parametrize("weight", ["w", "b"])
def test_one_changed_byte_of_a_weight_is_refused(harness, weight):
    harness.compile()
    context = harness.moved("net.onnx")
    flip(context.parent / "net.onnx", getattr(harness, weight))

    with pytest.raises(
        InvalidGraph, match=f"the weight '{weight}' of the source model is not the one"
    ) as caught:
        epctx.InferenceSession(context, with_openvino())

    assert "net.onnx" in caught.value.message
    assert "compile again" in caught.value.hint


@pytest.mark.entry(128)
@pytest.mark.parametrize("mode", [EXTERNAL_ONLY, ALL])
def test_one_changed_byte_of_external_data_is_refused(harness, mode):
    weights = harness.externalise()
    context = harness.compile(mode)
    flip(weights, harness.w)

    with pytest.raises(
        InvalidGraph, match=r"the weight 'w' .* in 'net.weights' it has another digest"
    ):
        epctx.InferenceSession(context, with_openvino())


@pytest.mark.parametrize("mode", [EXTERNAL_ONLY, ALL])
def test_cut_external_data_is_refused(harness, mode):
    weights = harness.externalise()
    context = harness.compile(mode)
    weights.write_bytes(weights.read_bytes()[:100])

    with pytest.raises(
        InvalidGraph, match=r"'w' ends at byte .* of 'net.weights', which has 100"
    ):
        epctx.InferenceSession(context, with_openvino())


def test_a_changed_weight_is_refused_by_the_payload_too(harness):
    context = harness.compile()
    model = onnx.load(context)
    for entry in [p for p in model.metadata_props if p.key == "epctx.manifest"]:
        model.metadata_props.remove(entry)
    onnx.save(model, context)
    harness.check(context)
    flip(harness.source, harness.w)

    with pytest.raises(
        InvalidGraph, match=r"the weight 'w' of the source model is not the one"
    ):
        epctx.InferenceSession(context, with_openvino())


def test_a_weight_of_another_shape_is_refused(harness):
    context = harness.compile()
    harness.write(
        np.zeros((SIZE, 2 * SIZE), np.float32), np.zeros(2 * SIZE, np.float32)
    )

    with pytest.raises(InvalidGraph, match=r"another digest, type or shape"):
        epctx.InferenceSession(context, with_openvino())


def test_a_source_without_the_weight_is_refused_by_name(harness):
    context = harness.compile()
    harness.write(harness.w, harness.b, names=("other", "b"))

    with pytest.raises(InvalidGraph, match=r"'net.onnx' has no weight 'w'") as caught:
        epctx.InferenceSession(context, with_openvino())

    assert PATH_OPTION in caught.value.hint


@pytest.mark.entry(131)
def test_a_missing_source_is_refused_and_the_hint_says_what_gives_it(harness):
    harness.compile()

    with pytest.raises(
        InvalidGraph,
        match=r"the model names the source model 'net.onnx', which is missing",
    ) as caught:
        epctx.InferenceSession(harness.moved(), with_openvino())

    assert PATH_OPTION in caught.value.hint
    assert "set_weightless_source_model_buffer" in caught.value.hint


@pytest.mark.parametrize("mode", [EXTERNAL_ONLY, ALL])
def test_missing_external_data_is_refused_and_the_hint_says_what_gives_it(
    harness, mode
):
    harness.externalise()
    harness.compile(mode)

    with pytest.raises(
        InvalidGraph, match=r"'net.weights', which is missing"
    ) as caught:
        epctx.InferenceSession(harness.moved("net.onnx"), with_openvino())

    assert FOLDER_OPTION in caught.value.hint


def test_an_option_that_names_no_file_is_no_such_file(harness):
    context = harness.compile()

    with pytest.raises(NoSuchFile, match=PATH_OPTION):
        epctx.InferenceSession(
            context, with_openvino(**{PATH_OPTION: harness.folder / "gone.onnx"})
        )


@pytest.mark.parametrize("name", ["../net.onnx", "/etc/passwd", ".."])
def test_a_name_that_leaves_the_folder_is_refused(harness, name):
    harness.compile()
    context = harness.moved()
    model = onnx.load(context)
    (attribute,) = [
        a
        for n in model.graph.node
        for a in n.attribute
        if a.name == "onnx_model_filename"
    ]
    attribute.s = name.encode()
    onnx.save(model, context)

    with pytest.raises(InvalidGraph, match=re.escape(repr(name))):
        epctx.InferenceSession(context, with_openvino())


def with_reference(context, name, place, value):
    """Change what the manifest says about one weight of the source."""
    model = onnx.load(context)
    (entry,) = [p for p in model.metadata_props if p.key == "epctx.manifest"]
    content = json.loads(entry.value)
    content["source_weights"][name][place] = value
    entry.value = json.dumps(content)
    onnx.save(model, context)


@pytest.mark.parametrize("value", [-1, 1.5, None, True, "x", [], 1 << 80])
@pytest.mark.parametrize(
    "place", [0, 1, 2, 3, 4], ids=["digest", "type", "shape", "location", "offset"]
)
def test_a_manifest_that_lies_about_a_weight_is_refused(harness, place, value):
    harness.externalise()
    context = harness.compile()
    with_reference(context, "w", place, value)

    with pytest.raises(InvalidGraph):
        epctx.InferenceSession(context, with_openvino())


@pytest.mark.parametrize("location", ["../net.weights", "/etc/passwd", "net_ctx.onnx"])
def test_a_file_of_weights_that_leaves_the_folder_or_is_another_is_refused(
    harness, location
):
    harness.externalise()
    context = harness.compile()
    with_reference(context, "w", 3, location)

    with pytest.raises(InvalidGraph, match=r"'w'"):
        epctx.InferenceSession(context, with_openvino())


def test_text_is_no_weight(harness):
    harness.externalise()
    context = harness.compile()
    with_reference(context, "w", 1, int(onnx.TensorProto.STRING))

    with pytest.raises(InvalidGraph, match="keeps text in a file"):
        epctx.InferenceSession(context, with_openvino())


@pytest.mark.parametrize("content", [b"", b"junk", b"\x3a\xff\xff\xff\xff\x0f"])
def test_a_source_that_is_no_model_is_refused_as_such(harness, content):
    context = harness.compile()
    harness.source.write_bytes(content)

    with pytest.raises(InvalidProtobuf, match=r"'net.onnx' is not an ONNX model"):
        epctx.InferenceSession(context, with_openvino())


@pytest.mark.parametrize("content", ["net.onnx", 5, b""])
def test_a_buffer_that_is_none_is_refused_when_it_is_set(content):
    with pytest.raises(InvalidArgument, match=r"set_weightless_source_model_buffer"):
        epctx.SessionOptions().set_weightless_source_model_buffer(content)


def test_a_buffer_can_be_taken_back(harness):
    context = harness.compile()
    options = with_openvino()
    options.set_weightless_source_model_buffer(b"another model")
    options.set_weightless_source_model_buffer(None)

    with epctx.InferenceSession(context, options) as session:
        assert session.run(None, {"x": harness.x})


@pytest.mark.parametrize("has_function", [False, True])
def test_the_mode_is_for_compiles_and_no_load_or_verification_refuses_an_ep_without_it(
    tmp_path, has_function
):
    model = saved(chain(["Relu", "Add", "Neg"]), tmp_path / "m.onnx")
    compiler(model, Alpha).compile_to_file(tmp_path / "m_ctx.onnx")
    path = tmp_path / "m_ctx.onnx"
    if has_function:
        add_unused_function(path)
    options = options_with(Alpha, ep__enable_weightless_mode=2)
    registry = registry_with(Alpha)

    report = epctx.verify_model(path, options, registry=registry)
    with epctx.InferenceSession(path, options, registry=registry) as opened:
        (found,) = opened.run(None, {"x": example()})

    # Alpha has no check for payloads.
    assert {finding.code for finding in report.findings} == {"container-not-checked"}
    np.testing.assert_allclose(
        found, onnxruntime_result(model, {"x": example()})[0], rtol=1e-6
    )


def add_unused_function(path):
    """Have a session ask its EPs for functions that they keep."""
    proto = onnx.load(path)
    node = onnx.helper.make_node("Relu", ["a"], ["b"])
    proto.functions.append(
        onnx.helper.make_function(
            "own", "F", ["a"], ["b"], [node], proto.opset_import[:1]
        )
    )
    proto.opset_import.append(onnx.helper.make_opsetid("own", 1))
    onnx.save(proto, path)
