"""Runs of EPs inside onnxruntime: results are those that it has without them."""

from __future__ import annotations

import json
from itertools import chain

import pytest
from programs import run_program
from support.agreement import TOLERANCE

QNN, OPENVINO, VITISAI, NUMPY, INNER = (
    f"{name}ExecutionProvider"
    for name in ("QNN", "OpenVINO", "VitisAI", "Numpy", "Inner")
)
PROGRAM = """
import numpy_ep, running_cases
numpy_ep.register()
running_cases.{}()
"""


def find(function):
    return json.loads(run_program(PROGRAM.format(function)))


@pytest.fixture(scope="module")
def networks():
    return find("report_networks")


@pytest.fixture(scope="module")
def control():
    return find("report_control")


@pytest.fixture(scope="module")
def values():
    return find("values.report")


@pytest.fixture(scope="module")
def sessions():
    return find("sessions.report")


DEVICES = [
    QNN,
    *(f"{OPENVINO} {device}" for device in ("CPU", "GPU", "NPU")),
    VITISAI,
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["resnet", "bert", "lstm", "resnet_int8"])
def test_a_network_gives_what_onnxruntime_gives(networks, name, device):
    assert networks[f"{name} {device}"]["error"] <= TOLERANCE


@pytest.mark.parametrize("device", DEVICES)
def test_a_quantised_network_gives_the_same_bits_as_onnxruntime(networks, device):
    assert networks[f"resnet_int8 {device}"]["same as onnxruntime"]


@pytest.mark.parametrize(
    ("name", "device"),
    [
        (name, device)
        for name in ("resnet", "bert", "lstm", "resnet_int8")
        for device in DEVICES
        if device != VITISAI or name == "resnet_int8"
    ],
)
def test_a_network_gives_the_same_bits_as_a_session_of_epctx_on_the_same_graph(
    networks, name, device
):
    found = networks[f"{name} {device}"]

    assert found["taken"]
    assert found["same as epctx"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["resnet", "bert", "lstm", "resnet_int8"])
def test_an_ep_takes_the_partitions_that_epctx_explains(networks, name, device):
    found = networks[f"{name} {device}"]

    assert found["taken"] == found["explained"]


@pytest.mark.parametrize(
    ("name", "taken"), [("If", ["abs", "if"]), ("Loop", ["loop"]), ("Scan", ["scan"])]
)
def test_control_flow_is_taken_whole(control, name, taken):
    found = control[f"{name} {NUMPY}"]

    assert sorted(chain.from_iterable(found["taken"])) == taken
    assert found["same"]


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        (
            "If",
            [
                ["abs"],
                ["inside_Add", "inside_neg_Add"],
                ["inside_Mul", "inside_neg_Mul"],
            ],
        ),
        ("Loop", [["inside_add", "inside_go", "inside_mul"]]),
        ("Scan", [["inside_add", "inside_mul", "inside_neg"]]),
    ],
)
def test_nodes_inside_control_flow_are_taken(control, name, taken):
    found = control[f"{name} {INNER}"]

    assert sorted(sorted(names) for names in found["taken"]) == taken
    assert found["same"]


@pytest.mark.parametrize("ep", [QNN, OPENVINO])
@pytest.mark.parametrize("name", ["If", "Loop", "Scan"])
def test_an_ep_that_compiles_main_graphs_only_takes_nothing_inside(control, name, ep):
    found = control[f"{name} {ep}"]

    taken = list(chain.from_iterable(found["taken"]))
    assert not any(node.startswith("inside") for node in taken)
    assert found["same"]


@pytest.mark.parametrize(
    ("case", "taken"),
    [
        ("open_batch", ["matmul", "relu"]),
        ("shape_of_values", ["nonzero", "transpose"]),
        ("inputs_left_out", ["clip", "neg"]),
        ("default_inputs", ["mul"]),
        ("output_read_inside", ["neg", "mul"]),
        ("one_tensor_twice", ["sub", "mul", "add"]),
        ("folded_constants", ["mul"]),
    ],
)
def test_a_partition_gives_what_onnxruntime_gives(values, case, taken):
    assert values[case] == {"taken": [taken], "same": True}


def test_tensors_have_up_to_twelve_axes(values):
    assert values["ranks"] == [{"taken": [["neg"]], "same": True}] * 26


def test_tensors_may_have_no_elements(values):
    assert values["zero_sizes"] == [{"taken": [["neg", "add"]], "same": True}] * 6


def test_a_partition_has_forty_inputs_and_outputs(values):
    found = values["many_inputs_and_outputs"]

    assert [len(names) for names in found["taken"]] == [40]
    assert found["same"]


@pytest.mark.parametrize(
    "name",
    [
        "BOOL",
        "INT8",
        "UINT8",
        "INT16",
        "UINT16",
        "INT32",
        "UINT32",
        "INT64",
        "UINT64",
        "FLOAT16",
        "DOUBLE",
        "BFLOAT16",
    ],
)
def test_a_partition_takes_and_gives_elements_of_a_type(values, name):
    assert values["types_of_boundaries"][name] == {
        "taken": [["cast", "abs", "cast_back"]],
        "same": True,
    }


@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4"])
def test_elements_below_eight_bits_and_their_like_stay_on_the_cpu(values, name):
    assert values["types_of_boundaries"][name] == {"taken": [["abs"]], "same": True}


def test_text_stays_on_the_cpu(values):
    assert values["strings"] == {"taken": [["neg"]], "same": True}


def test_branches_run_at_the_same_time(sessions):
    found = sessions["parallel"]

    assert all(found["partitions"].values())
    assert found["wrong"] == 0


def test_two_eps_share_a_session(sessions):
    found = sessions["two_eps"]

    assert found[f"{QNN} {OPENVINO}"]["taken"] == [
        [["gemm"], ["isnan", "where", "neg"]],
        [["erf"]],
    ]
    assert found[f"{NUMPY} {QNN}"]["taken"] == [
        [["gemm"], ["neg"]],
        [["isnan", "where"]],
    ]
    assert {each["error"] for each in found.values()} == {0.0}


def test_bound_memory_is_read_and_written(sessions):
    assert sessions["bindings"] == [True] * 6
