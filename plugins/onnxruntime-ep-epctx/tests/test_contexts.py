"""Context models between onnxruntime and epctx, both ways."""

from __future__ import annotations

import json

import pytest
from programs import run_program
from support.agreement import TOLERANCE

PROGRAM = """
import os
import context_cases, numpy_ep
# A sanitizer (`make bridge`) takes more memory than an isolated process may.
os.environ.pop("LD_PRELOAD", None)
numpy_ep.register()
context_cases.{}()
"""
ROUTES = ["session", "compiler", "epctx"]
FORMS = ["embedded", "external"]
NODES = {
    "sums": ["Numpy"],
    "around": ["QNN", "QNN"],
    "two EPs": ["QNN", "OpenVINO", "QNN"],
    "lstm": ["QNN"],
    "bert": ["OpenVINO"] * 6,
    "resnet_int8": ["VitisAI"],
}
BINARIES = {
    "sums": ["m_NumpyExecutionProvider_NumpyExecutionProvider_2edd249405c8de73_0.bin"],
    "around": ["m_qnn.bin"],
    "two EPs": ["m_OpenVINOExecutionProvider.bin", "m_qnn.bin"],
    "lstm": ["m_qnn.bin"],
    "bert": ["m_OpenVINOExecutionProvider.bin"],
    "resnet_int8": ["m_vitisai.bin"],
}


def find(function):
    return json.loads(run_program(PROGRAM.format(function)))


@pytest.fixture(scope="module")
def routes():
    return find("report_routes")


@pytest.fixture(scope="module")
def special():
    return find("report_special")


def is_right(found):
    return found["onnxruntime"] and found["epctx"] and found["verified"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", NODES)
def test_a_context_model_runs_in_both_hosts_as_its_source_does(
    routes, name, route, form
):
    found = routes[f"{name} {route} {form}"]

    assert found["error"] <= TOLERANCE
    assert found["onnxruntime"], "loaded by onnxruntime"
    assert found["epctx"], "loaded by epctx"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", NODES)
def test_nothing_is_wrong_with_a_context_model(routes, name, route, form):
    assert routes[f"{name} {route} {form}"]["verified"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", NODES)
def test_payloads_lie_in_the_model_or_beside_it(routes, name, route, form):
    found = routes[f"{name} {route} {form}"]
    binaries = BINARIES[name] if form == "external" else []

    assert found["files"] == sorted([*binaries, "m_ctx.onnx"])
    assert {each["embedded"] for each in found["nodes"]} == {int(form == "embedded")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", [name for name in NODES if name != "lstm"])
def test_each_partition_is_a_node_of_its_ep(routes, name, route, form):
    found = routes[f"{name} {route} {form}"]

    sources = [
        each["source"].removesuffix("ExecutionProvider") for each in found["nodes"]
    ]
    assert sources == NODES[name]


@pytest.mark.parametrize("name", NODES)
def test_a_context_model_of_bytes_runs_in_both_hosts(routes, name):
    found = routes[f"{name} bytes"]

    assert is_right(found)
    assert found["files"] == ["model.onnx"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", ROUTES)
def test_partitions_refer_to_one_payload(routes, route, form):
    nodes = routes[f"around {route} {form}"]["nodes"]

    assert [each["main"] for each in nodes] == [1, 0]


def test_values_are_written_in_the_order_of_the_partition(special):
    found = special["orders"]
    given = sorted(found["given"], key=sorted)
    written = sorted(found["written"], key=sorted)

    assert [sorted(names) for names in given] == [sorted(names) for names in written]
    assert given != written, "onnxruntime has an order of its own"
    assert is_right(found)


@pytest.mark.parametrize("route", ["session", "compiler"])
def test_partitions_have_a_prefix_and_nodes_the_names_of_onnxruntime(special, route):
    found = special["prefix"][route]

    assert all(each["partition"].startswith("left_QNN") for each in found["nodes"])
    assert all(each["name"].startswith("QNN") for each in found["nodes"])
    assert is_right(found)


@pytest.mark.parametrize("form", FORMS)
def test_a_node_in_a_branch_is_loaded(special, form):
    found = special["if"][form]

    assert found["nodes"] > 0
    assert found["same"] == [True, True]


@pytest.mark.parametrize("form", FORMS)
def test_a_branch_stays_as_it_is_in_a_context_model_of_onnxruntime(special, form):
    found = special["if_by_session"][form]
    binaries = ["m_qnn.bin"] if form == "external" else []

    assert found["files"] == ["m_ctx.onnx", *binaries]
    assert [len(each["nodes"]) for each in found["hosts"]] == [1, 1]
    assert all(map(is_right, found["hosts"]))


def test_no_payload_is_left_of_branches_that_onnxruntime_does_not_write(special):
    found = special["only_inside"]

    assert not any(name.endswith(".bin") for name in found["files"])
    assert found["same"] == [True, True]


@pytest.mark.parametrize("route", ["session", "epctx"])
def test_an_input_of_a_node_may_be_an_initializer(special, route):
    assert is_right(special["initializer"][route])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", ["session", "compiler"])
def test_a_context_model_is_compiled_to_another_in_its_folder(special, route, form):
    found = special["again"][f"{route} {form}"]

    assert is_right(found)
    binaries = ["m_qnn.bin"] if form == "external" else []
    assert found["files"] == sorted([f"{route}.onnx", "m_ctx.onnx", *binaries])


def test_a_context_model_is_not_parted_from_its_payloads(special):
    found = special["elsewhere"]

    assert "its payloads lie in another folder" in found["error"]
    assert found["files"] == []


@pytest.mark.parametrize("route", ["session", "compiler"])
def test_a_second_compile_is_refused_until_the_model_of_the_first_is_gone(
    special, route
):
    found = special["over"][route]

    assert "m_ctx.onnx" in found["refusal"]
    assert found["kept"]
    assert found["files"] == [["m_ctx.onnx", "m_qnn.bin"]] * 2
    assert found["changed"] == ["m_ctx.onnx", "m_qnn.bin"]
    assert is_right(found)


def test_a_compile_over_another_says_that_its_model_is_to_be_removed(special):
    refusal = special["over"]["compiler"]["refusal"]

    # By the session's option onnxruntime itself refuses, and says the same.
    assert "remove the EP context model" in special["over"]["session"]["refusal"]
    assert "'m_qnn.bin'" in refusal
    assert "Remove the model that the file belongs to" in refusal
    assert "share group" not in refusal, "which onnxruntime has no place for"


def test_models_in_one_folder_have_their_own_payloads(special):
    found = special["beside"]

    assert found["files"] == ["a_ctx.onnx", "a_qnn.bin", "b_ctx.onnx", "b_qnn.bin"]
    assert all(map(is_right, found["models"]))


@pytest.mark.parametrize("route", ["session", "compiler"])
def test_a_payload_of_another_model_is_not_replaced(special, route):
    found = special["foreign"][route]

    assert "'m_qnn.bin'" in found["error"]
    assert "belongs to 'm_ctx.onnx'" in found["error"]
    assert found["kept"]


@pytest.mark.parametrize("again", ["", " again"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("route", ["session", "epctx"])
def test_both_hosts_refuse_a_payload_that_was_changed(special, route, form, again):
    found = special["damaged"][f"{route} {form}{again}"]

    for host in ("onnxruntime", "epctx"):
        assert "is not the one that the model was written with" in found[host]
    assert not found["verified"]
