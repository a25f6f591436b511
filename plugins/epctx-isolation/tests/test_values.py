"""Values of a run arrive through shared memory as they were; what a child says of them
is checked against the memory and against the model's outputs.
"""

from __future__ import annotations

import json
import os
import random
import struct

import ml_dtypes
import numpy as np
import pytest
from epctx_isolation.channel import ProtocolError
from epctx_isolation.results import decode_values, encode_values, make_outputs
from epctx_isolation.shared_memory import ChildMemory, HostMemory
from onnx import TensorProto
from support.isolation import turn_bits_over

from epctx_core.plugin import TensorType

pytestmark = pytest.mark.internal

ANY = TensorType(None, None)
"""Type of an output that is no tensor."""
FLOATS = TensorType(TensorProto.FLOAT, (2, 3))
TEXT = TensorType(TensorProto.STRING, None, is_proven=False)


class Ends:
    """Both ends of shared memory: the child's, and its host's."""

    def __init__(self):
        self.host = HostMemory()
        self.descriptor = self.host.descriptor
        self.child = ChildMemory(self.descriptor)

    def close(self):
        self.host.close()

    def put(self, content):
        """Have the child write bytes; return their offset."""
        ((offset, view),) = self.child.make_room([len(content)])
        if content:
            view[:] = content
        return offset

    def transfer(self, values, expected=None, outputs=None):
        """Return the values of a run as they arrive."""
        told = json.loads(json.dumps(encode_values(values, self.child)))
        return decode_values(told, expected or [ANY] * len(values), self.host, outputs)


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.close()


KINDS = ["float32", "bfloat16", "int4", "uint8", "bool", "float16", "float8_e4m3fn"]
SHAPES = [(), (0, 3), (2, 3)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_arrays_of_every_kind_arrive_as_they_were(ends, kind, shape):
    array = np.ones(shape, getattr(ml_dtypes, kind, None) or kind)

    (found,) = ends.transfer([array])

    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)


def test_every_type_of_elements_that_a_model_may_have_arrives(ends):
    numbers = [
        n for n in TensorProto.DataType.values() if n not in (0, TensorProto.STRING)
    ]
    types = [TensorType(number, (2,)) for number in numbers]
    arrays = [np.ones(2, tensor.dtype) for tensor in types]

    found = ends.transfer(arrays, types)

    assert [array.dtype for array in found] == [array.dtype for array in arrays]
    assert all(map(np.array_equal, found, arrays))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12).reshape(3, 4).T,
        np.arange(12)[::-2],
        np.broadcast_to(np.float32(1), (2, 3)),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
    ids=["transposed", "reversed", "repeated", "fortran"],
)
def test_arrays_of_any_layout_arrive_contiguous(ends, array):
    (found,) = ends.transfer([array])

    assert np.array_equal(found, array)
    assert found.flags.c_contiguous


@pytest.mark.parametrize(
    "array",
    [
        np.array([["a", ""], ["ü\0", "日本"]], object),
        np.array("scalar", object),
        np.empty((0, 3), object),
        np.array(["a", "日本"]),
        np.array([b"a", "é".encode()]),
        np.array([b"a", "é"], object),
        np.array(["a", "é"], object)[::-1],
    ],
    ids=["objects", "scalar", "empty", "unicode", "bytes", "both", "reversed"],
)
def test_text_of_every_kind_arrives_as_text(ends, array):
    (found,) = ends.transfer([array], [TEXT])

    assert (found.dtype, found.shape) == (np.dtype(object), array.shape)
    assert [str(t) for t in found.flat] == [
        t.decode() if isinstance(t, bytes) else str(t) for t in array.flat
    ]
    assert all(type(text) is str for text in found.flat)


@pytest.mark.parametrize("element", [1, None, ["a"]])
def test_what_is_not_text_in_a_tensor_of_text_is_named_by_its_position(ends, element):
    array = np.array(["a", None], object)
    array[1] = element

    with pytest.raises(TypeError, match="element 1 of a tensor of text"):
        encode_values([array], ends.child)


def test_what_is_no_tensor_arrives_as_it_was(ends):
    values = [
        None,
        [],
        [np.arange(3), np.zeros((0, 2), np.float32), None],
        {"a": np.float32(0.5), "b": np.ones(2)},
        {3: "text", -4: 0.5},
        [{"a": [np.array(["x"], object)]}],
    ]

    found = ends.transfer(values)

    assert found[:2] == [None, []]
    assert [type(item) for item in found[2]] == [np.ndarray, np.ndarray, type(None)]
    assert np.array_equal(found[2][0], np.arange(3))
    assert found[2][1].shape == (0, 2)
    assert (found[3]["a"], found[3]["b"].tolist()) == (0.5, [1, 1])
    assert found[4] == {3: "text", -4: 0.5}
    assert found[5][0]["a"][0].tolist() == ["x"]


def test_values_lie_behind_what_the_memory_has_already(ends):
    offset = ends.put(b"inputs")

    ends.transfer([np.zeros(100)])

    assert os.pread(ends.descriptor, 6, 4096 + offset) == b"inputs"


@pytest.mark.parametrize("nested", [False, True])
def test_results_are_copies_that_the_next_run_does_not_change(ends, nested):
    array = np.ones(3, np.float32)

    (found,) = ends.transfer([[{"a": array}] if nested else array])
    os.pwrite(ends.descriptor, b"\7" * 4096, 4096)

    kept = found[0]["a"] if nested else found
    assert kept.tolist() == [1, 1, 1]
    assert kept.flags.owndata


def test_a_run_may_write_where_its_results_are_read(ends):
    types = [FLOATS, TEXT, TensorType(TensorProto.INT64, ("n",)), FLOATS]

    rooms = make_outputs(types, ends.child)
    (_, first), text, unknown, (_, last) = rooms
    first[:], last[:] = 1, 2
    values = [first, np.array(["a"], object), np.arange(4), last]
    used = ends.child.used
    told = json.loads(json.dumps(encode_values(values, ends.child, rooms)))
    found = decode_values(told, types, ends.host)

    assert (text, unknown) == (None, None)
    assert [array.tolist() for array in found] == [array.tolist() for array in values]
    # Only what was elsewhere takes more memory.
    assert ends.child.used - used < first.nbytes + last.nbytes + 128


def test_outputs_without_elements_take_no_memory(ends):
    empty = TensorType(TensorProto.FLOAT, (0, 3))

    memory = make_outputs([empty], ends.child)
    (found,) = ends.transfer([np.empty((0, 3), np.float32)], [empty])

    assert memory == [None]
    assert found.shape == (0, 3)


def test_results_are_copied_into_arrays_that_the_caller_gives(ends):
    given = np.zeros((2, 3), np.float32)

    first, second = ends.transfer(
        [np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)],
        [FLOATS, FLOATS],
        [given, None],
    )

    assert first is given
    assert given.tolist() == second.tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    "array", [np.ones((1, 3), np.float32), np.ones(3, np.float32), np.ones((2, 3))]
)
def test_results_are_not_repeated_or_converted_to_fit_given_arrays(ends, array):
    given = np.zeros((2, 3), np.float32)
    loose = TensorType(None, None)

    (found,) = ends.transfer([array], [loose], [given])

    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    assert not given.any()


@pytest.mark.parametrize(
    "value",
    [
        np.ones((2, 3)),
        np.ones((2, 3), np.int32),
        np.ones((2, 3), bool),
        np.ones((3, 2), np.float32),
        np.ones(6, np.float32),
        np.ones((2, 3, 1), np.float32),
        np.ones((), np.float32),
        np.array([["a"] * 3] * 2, object),
        None,
        1.0,
        [np.ones((2, 3), np.float32)],
    ],
    ids=repr,
)
def test_a_result_has_the_type_and_shape_of_the_models_output(ends, value):
    with pytest.raises(ProtocolError, match=r"for float\[2,3\]"):
        ends.transfer([value], [FLOATS])


def test_a_length_that_a_model_merely_declares_may_be_another(ends):
    declared = TensorType(TensorProto.FLOAT, (2, 3), is_proven=False)
    named = TensorType(TensorProto.FLOAT, ("batch", 3))

    found = ends.transfer([np.ones((4, 5), np.float32), np.ones((7, 3), np.float32)],
                          [declared, named])  # fmt: skip

    assert [array.shape for array in found] == [(4, 5), (7, 3)]
    with pytest.raises(ProtocolError):
        ends.transfer([np.ones((7, 4), np.float32)], [named])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_there_are_as_many_results_as_outputs(ends, count):
    with pytest.raises(ProtocolError, match="results for 2 outputs"):
        ends.transfer([None] * count, [ANY, ANY])


def floats(**changes):
    """Return what a child says of four floats, with changes."""
    return {"array": 0, "type": "float32", "shape": [4], **changes}


GIVEN = [
    None,
    1,
    "ab",
    [],
    [[]],
    [[], [], []],
    {"a": 1, "b": 2},
    [[floats()], [0, True]],
    [[floats()], [-1]],
    [[floats()], [0.0]],
    [[floats()], ["0"]],
    [[floats()], {"0": 0}],
    [[floats()], None],
    [[floats()], []],
    [None, [0]],
    [3, [0]],
    [[floats(array=1)], [0]],
    [[floats(array=-1)], [0]],
    [[floats(array=True)], [0]],
    [[floats(array="0")], [0]],
    [[floats(array=1 << 80)], [0]],
    [[floats(type="float33")], [0]],
    [[floats(type="object")], [0]],
    [[floats(type="O")], [0]],
    [[floats(type="V16")], [0]],
    [[floats(type=None)], [0]],
    [[floats(type=["float32"])], [0]],
    [[floats(shape=None)], [0]],
    [[floats(shape=4)], [0]],
    [[floats(shape="4")], [0]],
    [[floats(shape=[-4])], [0]],
    [[floats(shape=[-2, -2])], [0]],
    [[floats(shape=[4.0])], [0]],
    [[floats(shape=[True])], [0]],
    [[floats(shape=[[4]])], [0]],
    [[floats(shape=[1] * 100)], [0]],
    [[floats(shape=[1 << 40, 1 << 40])], [0]],
    [[floats(shape=[1 << 80])], [0]],
    [[floats(shape=[0, 1 << 80])], [0]],
    [[floats(shape=[0, 1 << 62, 1 << 62])], [0]],
    [[floats(shape=[5])], [1 << 12]],
    [[floats()], [1 << 20]],
    [[floats()], [1 << 80]],
    [[{"array": 0}], [0]],
    [[{"array": 0, "shape": [4]}], [0]],
    [[{}], [0]],
    [[{"list": 1}], []],
    [[{"list": [[]]}], []],
    [[{"list": None}], []],
    [[{"keys": ["a"], "items": []}], []],
    [[{"keys": ["a"], "items": [1, 2]}], []],
    [[{"keys": ["a"]}], []],
    [[{"keys": [[]], "items": [1]}], []],
    [[{"keys": [{}], "items": [1]}], []],
    [[{"keys": 1, "items": [1]}], []],
    [[[1]], []],
]


@pytest.mark.parametrize("told", GIVEN, ids=lambda told: f"{told!r:.60}")
def test_what_no_run_returns_is_no_result(ends, told):
    ends.put(bytes(16))

    with pytest.raises(ProtocolError):
        decode_values(told, [ANY], ends.host)


def test_an_array_in_the_memory_that_was_written_is_a_result(ends):
    ends.put(np.arange(4, dtype=np.float32).tobytes())

    (found,) = decode_values([[floats()], [0]], [ANY], ends.host)

    assert found.tolist() == [0, 1, 2, 3]


def test_an_array_that_was_announced_and_never_written_is_no_result(ends):
    ends.put(bytes(16))
    os.ftruncate(ends.descriptor, 1 << 34)

    with pytest.raises(ProtocolError, match="never written"):
        decode_values([[floats(shape=[1 << 30])], [0]], [ANY], ends.host)


def test_text_that_was_announced_and_never_written_is_no_result(ends):
    ends.put(bytes(16))
    os.ftruncate(ends.descriptor, 1 << 24)

    with pytest.raises(ProtocolError, match="never written"):
        decode_values([[floats(type="text", shape=[1 << 20])], [0]], [TEXT], ends.host)


def test_arrays_that_lie_over_each_other_take_no_more_than_was_written(ends):
    content = bytes(1 << 20)
    ends.put(content)
    repeated = [floats(shape=[len(content) // 4])] * 100

    with pytest.raises(ProtocolError, match="never written"):
        decode_values([[{"list": repeated}], [0]], [ANY], ends.host)


def test_texts_that_lie_over_each_other_take_no_more_than_was_written(ends):
    length = 1 << 20
    ends.put(struct.pack("<Q", length) + b"x" * length)
    repeated = [floats(type="text", shape=[1])] * 100

    with pytest.raises(ProtocolError, match="never written"):
        decode_values([[{"list": repeated}], [0]], [ANY], ends.host)


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_value_within_too_many_lists_is_no_result(ends, depth):
    value = {"array": 5}
    for _ in range(depth):
        value = {"list": [value]}

    with pytest.raises(ProtocolError):
        decode_values([[value], []], [ANY], ends.host)


def lengths(*numbers):
    return struct.pack(f"<{len(numbers)}Q", *numbers)


@pytest.mark.parametrize(
    ("shape", "content"),
    [
        ([1], lengths(1 << 20)),
        ([1], lengths((1 << 64) - 1)),
        ([2], lengths(1, 1 << 63) + b"a"),
        ([2], lengths((1 << 64) - 1, 2) + b"a"),
        ([1], lengths(1) + b"\xff"),
        ([1], lengths(3) + b"\xed\xa0\x80"),
        ([2], lengths(1, 1) + "é".encode()),
        ([1 << 40, 1 << 40], lengths(0)),
        ([1 << 20], lengths(0)),
        ([1] * 100, lengths(1) + b"a"),
        ([0, 1 << 80], b""),
        ([-1], b""),
        ([True], lengths(0)),
    ],
)
def test_text_has_the_lengths_that_it_says_and_is_utf_8(ends, shape, content):
    offset = ends.put(content)

    with pytest.raises(ProtocolError):
        decode_values([[floats(type="text", shape=shape)], [offset]], [TEXT], ends.host)


def test_values_with_bits_turned_over_are_values_or_none(ends):
    generator = random.Random(0)  # noqa: S311 - damage, no secrets
    values = [np.ones((2, 3)), np.array(["a", "é"], object), [None, {"a": np.ones(2)}]]
    good = json.dumps(encode_values(values, ends.child)).encode()
    outcomes = set()

    for _ in range(2000):
        data = turn_bits_over(good, generator)
        try:
            told = json.loads(data)
        except ValueError:
            continue
        try:
            outcomes.add(len(decode_values(told, [ANY] * 3, ends.host)))
        except ProtocolError:
            outcomes.add(None)

    assert outcomes == {3, None}


def test_memory_with_bytes_turned_over_gives_values_or_none(ends):
    generator = random.Random(0)  # noqa: S311 - damage, no secrets
    values = [np.ones((2, 3)), np.array(["a", "é", ""], object)]
    told = encode_values(values, ends.child)
    outcomes = set()

    for _ in range(500):
        at = generator.randrange(ends.child.used)
        os.pwrite(ends.descriptor, bytes([generator.randrange(256)]), 4096 + at)
        try:
            outcomes.add(len(decode_values(told, [ANY] * 2, ends.host)))
        except ProtocolError:
            outcomes.add(None)
        ends.child.used = 0
        told = encode_values(values, ends.child)

    assert outcomes == {2, None}
