"""Context models that vendors' own EPs wrote: shown as they are, and turned away by
name where an EP is simulated.
"""

from __future__ import annotations

import shutil

import onnx
import pytest
from support.folders import REAL
from support.routes import refused
from support.sim_eps import OPENVINO, PACKAGES, QNN, VITISAI

import epctx_core as epctx
from epctx_core import InvalidGraph

QUALCOMM = "a context binary written by the real QNN SDK (Qualcomm)"
INTEL = "a container of blobs written by the real OpenVINO execution provider (Intel)"
MODELS = {
    "qnn_ctx0": (QNN, "qnn_ctx0_qnn.bin", 65_536, QUALCOMM),
    "qnn_ctx1": (QNN, None, 65_536, QUALCOMM),
    "share1_ctx": (QNN, "share1_qnn.bin", 102_400, QUALCOMM),
    "share2_ctx": (QNN, "share1_qnn.bin", 102_400, QUALCOMM),
    "ov_ctx0": (OPENVINO, f"ov_ctx0_{OPENVINO}.bin", 131_072, INTEL),
}


@pytest.fixture
def real(tmp_path):
    return shutil.copytree(REAL, tmp_path / "real")


@pytest.mark.parametrize("name", MODELS)
def test_each_is_inspected_as_it_was_written(name):
    source, file, size, _ = MODELS[name]

    info = epctx.inspect_model(REAL / f"{name}.onnx")

    (node,) = info.ep_contexts
    assert (node.source, node.payload_file, node.payload_bytes) == (source, file, size)
    assert (node.main_context, node.embed_mode, node.problem) == (
        1,
        int(file is None),
        "",
    )
    assert node.plugin["distribution"] == PACKAGES[source]
    assert node.attributes["ep_sdk_version"] == (
        "2025.4" if source == OPENVINO else "v2.51.0.260929181845"
    )


@pytest.mark.parametrize("name", MODELS)
def test_each_is_refused_naming_vendor_node_and_that_the_ep_is_simulated(real, name):
    source, _, _, what = MODELS[name]
    (node,) = epctx.inspect_model(real / f"{name}.onnx").ep_contexts

    with refused(
        InvalidGraph, r"is simulated", folder=real, ep=source, node=node.name
    ) as caught:
        epctx.InferenceSession(real / f"{name}.onnx")

    assert f"is {what}; this {source} is simulated" in caught.value.message


@pytest.mark.parametrize("ep", [OPENVINO, QNN, VITISAI])
@pytest.mark.parametrize("name", MODELS)
def test_no_simulated_ep_takes_any_of_them(real, name, ep):
    path, what = real / f"{name}.onnx", MODELS[name][-1]
    model = onnx.load(path)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "source":
            attribute.s = ep.encode()
    onnx.save(model, path)

    with refused(InvalidGraph, r"is simulated", folder=real, ep=ep) as caught:
        epctx.InferenceSession(path)

    assert f"is {what}; this {ep} is simulated" in caught.value.message
    assert "vendor's own EP is installed" in caught.value.hint


@pytest.mark.parametrize("name", MODELS)
def test_where_no_ep_is_installed_none_is_checked_and_the_line_to_install_is_said(name):
    report = epctx.verify_model(
        REAL / f"{name}.onnx", registry=epctx.Registry(entry_points=False)
    )

    (finding,) = [f for f in report.findings if f.code == "not-checked"]
    assert (report.ok, report.verdict) == (True, "not-checked")
    assert "pip install" in finding.hint
    assert "ExecutionProvider; " in finding.hint
    assert "does not read payloads made for hardware" in finding.hint


def test_a_payload_of_the_kind_dlc_is_named(real):
    path = real / "qnn_ctx1.onnx"
    model = onnx.load(path)
    model.graph.node[0].attribute.append(
        onnx.helper.make_attribute("ep_context_type", "dlc")
    )
    onnx.save(model, path)

    with pytest.raises(
        InvalidGraph, match=r"of kind ep_context_type=dlc, a deep learning container"
    ):
        epctx.InferenceSession(path)

    report = epctx.verify_model(path)
    (finding,) = [f for f in report.findings if f.code == "container-not-checked"]
    assert report.verdict == "not-checked"
    assert "of kind ep_context_type=dlc" in finding.message
