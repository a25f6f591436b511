"""Structures of QNN's System API: every version, type and quantisation that is read, and
what is refused by name.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from epctx_native_formats import Quantization, qnn_system

from epctx_core.errors import InvalidGraph, NotImplementedByProvider

pytestmark = pytest.mark.internal

UNDEFINED = 0x7FFFFFFF


def fill(array_type, values):
    return (array_type * len(values))(*values)


def make_tensor(name=b"x", data_type=0x232, shape=(2, 3), version=1, **encoding):
    """Return a tensor as libQnnSystem describes it."""
    tensor = qnn_system._Tensor(version=version)
    body = tensor.body
    body.name = name
    body.data_type = data_type
    body.rank = len(shape)
    body.lengths = fill(ctypes.c_uint32, shape)
    body.quantization.defined = encoding.pop("defined", UNDEFINED)
    body.quantization.encoding = encoding.pop("encoding", UNDEFINED)
    for path, value in encoding.items():
        part, _, field = path.partition("__")
        setattr(getattr(body.quantization.value, part), field, value)
    return tensor


def make_binary(tensors, version=3, graph_version=3):
    """Return the description of a binary with one graph of these inputs."""
    graph = qnn_system._Graph(version=graph_version)
    graph.body.name = b"main"
    graph.body.input_count = len(tensors)
    graph.body.inputs = fill(qnn_system._Tensor, tensors)
    binary = qnn_system._Binary(version=version)
    body = binary.bodies.latest
    body.backend = 6
    body.build = b"v2.51.0"
    body.core_api.major, body.core_api.minor = 2, 40
    body.graph_count = 1
    body.graphs = fill(qnn_system._Graph, [graph])
    body.soc_model = 60
    return binary


def describe(*tensors, **versions):
    return qnn_system._describe_binary(make_binary(tensors, **versions), 100)


def test_structures_have_the_sizes_of_those_in_memory():
    # Measured by the distances of tensors and graphs in what libQnnSystem returns.
    assert ctypes.sizeof(qnn_system._Tensor) == 144
    assert ctypes.sizeof(qnn_system._Graph) == 88


def test_a_binary_is_described_by_its_sdk_target_and_graphs():
    binary = describe(make_tensor(), make_tensor(b"y", version=2))

    assert (binary.sdk, binary.target, binary.source) == ("v2.51.0", "SoC 60", "QNN")
    assert binary.facts["back end"] == "HTP"
    assert binary.facts["QNN core API"] == "2.40.0"
    (graph,) = binary.graphs
    assert [str(each) for each in graph.inputs] == ["FLOAT_32[2,3]"] * 2
    assert (graph.name, graph.outputs) == ("main", ())


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return a library whose structures a C compiler laid out."""
    path = tmp_path_factory.mktemp("library") / "libQnnSystem.so"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    source = Path(__file__).parent / "earlier_binaries.c"
    subprocess.run(["cc", *flags, str(source), "-o", str(path)], check=True)
    return str(path)


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize(
    ("version", "target"), [(1, "sm8550"), (2, "sm8550"), (3, "SoC 43")]
)
def test_each_version_of_the_description_is_read_as_a_c_compiler_lays_it_out(
    library, version, target
):
    binary = qnn_system.describe(library, memoryview(bytes([version])), "it.bin")

    assert (binary.sdk, binary.target) == ("v2.10.0", target)
    assert binary.facts == {
        "back end": "HTP",
        "QNN core API": "2.0.0",
        "QNN back end API": "0.0.0",
        "context blob": "0.3.0",
    }
    assert [graph.name for graph in binary.graphs] == ["prefill", "decode"]
    for graph in binary.graphs:
        assert [each.name for each in (*graph.inputs, *graph.outputs)] == [*"xyz"]
        assert {str(each) for each in graph.inputs} == {"FLOAT_32[2,3]"}


@pytest.mark.parametrize(
    ("number", "words", "element_type"),
    [
        (0x0008, "INT_8", "INT8"),
        (0x0064, "INT_64", "INT64"),
        (0x0132, "UINT_32", "UINT32"),
        (0x0216, "FLOAT_16", "FLOAT16"),
        (0x0232, "FLOAT_32", "FLOAT"),
        (0x0264, "FLOAT_64", "DOUBLE"),
        (0x0304, "SFIXED_POINT_4", "INT4"),
        (0x0408, "UFIXED_POINT_8", "UINT8"),
        (0x0416, "UFIXED_POINT_16", "UINT16"),
        (0x0508, "BOOL_8", "BOOL"),
        (0x0608, "STRING", "STRING"),
        (0x0402, "UFIXED_POINT_2", ""),
        (0x0B16, "0x0b16", ""),
    ],
)
def test_a_type_has_qnns_name_and_onnxs(number, words, element_type):
    (tensor,) = describe(make_tensor(data_type=number)).graphs[0].inputs

    assert (tensor.type, tensor.element_type) == (words, element_type)


SCALES = fill(ctypes.c_float, [0.5, 0.25])
OFFSETS = fill(ctypes.c_int32, [-1, -2])
PAIRS = fill(
    qnn_system._ScaleOffset,
    [qnn_system._ScaleOffset(0.5, -1), qnn_system._ScaleOffset(0.25, -2)],
)
QUANTIZED = {
    "whole": (
        {"encoding": 0, "whole__scale": 0.5, "whole__offset": -128},
        Quantization(scales=(0.5,), zero_points=(128,)),
    ),
    "axis": (
        {"encoding": 1, "axis__axis": 1, "axis__count": 2, "axis__values": PAIRS},
        Quantization(scales=(0.5, 0.25), zero_points=(1, 2), axis=1),
    ),
    "bits": (
        {"encoding": 2, "bits__bits": 4, "bits__scale": 0.5, "bits__offset": -8},
        Quantization(scales=(0.5,), zero_points=(8,), bits=4),
    ),
    "bits and axis": (
        {
            "encoding": 3,
            "bits_axis__bits": 4,
            "bits_axis__axis": 0,
            "bits_axis__count": 2,
            "bits_axis__scales": SCALES,
            "bits_axis__offsets": OFFSETS,
        },
        Quantization(scales=(0.5, 0.25), zero_points=(1, 2), axis=0, bits=4),
    ),
    "bits and axis without offsets": (
        {
            "encoding": 3,
            "bits_axis__bits": 4,
            "bits_axis__count": 2,
            "bits_axis__scales": SCALES,
        },
        Quantization(scales=(0.5, 0.25), zero_points=(0, 0), axis=0, bits=4),
    ),
}


@pytest.mark.parametrize(("given", "expected"), QUANTIZED.values(), ids=QUANTIZED)
def test_a_quantisation_is_onnxs(given, expected):
    (tensor,) = describe(make_tensor(defined=1, **given)).graphs[0].inputs

    assert tensor.quantization == expected


def test_a_quantisation_that_onnx_lacks_is_named_and_an_undefined_one_is_none():
    block, generated = (
        describe(make_tensor(defined=1, encoding=5), make_tensor(defined=0, encoding=0))
        .graphs[0]
        .inputs
    )

    assert block.quantization is None
    assert block.note == "quantised in QNN's encoding 5"
    assert (generated.quantization, generated.note) == (None, "")


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: describe(version=4), "binary's"),
        (lambda: describe(graph_version=4), "graph's"),
        (lambda: describe(make_tensor(version=3)), "tensor's"),
    ],
)
def test_another_version_of_a_structure_is_refused_by_name(make, part):
    with pytest.raises(NotImplementedByProvider, match=part) as caught:
        make()

    assert "Upgrade epctx-native-formats" in caught.value.hint


@pytest.mark.parametrize("name", [None, b"\xff"])
def test_a_name_that_is_missing_or_no_text_is_refused(name, monkeypatch):
    class Library:
        @staticmethod
        def QnnSystemInterface_getProviders(listed, count):  # noqa: N802 - QNN's
            listed._obj.contents = ctypes.pointer(INTERFACE)
            count._obj.value = 1

    graph = BINARY.bodies.latest.graphs[0]
    monkeypatch.setattr(graph.body, "name", name)
    monkeypatch.setattr(qnn_system, "CDLL", lambda _path: Library)
    with pytest.raises(InvalidGraph, match=r"it\.bin is damaged"):
        qnn_system.describe("libQnnSystem.so", memoryview(b"\0\0\0\2"), "it.bin")


@ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p)
def _create(_handle):
    return 0


@ctypes.CFUNCTYPE(
    ctypes.c_uint64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.c_void_p),
)
def _get_metadata(_handle, _content, _size, found):
    found[0] = ctypes.addressof(BINARY)
    return 0


BINARY = make_binary([make_tensor()])
INTERFACE = qnn_system._Interface(
    create=ctypes.cast(_create, ctypes.c_void_p),
    get_metadata=ctypes.cast(_get_metadata, ctypes.c_void_p),
)
INTERFACE.version.major = 1


def test_a_library_of_another_interface_is_refused(monkeypatch):
    class Library:
        @staticmethod
        def QnnSystemInterface_getProviders(_listed, count):  # noqa: N802 - QNN's
            count._obj.value = 0

    monkeypatch.setattr(qnn_system, "CDLL", lambda _path: Library)
    with pytest.raises(NotImplementedByProvider, match="System API"):
        qnn_system.describe("libQnnSystem.so", memoryview(b"\0\0\0\2"), "it.bin")
