"""Names out of models in reports: they forge no line and fill none."""

from __future__ import annotations

import re

import onnx
import pytest

FORGED = "FORGED: all is well"
NAME = f"\x1b[31mred\u202e\n{FORGED}\r{'n' * 5000}"


@pytest.fixture
def hostile(model):
    """A model all of whose names steer a terminal and are very long."""
    path = model(
        """
        <ir_version: 10, opset_import: ["" : 17]>
        g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1, 2}> {
            a = Mul(x, w)
            y = Relu(a)
        }
        """,
        "hostile.onnx",
    )
    proto = onnx.load(path)
    rename(proto.graph)
    proto.producer_name = NAME
    onnx.save(proto, path)
    return path


def rename(graph):
    """Give every value and node a name of its own with `NAME` in it."""
    names = {old: f"{NAME}{old}" for old in "xyaw"}
    for node in graph.node:
        node.name = f"{NAME}{node.op_type}"
        node.input[:] = [names[name] for name in node.input]
        node.output[:] = [names[name] for name in node.output]
    for value in (*graph.input, *graph.output):
        value.name = names[value.name]
        value.type.tensor_type.shape.dim[0].dim_param = NAME
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]


COMMANDS = (
    "inspect MODEL",
    "inspect MODEL -v",
    "explain MODEL --ep QNN",
    "explain MODEL --ep QNN -v",
    "run MODEL",
    "compare MODEL MODEL",
    "compare MODEL OTHER",
    "compile MODEL --ep QNN -o OUT",
    "compile MODEL --ep QNN -o OUT --check -v",
    "share MODEL --ep QNN -o OUT",
    "verify MODEL",
    "convert MODEL -o OUT/converted.ort",
    "extract MODEL -o OUT",
    "embed MODEL -o OUT/embedded.onnx",
    "seal MODEL",
    "diff MODEL OTHER",
    "report MODEL --ep QNN -o OUT/page.html",
    "bench MODEL --ep QNN --quick",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_name_forges_a_line(epctx, hostile, tmp_path, command):
    other = onnx.load(hostile)
    other.graph.node[1].op_type = "Neg"
    onnx.save(other, tmp_path / "other.onnx")
    (tmp_path / "out").mkdir()
    places = {"MODEL": hostile, "OTHER": tmp_path / "other.onnx"}

    said = epctx(
        *(
            places.get(word, word.replace("OUT", f"{tmp_path}/out"))
            for word in command.split()
        )
    )

    lines = re.split(r"[\n\r]", f"{said.out}{said.err}")
    assert len(lines) > 1
    assert "\x1b" not in said.out + said.err
    assert "\u202e" not in said.out + said.err
    assert [line for line in lines if line.lstrip().startswith(FORGED)] == []


@pytest.mark.parametrize("command", ["run MODEL", "compare MODEL MODEL"])
def test_a_long_name_is_cut_in_prose(epctx, hostile, command):
    said = epctx(*(hostile if word == "MODEL" else word for word in command.split()))

    (line,) = (line for line in said.out.splitlines() if "made from seed" in line)
    assert len(line) < 320
