"""`epctx compare`."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.faulty_ep import FaultyProvider

import epctx_core


def scaled(path, name, factor, *, operator="Conv"):
    """Write a copy whose third weight of an operator is another one."""
    proto = onnx.load(path)
    wanted = [node.input[1] for node in proto.graph.node if node.op_type == operator][2]
    tensor = next(t for t in proto.graph.initializer if t.name == wanted)
    changed = onnx.numpy_helper.to_array(tensor) * np.float32(factor)
    tensor.CopyFrom(onnx.numpy_helper.from_array(changed, wanted))
    target = path.with_name(name)
    onnx.save(proto, target)
    return target, next(n for n in proto.graph.node if wanted in n.input)


def test_a_context_model_equals_its_source(epctx, compiled):
    said = epctx("compare", compiled, compiled.with_name("resnet.onnx"), "--json")

    answer = said.json
    assert said.code == 0
    assert answer["equal"] is True
    assert [
        (o["name"], o["max_abs"] < 1e-4, o["max_rel"] < 1e-4) for o in answer["outputs"]
    ] == [("relu_16", True, True)]
    assert [m["providers"][0] for m in answer["models"]] == [
        "QNNExecutionProvider",
        "CPUExecutionProvider",
    ]


def test_a_comparison_with_a_simulated_ep_says_so(epctx, compiled):
    said = epctx("compare", compiled, compiled.with_name("resnet.onnx"))

    assert "Simulated: QNNExecutionProvider computes on this CPU" in said.out


def test_models_that_differ_fail_and_the_first_difference_inside_is_found(
    epctx, resnet
):
    other, culprit = scaled(resnet.path, "other.onnx", 1.01)

    said = epctx("compare", resnet.path, other)
    answer = epctx("compare", resnet.path, other, "--json").json

    assert said.code == 1
    assert "DIFFERENT" in said.out
    assert "They differ first in the output 'relu_16', at [" in said.out
    assert f"Conv {culprit.name!r}" in said.out
    assert answer["equal"] is False
    assert answer["outputs"][0]["max_abs"] > 1e-3
    assert answer["first_inside"]["name"] == culprit.output[0]


def test_the_first_difference_of_a_context_model_is_found_between_its_partitions(
    epctx, network
):
    lstm = network("lstm")
    epctx(
        *("compile", lstm.path, "--ep", "QNN", "--optimize", "none"),
        *("-p", "QNN.enable_htp_fp16_precision=1"),
    )

    answer = epctx(
        "compare", lstm.path.with_name("lstm_ctx.onnx"), lstm.path, "--json"
    ).json

    assert answer["equal"] is False
    assert answer["first_inside"]["from_a"].startswith(
        "EPContext 'QNNExecutionProvider_"
    )
    assert answer["first_inside"]["compared"] > 1


@pytest.mark.parametrize("flags", [["--rtol", "0.1"], ["--atol", "100"]])
def test_a_tolerance_that_is_wide_enough_makes_them_equal(epctx, resnet, flags):
    other, _ = scaled(resnet.path, "other.onnx", 1.01)

    said = epctx("compare", resnet.path, other, *flags)

    assert said.code == 0
    assert "Equal" in said.out


def test_ep_applies_to_both(epctx, resnet):
    said = epctx("compare", resnet.path, resnet.path, "--ep", "QNN", "--json")

    assert [m["providers"][0] for m in said.json["models"]] == [
        "QNNExecutionProvider"
    ] * 2


def test_inputs_come_from_a_file_if_one_is_given(epctx, model, tmp_path):
    a, b = model("y = Relu(x)", "a.onnx"), model("y = Abs(x)", "b.onnx")
    np.savez(tmp_path / "positive.npz", x=np.ones((1, 3), np.float32))
    np.savez(tmp_path / "negative.npz", x=np.array([[1, 1, -2]], np.float32))

    same = epctx("compare", a, b, "--input", tmp_path / "positive.npz")
    other = epctx("compare", a, b, "--input", tmp_path / "negative.npz", "--json")

    assert same.code == 0
    assert other.code == 1
    assert other.json["outputs"][0]["first"] == {"index": [0, 2], "a": 0.0, "b": 2.0}


def test_an_output_that_only_one_has_differs(epctx, model):
    a, b = model("y = Relu(x)", "a.onnx"), model("y = Relu(x)", "b.onnx")
    proto = onnx.load(b)
    proto.graph.node[0].output[0] = proto.graph.output[0].name = "z"
    onnx.save(proto, b)

    said = epctx("compare", a, b, "--json")

    assert said.code == 1
    assert [(o["name"], o["equal"], o["max_abs"]) for o in said.json["outputs"]] == [
        ("y", False, None),
        ("z", False, None),
    ]


def test_models_with_other_inputs_are_wrong_usage(epctx, model, resnet):
    said = epctx("compare", model("y = Relu(x)"), resnet.path)

    assert said.code == 2
    assert "no input 'x'" in said.err


@pytest.mark.parametrize(
    "flags", [["--atol", "-1"], ["--rtol", "nan"], ["--atol", "much"]]
)
def test_a_tolerance_must_be_a_number_from_zero(epctx, model, flags):
    path = model("y = Relu(x)")

    said = epctx("compare", path, path, *flags)

    assert said.code == 2
    assert flags[0] in said.err


def test_external_weights_are_found_when_looking_inside(epctx, resnet):
    other, culprit = scaled(resnet.path, "other.onnx", 1.01)
    onnx.save(
        onnx.load(other),
        other,
        save_as_external_data=True,
        location="w.bin",
        size_threshold=1024,
    )

    answer = epctx("compare", other, resnet.path, "--json").json

    assert answer["first_inside"]["name"] == culprit.output[0]


def test_models_in_onnxruntimes_own_format_are_compared_by_their_outputs(
    epctx, model, tmp_path
):
    a, b = model("y = Relu(x)", "a.onnx"), model("y = Abs(x)", "b.onnx")
    stored = [
        epctx_core.convert_model(path, tmp_path / f"{path.stem}.ort") for path in (a, b)
    ]

    said = epctx("compare", *stored)

    assert (said.code, said.err) == (1, "")
    assert "They differ first in the output 'y'" in said.out


def compile_lstm(epctx, network):
    """Compile a network of several partitions with weights in float16."""
    lstm = network("lstm")
    epctx(
        *("compile", lstm.path, "--ep", "QNN", "--optimize", "none"),
        *("-p", "QNN.enable_htp_fp16_precision=1"),
    )
    return lstm.path.with_name("lstm_ctx.onnx"), lstm.path


def test_errors_are_shown_by_partition_and_the_worst_is_reduced(
    epctx, network, tmp_path
):
    context, source = compile_lstm(epctx, network)
    folder = tmp_path / "smallest"
    command = (
        *("compare", context, source, "--by-partition"),
        *("--ep", "QNN", "-p", "QNN.enable_htp_fp16_precision=1"),
    )

    answer = epctx(*command, "--json").json
    said = epctx(*command, "--reduce", folder)

    rows = answer["by_partition"]["rows"]
    ratios = [row["own"]["worst"]["snr_db"] for row in rows]
    largest = rows[0]["own"]["worst"]["max_rel"]
    assert ratios == sorted(ratios)
    assert 0 < largest < 0.005
    assert rows[0]["ep"] == "QNNExecutionProvider"
    assert "reduction" not in answer
    assert rows[0]["partition"] in said.out
    assert "QNNExecutionProvider has an error of" in said.out
    again = epctx(
        *("compare", folder / "model_ctx.onnx", folder / "model.onnx", "--json"),
        *("--input", folder / "inputs.npz"),
    ).json
    assert again["outputs"][0]["max_rel"] > largest / 8


def test_partitions_are_compared_on_every_file_of_a_folder(epctx, compiled, tmp_path):
    source = compiled.with_name("resnet.onnx")
    shape = [
        each.dim_value
        for each in onnx.load(source).graph.input[0].type.tensor_type.shape.dim
    ]
    name = onnx.load(source).graph.input[0].name
    for seed in range(2):
        array = np.random.default_rng(seed).standard_normal(shape, np.float32)
        np.savez(tmp_path / f"{seed}.npz", **{name: array})

    answer = epctx(
        *("compare", compiled, source, "--by-partition", "--inputs", tmp_path),
        "--json",
    ).json

    assert answer["by_partition"]["inputs"] == 2
    assert answer["by_partition"]["uncompared"] == []
    assert answer["made_from_seed"] is None


BRANCHES = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x, bool c) => (float[2,3] y) {
  a = Relu (x)
  [pick] b = If (c) <
    then_branch = yes () => (float[2,3] p) { p = Relu(a) },
    else_branch = no () => (float[2,3] q) { q = Sigmoid(a) }
  >
  y = Sigmoid (b)
}
"""


def test_partitions_in_subgraphs_are_named_as_not_compared(epctx, tmp_path):
    source = tmp_path / "branches.onnx"
    onnx.save(onnx.parser.parse_model(BRANCHES), source)
    command = ("compare", source.with_name("branches_ctx.onnx"), source)

    with epctx_core.temporary_execution_provider(FaultyProvider):
        epctx("compile", source, "--ep", "Faulty")
        said = epctx(*command, "--by-partition")
        answer = epctx(*command, "--by-partition", "--json").json

    assert "2 partitions in subgraphs could not be compared" in said.err
    assert "pick.then_branch" in said.err
    found = answer["by_partition"]
    assert len(found["rows"]) == 2
    assert [each["body"] for each in found["uncompared"]] == [
        "pick.then_branch",
        "pick.else_branch",
    ]


def test_nothing_is_reduced_where_no_partition_has_an_error(epctx, model, tmp_path):
    source = model("y = Relu(x)", "a.onnx")
    epctx("compile", source, "--ep", "QNN", "--free-dimension", "N=1")
    context = source.with_name("a_ctx.onnx")

    said = epctx(
        "compare", context, source, "--by-partition", "--reduce", tmp_path / "r"
    )

    assert said.code == 0
    assert "No partition has an error of its own." in said.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--inputs", "x"], "--inputs has no effect without --by-partition"),
        (["--reduce", "x"], "--reduce has no effect without --by-partition"),
        (["--by-partition", "--inputs", "x", "--input", "y"], "exclude each other"),
        (["--by-partition", "--inputs", "nowhere"], "there are no .npz files"),
        (["--by-partition"], "no EPContext node"),
    ],
)
def test_options_of_partitions_that_cannot_be_used(epctx, model, flags, message):
    source = model("y = Relu(x)", "a.onnx")

    said = epctx("compare", source, source, *flags)

    assert said.code == 2
    assert message in said.err
