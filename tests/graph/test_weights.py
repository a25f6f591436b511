"""Weights are the bytes of the model, wherever it keeps them, without a copy of their
own.
"""

from __future__ import annotations

import gc
import hashlib
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.graph_models import BOOL, model, node, tensor, value
from support.witness import partition_of, rest, shown, view

from epctx_core.errors import InvalidGraph

BIG = 1000


INLINE_LIMIT = 1024
"""Larger weights stand in the models that EPs get without their data."""
CHUNK = 16 << 20
"""No group of a weight's bytes is larger."""


def holding(proto):
    """Return a model of one node, of an operator that nobody knows, that reads a
    tensor.
    """
    reader = helper.make_node("Own", [proto.name], ["y"], domain="own")
    return model([reader], [], ["y"], [proto], opsets=[("", 21), ("own", 1)])


def weight_of(proto, folder=None):
    """Return the weight behind one tensor, and what stands in the model that an EP
    gets.
    """
    made = holding(proto)
    if folder is not None:
        (folder / "m.onnx").write_bytes(made.SerializeToString())
    seen = view(made if folder is None else folder / "m.onnx")
    return seen.initializer(proto.name), seen.model().graph.initializer[0]


def is_detached(proto):
    return proto.data_location == TensorProto.EXTERNAL


def external(elem_type, shape, *, location="w.bin", **entries):
    made = TensorProto(
        name="w", data_type=elem_type, dims=shape, data_location=TensorProto.EXTERNAL
    )
    for key, text in {"location": location, **entries}.items():
        made.external_data.add(key=key, value=str(text))
    return made


RAW = np.random.default_rng(0).integers(0, 256, 64, np.uint8).tobytes()

WHOLE_BYTE_TYPES = [
    "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "FLOAT16", "DOUBLE",
    "UINT32", "UINT64", "COMPLEX64", "COMPLEX128", "BFLOAT16", "FLOAT8E4M3FN",
    "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ",
]  # fmt: skip


@pytest.mark.parametrize("kind", WHOLE_BYTE_TYPES)
def test_raw_bytes_are_seen_as_what_they_are(kind):
    elem_type = TensorProto.DataType.Value(kind)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    count = 64 // dtype.itemsize
    weight, _ = weight_of(
        TensorProto(name="w", data_type=elem_type, dims=[count], raw_data=RAW)
    )

    array = weight.array()

    assert (array.dtype, array.shape, array.tobytes()) == (dtype, (count,), RAW)
    assert (weight.nbytes, weight.dtype, weight.shape, weight.elem_type) == (
        64,
        dtype,
        (count,),
        elem_type,
    )
    assert weight.digest == hashlib.sha256(RAW).hexdigest()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1.5, -2], np.float32),
        ([1.5, -2], np.float64),
        ([1, -2], np.int64),
        ([1, -2], np.int32),
        ([1, -2], np.int16),
        ([1, -2], np.int8),
        ([1, 2**63], np.uint64),
        ([1, 2**31], np.uint32),
        ([1, 255], np.uint8),
        ([True, False], np.bool_),
        ([1.5, -2], np.float16),
        ([1.5, -2], ml_dtypes.bfloat16),
        ([1.5, -2], ml_dtypes.float8_e4m3fn),
        ([1j, 2], np.complex64),
    ],
    ids=lambda v: np.dtype(v).name if not isinstance(v, list) else "",
)
def test_typed_fields_hold_the_same_values_as_raw_bytes(values, dtype):
    expected = np.array(values, dtype)
    elem_type = helper.np_dtype_to_tensor_dtype(expected.dtype)
    typed = helper.make_tensor("w", elem_type, [2], expected)
    assert not typed.HasField("raw_data")

    weight, _ = weight_of(typed)

    assert weight.array().tobytes() == expected.tobytes()
    assert weight.digest == hashlib.sha256(expected.tobytes()).hexdigest()


def test_half_precision_in_the_field_for_integers_is_read_as_bits():
    typed = TensorProto(
        name="w", data_type=TensorProto.FLOAT16, dims=[2], int32_data=[0x3C00, 0xC000]
    )

    weight, _ = weight_of(typed)

    assert weight.array().tolist() == [1.0, -2.0]


@pytest.mark.parametrize("in_field", [True, False], ids=["typed field", "raw"])
@pytest.mark.parametrize(
    ("elem_type", "dtype", "values"),
    [
        (TensorProto.INT4, ml_dtypes.int4, [-8, 7, 1]),
        (TensorProto.UINT4, ml_dtypes.uint4, [15, 0, 1]),
        (TensorProto.FLOAT4E2M1, ml_dtypes.float4_e2m1fn, [1.5, -2.0, 6.0]),
    ],
    ids=["int4", "uint4", "float4"],
)
def test_two_elements_share_a_byte(elem_type, dtype, values, in_field):
    expected = np.array(values, dtype)
    raw = numpy_helper.from_array(expected, "w")
    made = (
        helper.make_tensor("w", elem_type, [3], expected.astype(np.float32))
        if in_field
        else raw
    )

    weight, _ = weight_of(made)

    assert weight.nbytes == 2
    assert weight.array().dtype == dtype
    assert weight.array().astype(np.float32).tolist() == values
    assert b"".join(weight.chunks()) == raw.raw_data
    assert weight.digest == hashlib.sha256(raw.raw_data).hexdigest()


@pytest.mark.parametrize(
    ("shape", "count"), [([], 1), ([0], 0), ([3, 0, 2], 0), ([2, 1], 2)]
)
def test_scalars_and_empty_tensors_have_their_shape(shape, count):
    weight, _ = weight_of(tensor("w", np.ones(shape)))

    assert weight.array().shape == tuple(shape)
    assert weight.nbytes == 4 * count
    assert b"".join(weight.chunks()) == np.ones(count, np.float32).tobytes()
    assert weight.extent is None


def test_an_empty_typed_tensor_needs_no_field():
    weight, _ = weight_of(TensorProto(name="w", data_type=TensorProto.INT64, dims=[0]))

    assert weight.array().tolist() == []


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            TensorProto(name="w", data_type=1, dims=[3], raw_data=b"12345678"),
            "needs 12 bytes and has 8",
        ),
        (
            TensorProto(name="w", data_type=1, dims=[3], float_data=[1, 2]),
            "needs 12 bytes and has 8",
        ),
        (
            TensorProto(name="w", data_type=1, dims=[-3], raw_data=b""),
            "negative dimension",
        ),
        (
            TensorProto(name="w", data_type=1, dims=[-1, -1], raw_data=b"1234"),
            "negative dimension",
        ),
        (
            TensorProto(name="w", data_type=1, dims=[2**62, 2**62], raw_data=b""),
            "no memory holds",
        ),
        (
            TensorProto(name="w", data_type=0, dims=[1], raw_data=b"1234"),
            "no known element type",
        ),
        (
            TensorProto(name="w", data_type=99, dims=[1], raw_data=b"1234"),
            "no known element type",
        ),
        (
            TensorProto(name="w", data_type=TensorProto.INT4, dims=[3], raw_data=b"1"),
            "needs 2 bytes and has 1",
        ),
    ],
)
def test_bytes_that_do_not_fit_the_shape_are_refused(made, said):
    with pytest.raises(InvalidGraph, match=f"initializer 'w' .*{said}"):
        weight_of(made)


def test_strings_are_no_weights_and_stay():
    text = helper.make_tensor("w", TensorProto.STRING, [1], [b"text"])

    assert weight_of(text) == (None, text)


def test_strings_in_a_file_are_refused(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"text")

    with pytest.raises(InvalidGraph, match=r"keeps text in a file|needs .* bytes"):
        weight_of(external(TensorProto.STRING, [1]), tmp_path)


def test_only_large_weights_leave_the_graph():
    _, small = weight_of(tensor("w", np.zeros(INLINE_LIMIT // 4)))
    weight, large = weight_of(tensor("w", np.ones(INLINE_LIMIT // 4 + 1)))

    assert not is_detached(small)
    assert is_detached(large)
    assert large.ByteSize() < 100
    assert weight.array().sum() == INLINE_LIMIT // 4 + 1


def test_a_model_of_inline_weights_has_the_bytes_of_large_ones():
    made = tensor("w", np.ones(BIG))

    assert (
        view(holding(made)).model(inline_weights=True).graph.initializer[0].raw_data
        == made.raw_data
    )


def test_an_array_cannot_be_written_to():
    for made in (
        tensor("w", [1, 2]),
        numpy_helper.from_array(np.array([1, 2], ml_dtypes.int4), "w"),
    ):
        array = weight_of(made)[0].array()
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_an_array_of_whole_bytes_is_a_view():
    weight, _ = weight_of(tensor("w", np.ones(BIG)))

    assert np.shares_memory(weight.array(), weight.array())


def test_external_data_is_found_by_offset_and_length(tmp_path):
    values = np.arange(BIG, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(bytes(64) + values.tobytes() + bytes(8))
    made = external(TensorProto.FLOAT, [BIG], offset=64, length=4 * BIG)

    weight, left = weight_of(made, tmp_path)

    assert weight.array().tobytes() == values.tobytes()
    assert weight.extent == (str(tmp_path / "w.bin"), 64, 4 * BIG)
    assert weight.digest == hashlib.sha256(values.tobytes()).hexdigest()
    assert is_detached(left)
    assert not weight.array().flags.writeable


def test_external_data_without_a_length_has_the_length_that_its_shape_needs(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(range(100)))

    weight, left = weight_of(external(TensorProto.UINT8, [3], offset=5), tmp_path)

    assert weight.array().tolist() == [5, 6, 7]
    assert not is_detached(left)
    assert numpy_helper.to_array(left).tolist() == [5, 6, 7]


def test_an_offset_may_lie_anywhere(tmp_path):
    values = np.arange(BIG, dtype=np.float64)
    (tmp_path / "w.bin").write_bytes(b"abc" + values.tobytes())

    weight, _ = weight_of(external(TensorProto.DOUBLE, [BIG], offset=3), tmp_path)

    assert weight.array().sum() == values.sum()


def test_nibbles_in_a_file_are_packed(tmp_path):
    values = np.array([i % 8 for i in range(4001)], ml_dtypes.int4)
    raw = numpy_helper.from_array(values).raw_data
    (tmp_path / "w.bin").write_bytes(raw)

    weight, _ = weight_of(external(TensorProto.INT4, [4001], length=2001), tmp_path)

    assert weight.array().tobytes() == values.tobytes()
    assert b"".join(weight.chunks()) == raw


def test_an_empty_external_tensor_may_lie_in_an_empty_file(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"")

    weight, _ = weight_of(external(TensorProto.FLOAT, [0, 4]), tmp_path)

    assert weight.array().shape == (0, 4)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"offset": 97}, r"ends at byte 101 of 'w\.bin', which has 100"),
        ({"length": 5}, "needs 4 bytes; its external data has 5"),
        ({"offset": -1}, "offset '-1', which is not a whole number"),
        ({"offset": "1e3"}, "which is not a whole number"),
        ({"length": "9" * 5000}, "which is not a whole number"),
        ({"offset": 2**63}, "ends at byte"),
        ({"location": ""}, "an empty name"),
        ({"location": "../w.bin"}, "leaves the model's folder"),
        ({"location": "other.bin"}, "missing"),
    ],
)
def test_external_data_that_is_not_there_is_refused(tmp_path, entries, said):
    (tmp_path / "w.bin").write_bytes(bytes(100))

    with pytest.raises(InvalidGraph, match=said):
        weight_of(external(TensorProto.FLOAT, [1], **entries), tmp_path)


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_each_file_is_opened_once_and_closed_with_the_session(tmp_path):
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(np.arange(3 * BIG, dtype=np.float32).tobytes())
    tensors = []
    for i in range(6):
        made = external(
            TensorProto.FLOAT,
            [BIG],
            location="ab"[i % 2] + ".bin",
            offset=4 * BIG * (i // 2),
        )
        made.name = f"w{i}"
        tensors.append(made)
    reader = helper.make_node(
        "Own", [made.name for made in tensors], ["y"], domain="own"
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(
        model(
            [reader], [], ["y"], tensors, opsets=[("", 21), ("own", 1)]
        ).SerializeToString()
    )
    view(path)
    # What earlier tests left for the collector must not go while we count.
    gc.collect()
    before = open_files()

    firsts = []

    def look(graph):
        firsts.extend(graph.initializer(made.name).array()[0] for made in tensors)
        firsts.append(open_files() - before)
        return rest(graph)

    shown(path, look=look)
    gc.collect()

    # A mapping holds a descriptor of its own, and we another; of the opened files only
    # the model's own stays open while a load goes on.
    assert firsts == [0, 0, BIG, BIG, 2 * BIG, 2 * BIG, 5]
    assert open_files() == before


def test_chunks_are_bounded_and_add_up(tmp_path):
    size = 2 * CHUNK + 5
    path = tmp_path / "w.bin"
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(CHUNK)
        file.write(b"middle")

    weight, _ = weight_of(external(TensorProto.UINT8, [size]), tmp_path)

    sha = hashlib.sha256()
    lengths = []
    for chunk in weight.chunks():
        lengths.append(len(chunk))
        sha.update(chunk)
    assert sum(lengths) == size
    assert max(lengths) <= CHUNK
    assert (
        weight.digest
        == sha.hexdigest()
        == hashlib.sha256(path.read_bytes()).hexdigest()
    )


def branching(branch):
    return model(
        [helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)],
        [value("c", BOOL, [])],
        [value("y", shape=[BIG])],
    )


def test_weights_of_bodies_in_files_are_read_into_the_bodies(tmp_path):
    # onnx.save moves the initializers of subgraphs out as well.
    data = np.arange(BIG, dtype=np.float32)
    branch = helper.make_graph(
        [node("Neg", ["w"], ["t"])],
        "branch",
        [],
        [value("t", shape=[BIG])],
        [tensor("w", data)],
    )
    onnx.save(
        branching(branch),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    saved = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert is_detached(saved.graph.node[0].attribute[0].g.initializer[0])

    inside = (
        view(tmp_path / "m.onnx").model().graph.node[0].attribute[0].g.initializer[0]
    )
    assert numpy_helper.to_array(inside).tolist() == data.tolist()
    assert inside.name == "w"


def test_tensors_of_attributes_in_files_are_read_into_the_attributes(tmp_path):
    data = np.arange(BIG, dtype=np.float32)
    made = model(
        [
            helper.make_node("Constant", [], ["k"], value=tensor("k", data)),
            node("Neg", ["k"], ["y"]),
        ],
        [],
        [value("y", shape=[BIG])],
    )
    onnx.save(
        made,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
        convert_attribute=True,
    )
    saved = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert is_detached(saved.graph.node[0].attribute[0].t)

    found = view(tmp_path / "m.onnx").initializer("k")

    assert found.array().tolist() == data.tolist()


def with_data(seen):
    """Return the model that an EP gets, with the data of its weights, for which the
    checker looks.
    """
    made = seen.model()
    for proto in made.graph.initializer:
        proto.CopyFrom(seen.initializer(proto.name).make_tensor_proto())
    return made


def test_the_model_that_an_ep_gets_holds_no_large_weight():
    made = model(
        [node("Add", ["x", "w"], ["y"])],
        [value("x", shape=[BIG])],
        [value("y", shape=[BIG])],
        [tensor("w", np.ones(BIG))],
    )

    seen = view(made)

    assert seen.model().ByteSize() < 500
    assert seen.value("w").shape == (BIG,)
    onnx.checker.check_model(with_data(seen))
    assert partition_of(made).model().ByteSize() < 500


def test_reading_a_model_costs_no_memory_for_external_weights(tmp_path):
    size = 64 << 20
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(size)
    made = model([node("Neg", ["w"], ["y"])], [], [value("y", shape=[size // 4])])
    made.graph.initializer.append(external(TensorProto.FLOAT, [size // 4]))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    before = resident()

    seen = view(tmp_path / "m.onnx")

    assert seen.value("w").shape == (size // 4,)
    assert resident() - before < size // 4


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
        "SC_PAGE_SIZE"
    )
