"""Initializers found where they lie: what is read is what onnx reads, and damage is
named.
"""

from __future__ import annotations

import io

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx
from epctx_core.errors import InvalidGraph, InvalidProtobuf
from epctx_core.features.weightless import read_weights
from epctx_core.graph.mapping import MappedFile
from epctx_core.graph.wire import encode_varint

pytestmark = pytest.mark.internal

ARRAYS = {
    "large": np.arange(5000, dtype=np.float32).reshape(50, 100),
    "small": np.arange(3, dtype=np.int64),
    "scalar": np.array(7, np.int32),
    "empty": np.zeros((0, 4), np.float32),
    "half": np.ones((9,), np.float16),
}


def no_files(location, tensor):
    raise AssertionError(f"{tensor} asks for the file {location}")


def model_of(arrays):
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    tensors.append(helper.make_tensor("typed", TensorProto.FLOAT, [2], [1.5, 2.5]))
    tensors.append(helper.make_tensor("words", TensorProto.STRING, [1], [b"text"]))
    nodes = [
        helper.make_node("Identity", ["small"], [f"y{i}"], name=f"node {i}")
        for i in range(20)
    ]
    return helper.make_model(
        helper.make_graph(nodes, "g", [], [], tensors), producer_name="p"
    )


def read(content, expected=None):
    return read_weights(
        memoryview(content), expected, no_files, where="it", budget=epctx.InputBudget()
    )


def test_all_initializers_are_found_with_their_values():
    found = read(model_of(ARRAYS).SerializeToString())

    assert set(found) == {*ARRAYS, "typed"}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name].array(), array)
        assert found[name].array().dtype == array.dtype
    assert found["typed"].array().tolist() == [1.5, 2.5]


def test_only_those_asked_for_are_looked_at():
    model = model_of(ARRAYS)
    model.graph.initializer.append(
        TensorProto(
            name="elsewhere", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL
        )
    )

    assert set(read(model.SerializeToString(), {"small", "large", "unknown"})) == {
        "small",
        "large",
    }


def test_raw_data_stays_where_it_lies_in_a_mapped_file(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of(ARRAYS).SerializeToString())
    with path.open("rb") as file:
        mapped = MappedFile(file.fileno(), str(path))

    weight = read_weights(
        mapped.view,
        {"large"},
        no_files,
        file=mapped,
        where="it",
        budget=epctx.InputBudget(),
    )["large"]

    assert weight.extent.file == str(path)
    assert (
        path.read_bytes()[weight.extent.offset :][: weight.extent.length]
        == ARRAYS["large"].tobytes()
    )
    assert np.shares_memory(np.frombuffer(mapped.view, np.uint8), weight.array())


def test_raw_data_stays_where_it_lies_in_a_buffer():
    content = model_of(ARRAYS).SerializeToString()

    weight = read(content, {"large"})["large"]

    assert weight.extent is None
    assert np.shares_memory(np.frombuffer(content, np.uint8), weight.array())


def test_a_graph_in_two_pieces_is_one_graph():
    first, second = model_of({"a": ARRAYS["small"]}), model_of({"b": ARRAYS["half"]})

    assert {"a", "b"} <= set(
        read(first.SerializeToString() + second.SerializeToString())
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: setattr(t, "raw_data", b"12345"), "needs 24 bytes and has 5"),
        (lambda t: setattr(t, "data_type", 99), "no known element type"),
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused(change, says):
    model = model_of({"small": ARRAYS["small"]})
    change(model.graph.initializer[0])

    with pytest.raises(InvalidGraph, match=says):
        read(model.SerializeToString())


CONTENT = model_of(ARRAYS).SerializeToString()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(CONTENT) - 1), st.integers(0, 255))
@example(0, 0)
def test_a_changed_byte_gives_weights_or_a_typed_error(place, value):
    content = bytearray(CONTENT)
    content[place] = value

    try:
        found = read(bytes(content))
    except (InvalidProtobuf, InvalidGraph):
        return

    assert all(weight.nbytes <= len(CONTENT) for weight in found.values())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(CONTENT) - 1))
def test_a_cut_model_gives_weights_or_a_typed_error(length):
    try:
        found = read(CONTENT[:length])
    except (InvalidProtobuf, InvalidGraph):
        return

    assert set(found) <= {*ARRAYS, "typed"}


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 300), max_size=6)
)
def test_what_is_found_is_what_onnx_reads(sizes):
    model = model_of(
        {name: np.arange(size, dtype=np.float64) for name, size in sizes.items()}
    )
    again = onnx.load_from_string(model.SerializeToString())

    found = read(io.BytesIO(model.SerializeToString()).getbuffer())

    for tensor in again.graph.initializer:
        if tensor.data_type != TensorProto.STRING:
            np.testing.assert_array_equal(
                found[tensor.name].array(), numpy_helper.to_array(tensor)
            )


def test_a_source_of_very_many_nodes_is_refused_before_any_is_decoded():
    content = model_of(ARRAYS).SerializeToString()
    # An empty node takes two bytes of a model, and hundreds in memory.
    nodes = b"\x0a\x00" * 300_000
    graph = b"\x3a" + encode_varint(len(nodes)) + nodes

    with pytest.raises(InvalidGraph, match="262,144 messages"):
        read(content + graph)
