"""`epctx inspect` of a model that is not compiled."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.small_models import chain, saved

QUANTIZED = """
<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1], producer_name: "tool",
 producer_version: "3">
g (float[batch, 3] x, float[batch, seq, ?] z) => (float[batch, 3] y)
<float s = {0.5}, uint8 zero = {0}, int8[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
  q = QuantizeLinear(x, s, zero)
  d = DequantizeLinear(q, s, zero)
  m = MatMulInteger(q, w)
  c = com.microsoft.QLinearSoftmax(q)
  y = Relu(d)
}
"""


@pytest.fixture
def quantized(model):
    return model(QUANTIZED, "quantized.onnx")


def test_versions_and_producer_are_shown(epctx, quantized):
    said = epctx("inspect", quantized)

    first = said.out.splitlines()[0]
    assert said.code == 0
    assert first.endswith(
        "quantized.onnx: 5 nodes, no EPContext node, written by tool 3"
    )
    assert "IR version 9, opsets: ai.onnx 17, com.microsoft 1" in said.out


def test_operators_are_counted_with_those_of_subgraphs(epctx, model):
    path = model(
        """
        <ir_version: 9, opset_import: ["" : 17]>
        g (bool c, float[3] x) => (float[3] y) {
            a = Relu(x)
            y = If (c) <
                then_branch = yes () => (float[3] p) { p = Relu(a) },
                else_branch = no () => (float[3] q) { q = Erf(a) }
            >
        }
        """
    )

    said = epctx("inspect", path, "--json").json

    assert said["operators"] == {"Relu": 2, "If": 1, "Erf": 1}
    assert next(iter(said["operators"])) == "Relu"
    assert said["subgraphs"] == 2
    assert "2 subgraphs" in epctx("inspect", path).out


def test_functions_are_counted_with_their_operators(epctx, model):
    path = model(
        """
        <ir_version: 9, opset_import: ["" : 17, "own" : 1]>
        g (float[3] x) => (float[3] y) { a = own.twice(x) y = own.twice(a) }
        <domain: "own", opset_import: ["" : 17]>
        twice (x) => (y) { y = Add(x, x) }
        """
    )

    said = epctx("inspect", path, "--json").json

    assert said["operators"] == {"own::twice": 2, "Add": 1}
    assert said["functions"] == 1


def test_many_operators_are_cut_and_verbose_has_all(epctx, tmp_path):
    kinds = [
        "Abs",
        "Acos",
        "Asin",
        "Atan",
        "Ceil",
        "Cos",
        "Cosh",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Neg",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Tan",
        "Tanh",
    ]
    path = saved(chain(kinds), tmp_path / "many.onnx")

    said = epctx("inspect", path)
    detailed = epctx("inspect", path, "-v")

    assert "and 4 operators of 4 nodes; see -v" in said.out
    assert "Tanh" not in said.out
    assert "Tanh" in detailed.out
    assert "see -v" not in detailed.out


def test_open_dimensions_are_named(epctx, quantized):
    said = epctx("inspect", quantized)

    assert "Open dimensions of inputs: batch, seq and 1 without a name" in said.out
    assert "onnxruntime.tools.make_dynamic_shape_fixed" in said.out
    assert epctx("inspect", quantized, "--json").json["open_dimensions"] == [
        "batch",
        "seq",
        "?",
    ]


def test_operators_of_quantization_are_listed(epctx, quantized):
    said = epctx("inspect", quantized, "--json").json

    assert said["quantization"] == {
        "QuantizeLinear": 1,
        "DequantizeLinear": 1,
        "MatMulInteger": 1,
        "com.microsoft::QLinearSoftmax": 1,
    }


def test_a_model_without_quantization_has_no_such_table(epctx, resnet):
    assert "quantization" not in epctx("inspect", resnet.path).out
    assert epctx("inspect", resnet.path, "--json").json["quantization"] == {}


def test_weights_are_counted_by_type(epctx, quantized):
    said = epctx("inspect", quantized, "--json").json

    assert (said["parameters"], said["weight_bytes"]) == (11, 14)
    assert said["weight_types"] == {
        "float": {"weights": 1, "parameters": 1, "bytes": 4},
        "uint8": {"weights": 1, "parameters": 1, "bytes": 1},
        "int8": {"weights": 1, "parameters": 9, "bytes": 9},
    }


def test_the_largest_weights_come_first(epctx, resnet):
    said = epctx("inspect", resnet.path, "--json").json

    sizes = {
        tensor.name: numpy_helper.to_array(tensor).nbytes
        for tensor in onnx.load(resnet.path).graph.initializer
    }
    largest = sorted(sizes.values(), reverse=True)[:5]
    assert [weight["bytes"] for weight in said["largest_weights"]] == largest
    assert all(
        sizes[weight["name"]] == weight["bytes"] for weight in said["largest_weights"]
    )
    assert said["weight_bytes"] == sum(sizes.values())


@pytest.mark.parametrize(
    ("kind", "count", "size"),
    [
        (TensorProto.INT4, 5, 3),
        (TensorProto.UINT2, 5, 2),
        (TensorProto.BFLOAT16, 5, 10),
        (TensorProto.COMPLEX64, 5, 40),
        (TensorProto.BOOL, 5, 5),
    ],
)
def test_the_size_of_a_weight_follows_from_its_type(epctx, tmp_path, kind, count, size):
    proto = chain(["Relu"])
    weight = TensorProto(name="w", data_type=kind, dims=[count], raw_data=bytes(size))
    proto.graph.initializer.append(weight)

    said = epctx("inspect", saved(proto, tmp_path / "m.onnx"), "--json").json

    assert said["weight_bytes"] == size


def test_a_type_that_is_unknown_here_is_shown_by_its_number(epctx, tmp_path):
    proto = chain(["Relu"])
    proto.graph.initializer.add(name="w", data_type=99, dims=[2], raw_data=b"abc")

    said = epctx("inspect", saved(proto, tmp_path / "m.onnx"))

    assert said.code == 0
    assert "type 99" in said.out


def test_weights_in_constant_nodes_count(epctx, tmp_path):
    proto = chain(["Relu"])
    array = numpy_helper.from_array(np.ones((4, 4), np.float32))
    proto.graph.node.append(helper.make_node("Constant", [], ["k"], value=array))

    (weight,) = epctx("inspect", saved(proto, tmp_path / "m.onnx"), "--json").json[
        "largest_weights"
    ]

    assert weight == {"name": "k", "type": "float", "shape": [4, 4], "bytes": 64}


def test_weights_beyond_two_gib_are_counted_without_reading_their_file(epctx, tmp_path):
    proto = chain(["Relu"])
    weight = proto.graph.initializer.add(
        name="huge",
        data_type=TensorProto.FLOAT16,
        dims=[1 << 20, 1 << 12],
        data_location=TensorProto.EXTERNAL,
    )
    weight.external_data.add(key="location", value="huge.bin")
    path = saved(proto, tmp_path / "m.onnx")

    said = epctx("inspect", path)

    assert said.code == 0
    assert (
        "1 weight (1 in a file of its own): 4,294,967,296 parameters, 8.0 GiB"
        in said.out
    )
    assert "huge.bin" in said.err  # the file is missing, and that is a warning
    assert epctx("inspect", path, "--json").json["external_weights"] == 1


def test_a_context_model_has_none_of_these_facts(epctx, compiled):
    said = epctx("inspect", compiled)

    assert "IR version" not in said.out
    assert "operators" not in epctx("inspect", compiled, "--json").json


def test_a_model_of_another_format_is_described_without_them(epctx, tmp_path):
    source = saved(chain(["Relu"]), tmp_path / "m.onnx")
    assert epctx("convert", source, tmp_path / "m.ort").code == 0

    said = epctx("inspect", tmp_path / "m.ort")

    assert said.code == 0
    assert "1 node, no EPContext node" in said.out
    assert "IR version" not in said.out


def test_names_of_a_plain_model_cannot_steer_the_terminal(epctx, tmp_path):
    forged = "x\nIR version 99\x1b[2J\u202e"
    proto = chain(["Add"])
    proto.graph.node[0].input[1] = proto.graph.initializer[0].name = forged
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = forged
    proto.graph.node.add(op_type=forged, domain=forged, output=["u"])
    proto.opset_import.add(domain=forged, version=1)

    said = epctx("inspect", saved(proto, tmp_path / "m.onnx"))

    assert said.code == 0
    assert "\\x1b[2J" in said.out
    assert all(line.isprintable() for line in said.out.split("\n"))
    assert not any(line.startswith("IR version 99") for line in said.out.split("\n"))


def test_the_report_of_a_small_network_fits_80_columns(epctx, quantized, monkeypatch):
    monkeypatch.chdir(quantized.parent)

    said = epctx("inspect", quantized.name)

    assert max(map(len, said.out.splitlines())) <= 80


@pytest.mark.parametrize("rank", [3, 300])
def test_a_shape_that_no_memory_holds_has_no_size(epctx, tmp_path, rank):
    proto = chain(["Relu"])
    proto.graph.initializer.add(
        name="huge", data_type=TensorProto.FLOAT, dims=[1 << 62] * rank
    )
    path = saved(proto, tmp_path / "m.onnx")

    said = epctx("inspect", path)
    as_json = epctx("inspect", path, "--json").json

    (row,) = (line for line in said.out.splitlines() if line.startswith("  huge "))
    assert said.code == 0
    assert row.split()[-1] == "-"
    assert (as_json["parameters"], as_json["weight_bytes"]) == (0, 0)
    assert as_json["largest_weights"][0]["shape"] == [1 << 62] * rank


def test_a_shape_of_very_many_lengths_is_soon_read(epctx, tmp_path):
    proto = chain(["Relu"])
    proto.graph.initializer.add(
        name="huge", data_type=TensorProto.FLOAT, dims=[1 << 62] * 500_000
    )
    path = saved(proto, tmp_path / "m.onnx")

    assert epctx("inspect", path, "--json").json["weight_bytes"] == 0


def test_many_inputs_are_cut_and_verbose_has_all(epctx, tmp_path):
    names = [f"x{index}" for index in range(50)]
    graph = helper.make_graph(
        [helper.make_node("Sum", names, ["y"])],
        "many",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"n_of_{name}"])
            for name in names
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    path = saved(helper.make_model(graph), tmp_path / "many.onnx")

    said = epctx("inspect", path)
    detailed = epctx("inspect", path, "-v")

    assert "  and 30 more inputs; see -v" in said.out.splitlines()
    assert "n_of_x19 and 30 more; see -v" in said.out
    assert "x20" not in said.out
    assert "output  y" in said.out
    assert detailed.out.count("n_of_x49") == 2
    assert "see -v" not in detailed.out
