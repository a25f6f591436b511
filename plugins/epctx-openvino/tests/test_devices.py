"""Devices, options, and whether a machine can import what another compiled."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from epctx_openvino import OpenVINOExecutionProvider, native
from epctx_openvino.settings import OPTIONS
from onnx_models import FLOAT, single, two_partitions
from support.agreement import TOLERANCE, worst_relative_error
from support.typed_options import typed_options

import epctx_core as epctx
from epctx_core.errors import EPFail, InvalidArgument, InvalidGraph
from epctx_core.plugin import Compatibility, Purpose

pytestmark = pytest.mark.internal

RELU = single("Relu", {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])})
X = {"x": np.array([-1, 2, -3, 4], np.float32)}
EP = OpenVINOExecutionProvider
CPU = typed_options(EP, {})


def written_text():
    return json.loads(EP.get_compatibility_info((), CPU))


def test_the_cpu_is_found_and_is_available_for_every_purpose():
    assert "CPU" in native.list_devices()
    assert all(EP.availability(purpose).available for purpose in Purpose)


def test_without_a_device_the_reason_is_said(monkeypatch):
    monkeypatch.setattr("epctx_openvino.provider.list_devices", tuple)

    found = EP.availability(Purpose.RUN)

    assert (found.available, found.reason) == (False, "OpenVINO finds no device")


@pytest.mark.parametrize(
    "device", ["GPU.7", "NPU.7", "HETERO:NPU.7,CPU", "cpu", "AUTO:NPU.7"]
)
def test_a_device_that_is_not_there_is_named_with_those_that_are(harness_with, device):
    with pytest.raises(InvalidArgument, match="it finds CPU") as caught:
        harness_with(device_type=device).run(RELU, X)

    assert device in caught.value.message


@pytest.mark.parametrize(
    "device", ["CPU", "AUTO", "AUTO:CPU", "MULTI:CPU", "HETERO:CPU"]
)
def test_devices_and_modes_run_models(harness_with, device):
    assert harness_with(device_type=device).run(RELU, X)[0].tolist() == [0, 2, 0, 4]


def test_what_openvino_cannot_export_is_a_failed_compile(harness_with, compile_into):
    with pytest.raises(EPFail, match="does not export") as caught:
        compile_into(harness_with(device_type="AUTO"), RELU)

    assert "choose one device" in caught.value.hint


def test_hetero_exports_and_loads(harness_with, compile_into):
    harness = harness_with(device_type="HETERO:CPU")
    path, _ = compile_into(harness, RELU)

    assert harness.run(path, X)[0].tolist() == [0, 2, 0, 4]
    with pytest.raises(InvalidGraph):
        harness_with(device_type="CPU").run(path, X)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "FP32"},
        {"num_of_threads": "1"},
        {"num_streams": "2"},
        {"num_streams": "0"},
        {"load_config": '{"CPU": {"ENABLE_HYPER_THREADING": "NO"}}'},
        {"cache_dir": "somewhere"},
    ],
)
def test_options_reach_openvino_and_results_stay(harness_with, compile_into, options):
    harness = harness_with(**options)
    path, _ = compile_into(harness, two_partitions())
    x = {"x": np.ones((2, 32), np.float32)}

    np.testing.assert_allclose(
        harness.run(path, x)[0], harness.run(two_partitions(), x)[0], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"load_config": "[1]"}, "load_config is not a JSON object"),
        ({"load_config": "{"}, "load_config is not a JSON object"),
        ({"precision": "FP8"}, "allowed: ACCURACY, FP32, FP16, BF16"),
        ({"num_streams": "many"}, "needs a whole number"),
    ],
)
def test_a_bad_value_is_refused_before_anything_is_compiled(
    harness_with, options, fault
):
    with pytest.raises(InvalidArgument, match=fault):
        harness_with(**options).run(RELU, X)


def test_a_property_that_openvino_does_not_know_is_its_error(harness_with):
    with pytest.raises(EPFail, match="NO_SUCH_PROPERTY"):
        harness_with(load_config='{"CPU": {"NO_SUCH_PROPERTY": "1"}}').run(RELU, X)


def test_a_payload_is_loaded_with_the_precision_it_was_compiled_with(
    harness, harness_with, network
):
    """OpenVINO's programs do not hold it; a CPU with bfloat16 would compute in it where
    nothing is said.
    """
    source = network("resnet")
    context, _ = harness.compile(source.path)
    coarse, _ = harness_with(precision="BF16").compile(network("resnet").path)

    exact = harness_with(precision="BF16").run(context, source.inputs)
    rounded = harness.run(coarse, source.inputs)

    assert worst_relative_error(exact, source.reference) <= TOLERANCE
    if "BF16" in native.core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        assert worst_relative_error(rounded, source.reference) > TOLERANCE


def test_every_option_is_described_and_those_without_effect_say_so():
    assert all(option.doc for option in OPTIONS)
    assert {option.name for option in OPTIONS if not option.effect} == {
        "cache_dir", "enable_opencl_throttling", "enable_qdq_optimizer",
        "model_priority",
    }  # fmt: skip


def test_what_was_compiled_here_is_supported_here():
    text = json.dumps(written_text())

    assert EP.validate_compatibility(text, CPU) is Compatibility.EP_SUPPORTED_OPTIMAL


@pytest.mark.parametrize("change", [("ov=20", "ov=19"), ("isa=", "isa=Another ")])
def test_another_openvino_or_instruction_set_is_unsupported(change):
    text = json.dumps(written_text()).replace(*change)

    assert EP.validate_compatibility(text, CPU) is Compatibility.EP_UNSUPPORTED


@pytest.mark.parametrize(
    "text", ["", "{}", "no json", "[]", '{"ovep_compat_ver": "9.0"}', "[" * 100_000]
)
def test_a_text_of_another_ep_is_not_applicable(text):
    assert EP.validate_compatibility(text, CPU) is Compatibility.EP_NOT_APPLICABLE


def test_a_text_of_onnxruntimes_ep_is_judged():
    ours = written_text()
    theirs = {**ours, "ovep_ver": "1.8.1+95d534b.ci.79", "ovep_bin_ver": "1.1"}

    assert set(ours) == {
        "ovep_compat_ver",
        "ovep_ver",
        "ovep_bin_ver",
        "ov_compat_string",
    }
    assert (
        EP.validate_compatibility(json.dumps(theirs), CPU)
        is Compatibility.EP_SUPPORTED_OPTIMAL
    )


def test_a_model_of_another_version_is_refused_before_its_payload_is_opened(
    harness, compile_into
):
    path, _ = compile_into(harness, RELU)
    model = onnx.load(path)
    (entry,) = [
        e for e in model.metadata_props if e.key.startswith("ep_compatibility_info")
    ]
    entry.value = entry.value.replace("ov=20", "ov=19")
    onnx.save(model, path)
    path.with_name(f"net_{EP.name}.bin").unlink()

    with pytest.raises(InvalidGraph, match="does not support this compiled model"):
        harness.run(path, X)


def test_a_share_group_whose_programs_hold_their_own_weights_saved_nothing(
    harness, tmp_path
):
    with epctx.ShareGroup(tmp_path, registry=harness.registry) as group:
        for rows in (2, 3):
            path = tmp_path / f"{rows}.onnx"
            path.write_bytes(two_partitions(rows=rows))
            group.compile(path, harness.session_options())

    assert group.report.saved_bytes == 0


def test_a_share_group_has_one_binary(harness, tmp_path):
    with epctx.ShareGroup(tmp_path, registry=harness.registry) as group:
        for rows in (2, "n"):
            path = tmp_path / f"{rows}.onnx"
            path.write_bytes(two_partitions(rows=rows))
            group.compile(path, harness.session_options())

    contexts = sorted(tmp_path.glob("*_ctx.onnx"))
    x = {"x": np.ones((2, 32), np.float32)}

    assert len(contexts) == 2
    assert len(list(tmp_path.glob("*.bin"))) == 1
    np.testing.assert_allclose(
        harness.run(contexts[0], x)[0], harness.run(contexts[1], x)[0], rtol=1e-6
    )
