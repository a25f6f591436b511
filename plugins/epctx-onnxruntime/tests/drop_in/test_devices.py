"""Devices of EPs: listed, given to sessions, chosen by policies."""

from __future__ import annotations

import logging

import epctx_onnxruntime as onnxruntime
import numpy as np
import onnx.parser
import pytest

import epctx_core
from epctx_core.errors import InvalidArgument
from epctx_core.plugin import HardwareDevice

POLICY = onnxruntime.OrtExecutionProviderDevicePolicy
MODEL = onnx.parser.parse_model(
    '<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y) '
    "{ y = Relu (x) }"
).SerializeToString()


def devices_of(ep):
    return [d for d in onnxruntime.get_ep_devices() if d.ep_name.startswith(ep)]


def eps_of(options, **arguments):
    with onnxruntime.InferenceSession(MODEL, options, **arguments) as session:
        np.testing.assert_array_equal(
            session.run(None, {"x": np.array([-1, 1], np.float32)})[0], [0, 1]
        )
        return session.get_providers()


def ep_of(vendor, tell):
    """Return an EP that takes nothing, with what its `devices` gives."""

    class Told(epctx_core.plugin.ExecutionProvider):
        api_version = 1

        @classmethod
        def devices(cls):
            return tell()

        @epctx_core.plugin.hookimpl
        def get_capability(self, graph):
            return []

        @epctx_core.plugin.hookimpl
        def compile(self, partitions):
            return []

    Told.name, Told.vendor = f"{vendor}ExecutionProvider", vendor
    return Told


def test_every_usable_ep_has_devices_and_the_cpu_is_last():
    devices = onnxruntime.get_ep_devices()

    assert {device.ep_name for device in devices} == set(
        epctx_core.get_available_providers()
    )
    assert devices[-1].ep_name == "CPUExecutionProvider"
    assert devices[-1].device.type == onnxruntime.OrtHardwareDeviceType.CPU
    for device in devices[:-1]:
        assert device.ep_metadata["simulated"] == "1"
        assert device.device.metadata["virtual"] == "1"
        assert "simulated" in str(device)


def test_an_ep_of_several_devices_is_told_by_its_options():
    types = {d.device.type.name: d.ep_options for d in devices_of("OpenVINO")}

    assert types == {kind: {"device_type": kind} for kind in ("NPU", "GPU", "CPU")}


def test_a_session_uses_the_ep_of_the_devices_it_is_given():
    (gpu,) = [d for d in devices_of("OpenVINO") if d.device.type.name == "GPU"]
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices([gpu], {"precision": "FP32"})

    with onnxruntime.InferenceSession(MODEL, options) as session:
        assert session.get_providers()[0] == "OpenVINOExecutionProvider"
        given = session.get_provider_options()["OpenVINOExecutionProvider"]
    assert (given["device_type"], given["precision"]) == ("GPU", "FP32")


def test_devices_that_do_not_go_together_are_refused():
    options = onnxruntime.SessionOptions()
    qnn, openvino = devices_of("QNN"), devices_of("OpenVINO")

    with pytest.raises(InvalidArgument, match="one or more devices"):
        options.add_provider_for_devices([], {})
    with pytest.raises(InvalidArgument, match=r"several EPs: .*QNN.*OpenVINO"):
        options.add_provider_for_devices([*qnn, *openvino], {})
    with pytest.raises(InvalidArgument, match="one of these devices at a time"):
        options.add_provider_for_devices(openvino, {})
    with pytest.raises(InvalidArgument, match="one or more devices"):
        options.add_provider_for_devices(["NPU"], {})


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        (POLICY.PREFER_NPU, "NPU"),
        (POLICY.MAX_EFFICIENCY, "NPU"),
        (POLICY.MIN_OVERALL_POWER, "NPU"),
        (POLICY.PREFER_GPU, "GPU"),
        (POLICY.MAX_PERFORMANCE, "GPU"),
    ],
)
def test_a_policy_takes_the_first_device_of_its_type_and_says_why(policy, kind, caplog):
    options = onnxruntime.SessionOptions()
    options.set_provider_selection_policy(policy)

    with caplog.at_level(logging.INFO, "epctx.devices"):
        eps = eps_of(options)

    assert eps == ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
    assert f"{policy.name} chose OpenVINOExecutionProvider ({kind}" in caplog.text
    assert "simulated" in caplog.text
    # The host's options stay what they are.
    assert options.providers == []


@pytest.mark.parametrize("policy", [POLICY.PREFER_CPU, POLICY.DEFAULT])
def test_a_policy_for_cpus_takes_no_simulated_one(policy, caplog):
    options = onnxruntime.SessionOptions()
    options.set_provider_selection_policy(policy)

    with caplog.at_level(logging.INFO, "epctx.devices"):
        assert eps_of(options) == ["CPUExecutionProvider"]
    assert f"{policy.name} chose the CPU EP: no other EP has a CPU" in caplog.text


def test_eps_that_were_named_go_before_the_policy():
    options = onnxruntime.SessionOptions()
    options.set_provider_selection_policy(POLICY.PREFER_NPU)

    assert eps_of(options, providers=["QNN"])[0] == "QNNExecutionProvider"
    options.add_provider("VitisAI")
    assert eps_of(options)[0] == "VitisAIExecutionProvider"


def test_a_real_device_goes_before_simulated_ones(caplog):
    ep = ep_of(
        "Zeta", lambda: [HardwareDevice(type="NPU", vendor_id=0x1234, device_id=7)]
    )

    with epctx_core.temporary_execution_provider(ep):
        first = onnxruntime.get_ep_devices()[0]
        options = onnxruntime.SessionOptions()
        options.set_provider_selection_policy(POLICY.PREFER_NPU)
        eps = eps_of(options)

    assert (first.device.vendor, first.device.vendor_id) == ("Zeta", 0x1234)
    assert eps[0] == "ZetaExecutionProvider"


def test_a_delegate_chooses_among_the_devices():
    def choose(devices, model_metadata, runtime_metadata, most):
        asked.append((model_metadata, runtime_metadata, most))
        return [d for d in devices if d.ep_name == "QNNExecutionProvider"]

    asked = []
    options = onnxruntime.SessionOptions()
    options.set_provider_selection_policy_delegate(choose)

    assert eps_of(options)[0] == "QNNExecutionProvider"
    ((metadata, runtime_metadata, most),) = asked
    assert (metadata["graph_name"], runtime_metadata, most) == ("g", {}, 8)
    options.set_provider_selection_policy_delegate(lambda *_: [])
    with pytest.raises(InvalidArgument, match="delegate chose"):
        eps_of(options)


def test_a_compiler_uses_the_policy_too(tmp_path):
    options = onnxruntime.SessionOptions()
    options.set_provider_selection_policy(POLICY.PREFER_NPU)
    path = tmp_path / "m.onnx"
    path.write_bytes(MODEL)

    compiler = onnxruntime.ModelCompiler(options, path)
    report = compiler.compile_to_file(str(tmp_path / "m_ctx.onnx"))

    assert report.compiled
    assert report.providers[0].name == "OpenVINOExecutionProvider"


def fail():
    raise OSError("no driver")


@pytest.mark.parametrize(
    ("tell", "said"),
    [
        (fail, "no driver"),
        (lambda: [HardwareDevice(type="TPU")], "TPU"),
        (lambda: [HardwareDevice(options=None)], "options"),
        (lambda: ["NPU"], "'NPU'"),
        (lambda: None, "None"),
    ],
)
def test_an_ep_whose_devices_cannot_be_told_has_none(tell, said, caplog):
    with epctx_core.temporary_execution_provider(ep_of("Lost", tell)):
        names = {device.ep_name for device in onnxruntime.get_ep_devices()}

    assert "LostExecutionProvider" not in names
    assert "QNNExecutionProvider" in names
    assert said in caplog.text
