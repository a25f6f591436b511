"""A model is decoded without its weights, and is the same model."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx
import onnxruntime
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

import epctx_core as epctx
from epctx_core.graph.model_io import separate_model
from epctx_core.graph.wire import separate_weights

pytestmark = pytest.mark.internal

SMALLEST = 32


def rejoined(data: bytes, most_fields: int = 10_000) -> ModelProto:
    """What is decoded of a model, with the data that it lacks put back."""
    try:
        pieces, extents = separate_weights(memoryview(data), SMALLEST, most_fields)
    except ValueError:
        # As a load does: the decoder says what is wrong.
        return ModelProto.FromString(data)
    model = ModelProto.FromString(b"".join(pieces))
    for position, (offset, length) in extents.items():
        tensor = model.graph.initializer[position]
        assert tensor.raw_data == b""
        tensor.raw_data = data[offset : offset + length]
    return model


def tensors():
    """Initializers in each of the forms that a tensor's values have."""
    raw = st.binary(max_size=3 * SMALLEST).map(lambda b: TensorProto(raw_data=b))
    typed = st.lists(st.floats(width=32, allow_nan=False), max_size=20).map(
        lambda values: TensorProto(float_data=values)
    )
    text = st.lists(st.binary(max_size=40), max_size=3).map(
        lambda texts: TensorProto(string_data=texts)
    )
    both = st.binary(max_size=60).map(
        lambda b: TensorProto(raw_data=b, float_data=[1.5])
    )
    return st.tuples(
        st.text(max_size=4), st.sampled_from([1, 7, 8]), raw | typed | text | both
    ).map(lambda t: _named(*t))


def _named(name, elem_type, tensor):
    tensor.name = name
    tensor.data_type = elem_type
    tensor.doc_string = name * 9
    return tensor


GRAPHS = st.builds(
    lambda tensors, names: helper.make_graph(
        [helper.make_node("Neg", [n], [n + "o"]) for n in names],
        "g",
        [],
        [],
        tensors,
    ),
    st.lists(tensors(), max_size=6),
    st.lists(st.text(min_size=1, max_size=5), max_size=3),
)


@given(st.lists(GRAPHS, min_size=1, max_size=3))
def test_with_its_weights_put_back_it_is_the_same_model(graphs):
    """Protobuf merges a graph in several pieces into one."""
    data = b"".join(
        ModelProto(ir_version=8, graph=graph, producer_name="p").SerializeToString()
        for graph in graphs
    )

    assert rejoined(data) == ModelProto.FromString(data)


def varint(value, extra):
    """A number in more bytes than it needs, which protobuf reads all the same."""
    out = bytearray()
    for _ in range(extra):
        out.append(value & 0x7F | 0x80)
        value >>= 7
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, content, extra=0, of_tag=0):
    tag = varint(number << 3 | 2, of_tag)
    return tag + varint(len(content), extra) + content


def check(data):
    """Decoded without its weights, a model is what it is with them, or as damaged."""
    try:
        expected = ModelProto.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            rejoined(data)
    else:
        assert rejoined(data) == expected


@given(first=st.binary(max_size=60), second=st.binary(max_size=60))
def test_of_raw_data_that_a_tensor_has_twice_the_last_counts(first, second):
    tensor = field(9, first) + field(8, b"w") + field(9, second)

    check(field(7, field(5, tensor) + field(5, b"")))


@given(
    extra=st.integers(0, 9), of_tag=st.integers(0, 9), level=st.sampled_from([5, 7, 9])
)
def test_numbers_may_be_as_long_as_the_decoder_takes_them(extra, of_tag, level):
    """It takes five bytes for a tag or a length, however small they are."""
    long = {level: (extra, of_tag)}
    data = bytes(64)
    for number in (9, 5, 7):
        data = field(number, data, *long.get(number, (0, 0)))

    check(data)


SOUND = onnx.helper.make_model(
    onnx.helper.make_graph(
        [], "g", [], [], [numpy_helper.from_array(np.ones(40, np.float32), "w")]
    )
).SerializeToString()


@given(st.binary(max_size=80), st.integers(0, len(SOUND)), st.integers(0, 9))
def test_what_is_damaged_is_as_damaged_without_its_weights(noise, at, lost):
    check(SOUND[:at] + noise + SOUND[at + lost :])


def test_no_more_fields_are_stepped_over_than_that():
    with pytest.raises(ValueError, match="very many fields"):
        separate_weights(memoryview(SOUND), SMALLEST, most_fields=3)


def large_model(change) -> bytes:
    """A model of which weights are most, and in which one tensor is changed."""
    weights = [
        numpy_helper.from_array(np.full((64, 256), n, np.float32), f"w{n}")
        for n in range(3)
    ]
    # Large as a message, with values that stay in it.
    weights.append(numpy_helper.from_array(np.ones(256, np.float32), "b"))
    weights[3].doc_string = "long" * 500
    change(weights)
    nodes = [
        helper.make_node("Sum", ["x", *(w.name for w in weights[:3])], ["s"]),
        helper.make_node("Mul", ["s", "b"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 256])
        for name in "xy"
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 18)]
    data = helper.make_model(
        graph, opset_imports=opsets, ir_version=8
    ).SerializeToString()
    assert separate_model(data, None).extents, "it is to be decoded without them"
    return data


def as_typed(weights):
    values = numpy_helper.to_array(weights[1]).ravel()
    weights[1].ClearField("raw_data")
    weights[1].float_data.extend(values)


@pytest.mark.parametrize("change", [lambda _: None, as_typed])
def test_a_session_computes_with_the_values_that_the_model_has(change):
    model = large_model(change)
    feeds = {"x": np.arange(64 * 256, dtype=np.float32).reshape(64, 256)}
    reference = onnxruntime.InferenceSession(model)

    with epctx.InferenceSession(model) as session:
        (found,) = session.run(None, feeds)

    np.testing.assert_array_equal(found, reference.run(None, feeds)[0])


def test_a_host_replaces_an_initializer_of_such_a_model():
    model = large_model(lambda _: None)
    options = epctx.SessionOptions()
    options.add_initializer("w2", np.zeros((64, 256), np.float32))

    with epctx.InferenceSession(model, options) as session:
        (found,) = session.run(None, {"x": np.zeros((64, 256), np.float32)})

    assert found.tolist() == np.ones((64, 256)).tolist()


def shorter(weights):
    weights[1].raw_data = weights[1].raw_data[:-4]


def text_with_raw_data(weights):
    weights[1].data_type = TensorProto.STRING
    weights[1].string_data.append(b"text")


def small_in_two_forms(weights):
    weights[3].float_data.append(1.0)


@pytest.mark.parametrize("change", [shorter, text_with_raw_data, small_in_two_forms])
def test_a_tensor_that_contradicts_itself_is_refused_by_loads_and_found_by_verify(
    change, tmp_path
):
    model = tmp_path / "m.onnx"
    model.write_bytes(large_model(change))

    with pytest.raises(epctx.InvalidGraph, match=r"w1|\bb\b"):
        epctx.InferenceSession(model)
    assert "model-invalid" in {f.code for f in epctx.verify_model(model).findings}


@pytest.mark.parametrize(
    "level",
    [
        epctx.GraphOptimizationLevel.ORT_DISABLE_ALL,
        epctx.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    ],
)
def test_a_context_model_says_which_source_it_is_of_however_that_is_optimised(
    level, tmp_path
):
    model = large_model(lambda _: None)
    options = epctx.SessionOptions()
    options.add_provider("QNN")

    epctx.ModelCompiler(options, model, graph_optimization_level=level).compile_to_file(
        tmp_path / "m_ctx.onnx"
    )

    manifest = epctx.inspect_model(tmp_path / "m_ctx.onnx").manifest
    assert manifest.source_digest == hashlib.sha256(model).hexdigest()
