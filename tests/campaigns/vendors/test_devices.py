"""Real vendors' EPs by the calls that hosts of onnxruntime use: libraries, devices and
policies.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap

import epctx_onnxruntime as onnxruntime
import numpy as np
import onnx.parser
import onnxruntime as real
import onnxruntime_qnn
import pytest

NPU, CPU = (getattr(onnxruntime.OrtHardwareDeviceType, kind) for kind in ("NPU", "CPU"))
POLICY = onnxruntime.OrtExecutionProviderDevicePolicy
QNN = "QNNExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
MODEL = onnx.parser.parse_model(
    '<ir_version: 9, opset_import: ["": 17]> g (float[1,8] x) => (float[1,8] y) '
    "{ a = Relu (x) y = Sigmoid (a) }"
)
X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(1, 8)


@pytest.fixture
def model(tmp_path, monkeypatch):
    # QNN writes beside the process.
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.onnx"
    onnx.save(MODEL, path)
    return path


def of(ep):
    return [d for d in onnxruntime.get_ep_devices() if d.ep_name == ep]


def test_the_adapters_list_the_devices_that_onnxruntime_lists():
    (qnn, *_) = of(QNN)
    assert qnn.ep_metadata["simulated"] == "0"
    native = [d for d in real.get_ep_devices() if d.ep_name == f"epctx.{QNN}"]
    assert [(d.device.type, d.device.vendor_id) for d in of(QNN)] == [
        (d.device.type, d.device.vendor_id) for d in native
    ]


def test_of_two_real_eps_of_one_name_the_devices_say_which_they_are_of(model):
    for device in of(OPENVINO):
        assert "device_type" in device.ep_options
        options = onnxruntime.SessionOptions()
        options.add_provider_for_devices([device], {})

        with onnxruntime.InferenceSession(model, options) as session:
            (record,) = session.get_provider_records()
            session.run(None, {"x": X})

        assert record.distribution == device.ep_metadata["distribution"]

    # Intel's EP lists devices of Intel's processors alone.
    assert "epctx-openvino" in {
        device.ep_metadata["distribution"] for device in of(OPENVINO)
    }


def test_qnns_documented_route_compiles_and_loads(model, tmp_path):
    # As Qualcomm's page has it: a library, its devices, a session that exports.
    onnxruntime.register_execution_provider_library(
        "qnn_of_the_host", onnxruntime_qnn.get_library_path()
    )
    try:
        options = onnxruntime.SessionOptions()
        options.add_provider_for_devices(
            of(QNN)[:1], {"backend_type": "htp", "soc_model": "60"}
        )
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_file_path", "made_ctx.onnx")
        onnxruntime.InferenceSession(model, options).close()

        made = onnx.load(tmp_path / "made_ctx.onnx")
        assert [node.op_type for node in made.graph.node] == ["EPContext"]
        options = onnxruntime.SessionOptions()
        options.add_provider_for_devices(
            of(QNN)[:1], {"backend_type": "htp", "soc_model": "60"}
        )
        with onnxruntime.InferenceSession("made_ctx.onnx", options) as session:
            (result,) = session.run(None, {"x": X})
    finally:
        onnxruntime.unregister_execution_provider_library("qnn_of_the_host")

    expected = 1 / (1 + np.exp(-np.maximum(X, 0)))
    np.testing.assert_allclose(result, expected, atol=2e-3)


def test_a_policy_prefers_the_real_ep(model):
    options = onnxruntime.SessionOptions()
    options.set_provider_selection_policy(POLICY.PREFER_CPU)

    with onnxruntime.InferenceSession(model, options) as session:
        eps = session.get_providers()
        session.run(None, {"x": X})

    chosen = next(
        d
        for d in onnxruntime.get_ep_devices()
        if d.device.type == CPU and d.ep_name != "CPUExecutionProvider"
    )
    assert chosen.ep_metadata["simulated"] == "0"
    assert eps[0] == chosen.ep_name


def test_a_library_of_an_adapter_is_used_by_it_under_the_hosts_name_too(model, caplog):
    with caplog.at_level(logging.INFO, "epctx.devices"):
        onnxruntime.register_execution_provider_library(
            "mine", onnxruntime_qnn.get_library_path()
        )
    try:
        listed = [(d.device.type, d.device.vendor_id) for d in of("mine")]
        native = [
            (d.device.type, d.device.vendor_id)
            for d in real.get_ep_devices()
            if d.ep_name == "mine"
        ]
        options = onnxruntime.SessionOptions()
        options.add_provider_for_devices(of("mine")[:1], {"soc_model": "60"})
        with onnxruntime.InferenceSession(model, options) as session:
            providers = session.get_providers()
    finally:
        onnxruntime.unregister_execution_provider_library("mine")

    assert listed == native
    assert providers[0] == QNN
    assert not of("mine")
    assert of(QNN)
    assert "mine is that of QNNExecutionProvider (epctx-onnxruntime" in caplog.text


def test_a_library_without_an_adapter_brings_its_ep_with_any_options(model):
    # QNN's library, in a process whose epctx has no adapter for it.
    script = """
        import json
        import numpy as np
        import onnxruntime_qnn
        import epctx_onnxruntime as ort
        name = "QNNExecutionProvider"
        def real():
            return [
                d for d in ort.get_ep_devices()
                if d.ep_name == name and d.ep_metadata["simulated"] == "0"
            ]
        before = len(real())
        ort.register_execution_provider_library(
            name, onnxruntime_qnn.get_library_path()
        )
        options = ort.SessionOptions()
        options.add_provider_for_devices(
            real()[:1], {"backend_type": "htp", "soc_model": "60"}
        )
        with ort.InferenceSession("model.onnx", options) as session:
            x = np.zeros((1, 8), np.float32)
            result = session.run(None, {"x": x})[0].tolist()
            eps = session.get_providers()
            origin = session.get_provider_records()[0].origin
        ort.unregister_execution_provider_library(name)
        print(json.dumps([before, eps[0], origin, result, len(real())]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"EPCTX_DISABLE_PLUGINS": "epctx-onnxruntime:QNN,epctx-sim-qnn"},
    )

    assert done.returncode == 0, done.stderr
    before, ep, origin, result, left = json.loads(done.stdout.splitlines()[-1])
    assert (before, left) == (0, 0)
    assert (ep, origin) == (QNN, "registered by the host")
    # HTP computes in float16.
    np.testing.assert_allclose(result, [[0.5] * 8], atol=2e-3)
