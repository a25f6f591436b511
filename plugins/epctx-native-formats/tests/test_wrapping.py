"""Formats of other packages are found by entry points, and their binaries described and
wrapped.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from epctx_native_formats import BinaryReader, describe_binary, wrap_binary
from onnx import numpy_helper

import epctx_core as epctx
from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    NoSuchFile,
    NotImplementedByProvider,
    PluginError,
)

HERE = Path(__file__).parent
UINT8 = {"type": "Q8", "element_type": "UINT8"}


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """Install the format of `boxed_format`; return a function that installs another."""
    folder = tmp_path / "installed"

    def install(name, target):
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        info.joinpath("METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        info.joinpath("entry_points.txt").write_text(
            f"[epctx.native_formats]\n{name} = {target}\n"
        )

    install("boxed", "boxed_format")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder), str(HERE)])
    yield install
    sys.modules.pop("boxed_format", None)


@pytest.fixture
def box(tmp_path):
    """Return a function that writes a binary of graphs."""

    def write(*graphs, name="net.box"):
        path = tmp_path / name
        word = graphs[0] if graphs and isinstance(graphs[0], str) else None
        text = json.dumps(word or graphs)
        path.write_bytes(b"BOXD" + text.encode())
        return path

    return write


def make_graph(name="main", inputs=({"name": "x"},), outputs=({"name": "y"},)):
    return {"name": name, "inputs": inputs, "outputs": outputs}


def read_model(path):
    model = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(model)
    nodes = [node for node in model.graph.node if node.op_type == "EPContext"]
    return model, nodes


def get_attributes(node):
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def test_a_binary_is_described_by_the_format_of_its_first_bytes(box, tmp_path):
    binary = describe_binary(box(make_graph()))
    assert (binary.sdk, binary.target) == ("box 1.0", "boxes")
    assert str(binary.graphs[0].inputs[0]) == "F32[2,3]"

    (tmp_path / "other").write_bytes(b"neither")
    assert describe_binary(tmp_path / "other") is None
    (tmp_path / "empty").write_bytes(b"")
    assert describe_binary(tmp_path / "empty") is None
    with pytest.raises(NoSuchFile):
        describe_binary(tmp_path / "missing")


def test_a_binary_that_ends_its_process_is_refused_and_the_next_one_read(box):
    with BinaryReader() as reader:
        right = box(make_graph(), name="right.box")
        assert reader.describe(right).graphs
        with pytest.raises(InvalidGraph, match=r"bad\.box cannot be read"):
            reader.describe(box("end", name="bad.box"))
        assert reader.describe(right).graphs


def test_a_binary_that_harms_its_process_does_not_have_the_next_one_refused(box):
    with BinaryReader() as reader:
        right = box(make_graph(), name="right.box")
        assert not reader.describe(box("harm", name="harm.box")).graphs

        assert reader.describe(right).graphs


def test_a_format_that_is_broken_is_named(box, installed, tmp_path, caplog):
    tmp_path.joinpath("installed", "raising_format.py").write_text(
        "def matches(head): return head[:4] == b'BADF'\n"
        "def read(content, name, reader): return 1 / 0\n"
    )
    installed("raising", "raising_format")
    (tmp_path / "bad").write_bytes(b"BADF")
    with pytest.raises(PluginError, match="'raising' of binaries failed"):
        describe_binary(tmp_path / "bad")

    installed("absent", "there_is_no_such_module")
    # Others go on.
    assert describe_binary(box(make_graph())).format == "boxed"
    assert "'absent' of binaries cannot be imported" in caplog.text


def test_a_file_is_read_where_it_is_and_what_is_no_file_is_refused(box, tmp_path):
    path = box(make_graph())
    with BinaryReader() as reader, path.open("rb") as file:
        path.unlink()
        assert reader.describe(file).graphs
        with pytest.raises(InvalidArgument, match="a folder or a device"):
            reader.describe(tmp_path)
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InvalidArgument, match="a folder or a device"):
            reader.describe(tmp_path / "pipe")
        with pytest.raises(EpctxError, match="too long"):
            reader.describe("x" * 300)


def test_a_wrapper_has_the_node_of_the_graph_and_digests(box, tmp_path):
    output = tmp_path / "out" / "net_ctx.onnx"
    output.parent.mkdir()
    report = wrap_binary(box(make_graph()), output)

    _, (node,) = read_model(output)
    assert (node.name, [*node.input], [*node.output]) == ("main", ["x"], ["y"])
    assert get_attributes(node) == {
        "embed_mode": 0,
        "ep_cache_context": b"net.box",
        "main_context": 1,
        "partition_name": b"main",
        "source": b"BoxExecutionProvider",
    }
    assert {file.name for file in report.files} == {"net_ctx.onnx", "net.box"}
    assert {each.name for each in output.parent.iterdir()} == {
        "net_ctx.onnx",
        "net.box",
    }
    info = epctx.inspect_model(output)
    assert info.manifest.sealed is not None
    (output.parent / "net.box").write_bytes(b"BOXD[]")
    assert not epctx.verify_model(output).ok


def test_a_wrapper_of_two_graphs_has_one_payload(box, tmp_path):
    second = make_graph("second", [{"name": "a"}], [{"name": "b"}])
    path = box(make_graph(), second)
    output = tmp_path / "net_ctx.onnx"
    wrap_binary(path, output, graphs=["main", "second"], embed=True)

    _, nodes = read_model(output)
    assert [get_attributes(node)["main_context"] for node in nodes] == [1, 0]
    assert get_attributes(nodes[0])["ep_cache_context"] == path.read_bytes()
    assert "ep_cache_context" not in get_attributes(nodes[1])


def test_names_are_those_that_the_host_chooses(box, tmp_path):
    path = box(make_graph())
    output = tmp_path / "net_ctx.onnx"
    wrap_binary(path, output, rename={"x": "image", "y": "label"})

    model, (node,) = read_model(output)
    assert [value.name for value in model.graph.input] == ["image"]
    assert ([*node.input], [*node.output]) == (["image"], ["label"])
    for rename, problem in (
        ({"z": "a"}, "no tensor of the graphs has the name 'z'"),
        ({"x": "y"}, "name 'y'"),
        ({"x": "a", "y": "a"}, "two values would have the name 'a'"),
        ({"x": ""}, "a model cannot have the name ''"),
        ({"x": "a\nb"}, "a model cannot have the name"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            wrap_binary(path, output, rename=rename)


@pytest.mark.parametrize("axis", [None, 1])
def test_quantised_values_become_float(axis, box, tmp_path):
    count = 1 if axis is None else 3
    scales = [0.5, 0.25, 0.125][:count]
    quantization = {"scales": scales, "zero_points": [3] * count, "axis": axis}
    tensors = [{"name": n, **UINT8, "quantization": quantization} for n in "xy"]
    output = tmp_path / "net_ctx.onnx"
    wrap_binary(
        box(make_graph("main", tensors[:1], tensors[1:])), output, as_float=True
    )

    model, (node,) = read_model(output)
    assert ([*node.input], [*node.output]) == (["x_quantized"], ["y_quantized"])
    # The nodes around it, joined where it is, give back each value that has a code.
    first, _, last = model.graph.node
    last.input[0] = first.output[0]
    del model.graph.node[1], model.graph.value_info[:]
    codes = np.arange(6, dtype=np.uint8).reshape(2, 3)
    real = (codes.astype(np.float32) - 3) * np.array(scales, np.float32)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (result,) = session.run(["y"], {"x": real})
    np.testing.assert_array_equal(result, real)
    zero_points = [c for c in model.graph.initializer if "zero_point" in c.name]
    assert all(numpy_helper.to_array(c).dtype == np.uint8 for c in zero_points)


def make_quantized(**fields):
    quantization = {"scales": [0.5], "zero_points": [3], "axis": None}
    tensor = {"name": "x", **UINT8, "quantization": quantization}
    quantization |= {k: v for k, v in fields.items() if k in quantization}
    return make_graph(
        "main", [tensor | {k: v for k, v in fields.items() if k not in quantization}]
    )


@pytest.mark.parametrize(
    ("fields", "error", "problem"),
    [
        ({"element_type": "INT32"}, NotImplementedByProvider, "QuantizeLinear cannot"),
        ({"element_type": "FLOAT"}, NotImplementedByProvider, "QuantizeLinear cannot"),
        ({"element_type": "INT4"}, NotImplementedByProvider, "cannot be that of an"),
        ({"scales": [float("nan")]}, InvalidGraph, "not a positive number"),
        ({"scales": [0.5, 0.5]}, InvalidGraph, "2 scales"),
        ({"axis": 9}, InvalidGraph, "along axis 9"),
        ({"zero_points": [300]}, InvalidGraph, "zero point"),
        ({"shape": [1 << 40]}, InvalidGraph, "the shape"),
    ],
)
def test_values_that_cannot_become_float_are_refused(
    fields, error, problem, box, tmp_path
):
    with pytest.raises(error, match=problem):
        wrap_binary(
            box(make_quantized(**fields)), tmp_path / "n_ctx.onnx", as_float=True
        )


def test_a_name_that_a_constant_needs_is_refused(box, tmp_path):
    graph = make_quantized()
    graph["inputs"] = [*graph["inputs"], {"name": "x_quantized_scale"}]
    with pytest.raises(InvalidArgument, match="two values would have the name"):
        wrap_binary(box(graph), tmp_path / "n_ctx.onnx", as_float=True)


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("missing/n_ctx.onnx", "lies in a folder that does not exist"),
        ("net.box", "has the name of the binary"),
        (".", "is a folder"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(output, problem, box, tmp_path):
    with pytest.raises(InvalidArgument, match=problem):
        wrap_binary(box(make_graph()), tmp_path / output)


def test_what_cannot_be_wrapped_is_refused_and_nothing_is_written(box, tmp_path):
    output = tmp_path / "net_ctx.onnx"
    with pytest.raises(
        NotImplementedByProvider, match="F8, which cannot be that of an input"
    ):
        tensor = {"name": "x", "type": "F8", "element_type": ""}
        wrap_binary(box(make_graph("main", [tensor])), output)
    with pytest.raises(NotImplementedByProvider, match="its graphs are not known"):
        wrap_binary(box(), output)
    (tmp_path / "other.bin").write_bytes(b"neither")
    with pytest.raises(NotImplementedByProvider, match="a file of no known format"):
        wrap_binary(tmp_path / "other.bin", output)
    with pytest.raises(NoSuchFile):
        wrap_binary(tmp_path / "missing.bin", output)
    assert not output.exists()
    assert {path.name for path in tmp_path.iterdir()} == {
        "installed",
        "net.box",
        "other.bin",
    }
