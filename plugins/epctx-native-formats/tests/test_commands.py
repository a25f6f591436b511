"""`epctx inspect` and `epctx wrap` of vendors' binaries."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from support.folders import REAL

from epctx_core import inspect_model

HERE = Path(__file__).parent
QUANTIZATION = {"scales": [0.5], "zero_points": [3]}
GRAPH = {
    "name": "main",
    "inputs": [{"name": "x", "type": "Q8", "element_type": "UINT8"}],
    "outputs": [{"name": "y"}],
}
GRAPH["inputs"][0]["quantization"] = QUANTIZATION


@pytest.fixture
def epctx(tmp_path):
    """Return a function that runs `epctx` with the format of `boxed_format`."""
    info = tmp_path / "installed" / "boxed-1.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text("Name: boxed\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text(
        "[epctx.native_formats]\nboxed = boxed_format\n"
    )
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (info.parent, HERE))),
        "COLUMNS": "120",
    }

    def run(*arguments):
        return subprocess.run(
            [Path(sys.executable).with_name("epctx"), *map(str, arguments)],
            capture_output=True,
            check=False,
            cwd=tmp_path,
            env=env,
            text=True,
        )

    return run


@pytest.fixture
def binary(tmp_path):
    """Return the path of a binary with one graph."""
    path = tmp_path / "net.box"
    path.write_bytes(b"BOXD" + json.dumps([GRAPH]).encode())
    return path


def test_inspect_prints_the_graphs_of_a_binary(epctx, binary):
    done = epctx("inspect", binary)

    assert done.returncode == 0, done.stderr
    assert "boxed graphs" in done.stdout
    assert "made by box 1.0, for boxes" in done.stdout
    assert "Graph main:" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if "Q8[2,3]" in line]
    assert row.split() == [
        "input",
        "x",
        "Q8[2,3]",
        "scale",
        "0.5,",
        "zero",
        "point",
        "3",
    ]


def test_inspect_prints_the_description_as_json(epctx, binary):
    done = epctx("inspect", binary, "--json")

    result = json.loads(done.stdout)
    assert result["model"] == str(binary)
    (graph,) = result["binary"]["graphs"]
    assert graph["inputs"][0]["quantization"]["zero_points"] == [3]


@pytest.mark.parametrize("embedded", [False, True])
def test_inspect_describes_the_payloads_of_a_context_model(epctx, binary, embedded):
    flags = ["--embed"] if embedded else []
    done = epctx("wrap", binary, "-o", "net_ctx.onnx", *flags)
    assert done.returncode == 0, done.stderr
    assert "wrote net_ctx.onnx" in done.stdout

    done = epctx("inspect", "net_ctx.onnx", "--json")

    (name,) = json.loads(done.stdout)["binaries"]
    assert name == ("main" if embedded else "net.box")
    assert "Graph main:" in epctx("inspect", "net_ctx.onnx").stdout


def test_a_payload_that_cannot_be_read_is_named_with_the_reason(epctx):
    pytest.importorskip("onnx")
    done = epctx("inspect", REAL / "qnn_ctx0.onnx", "--json")

    result = json.loads(done.stdout)
    described = result["binaries"] or result["not_read"]
    # Qualcomm's library is not there, or describes it.
    assert [*described] == ["qnn_ctx0_qnn.bin"]


def test_wrap_renames_and_makes_values_float(epctx, binary, tmp_path):
    done = epctx("wrap", binary, "-o", "net_ctx.onnx", "--float", "--rename", "x=image")

    assert done.returncode == 0, done.stderr
    model = onnx.load(tmp_path / "net_ctx.onnx", load_external_data=False)
    assert [n.op_type for n in model.graph.node] == ["QuantizeLinear", "EPContext"]
    (value,) = model.graph.input
    assert value.name == "image"
    assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert inspect_model(tmp_path / "net_ctx.onnx").manifest.sealed is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rename", "x"), "--rename 'x' is not TENSOR=NAME"),
        (("--graph", "other"), "no graph 'other'"),
        (("--rename", "z=a"), "no tensor of the graphs has the name 'z'"),
    ],
)
def test_wrap_says_what_is_wrong_with_its_options(epctx, binary, arguments, said):
    done = epctx("wrap", binary, "-o", "net_ctx.onnx", *arguments)

    assert done.returncode == 2
    assert said in done.stderr
