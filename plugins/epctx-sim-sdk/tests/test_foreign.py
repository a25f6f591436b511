"""Payloads that real vendors wrote are named, and refused as such."""

from __future__ import annotations

import io
import tarfile
import zipfile

import onnx
import pytest
from epctx_sim_sdk.foreign import recognise
from support.folders import REAL

from epctx_core.errors import InvalidGraph

pytestmark = pytest.mark.internal


def embedded(name):
    (node,) = onnx.load(REAL / name).graph.node
    return next(a.s for a in node.attribute if a.name == "ep_cache_context")


@pytest.mark.parametrize(
    ("content", "vendor"),
    [
        pytest.param((REAL / "qnn_ctx0_qnn.bin").read_bytes, "Qualcomm", id="qnn file"),
        pytest.param(
            (REAL / "share1_qnn.bin").read_bytes, "Qualcomm", id="qnn shared file"
        ),
        pytest.param(lambda: embedded("qnn_ctx1.onnx"), "Qualcomm", id="qnn embedded"),
        pytest.param(
            lambda: embedded("qnn_ctx1.onnx")[:64], "Qualcomm", id="qnn truncated"
        ),
        pytest.param(
            (REAL / "ov_ctx0_OpenVINOExecutionProvider.bin").read_bytes,
            "Intel",
            id="openvino",
        ),
    ],
)
def test_a_real_vendors_payload_is_refused_by_name_and_as_simulated(
    scene, content, vendor
):
    with pytest.raises(InvalidGraph, match=rf"{vendor}.*is simulated") as caught:
        scene.open(content())

    assert "vendor's own EP" in caught.value.hint


def test_archives_are_recognised():
    tar, archive = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as file:
        file.addfile(tarfile.TarInfo("cache/context.json"))
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("model", "x")

    assert "AMD" in recognise(memoryview(tar.getvalue()))
    assert "DLC" in recognise(memoryview(archive.getvalue()))


def test_a_file_name_in_place_of_a_payload_is_recognised(scene):
    with pytest.raises(
        InvalidGraph, match=r"'net_qnn\.bin', as if a file's name had been embedded"
    ) as caught:
        scene.open(b"net_qnn.bin")

    assert "vendor" not in caught.value.hint


def test_a_simulated_payload_is_not_foreign(scene):
    assert recognise(memoryview(scene.write(scene.graph(scene.dense())))) is None


def test_unknown_bytes_are_not_given_a_name():
    assert recognise(memoryview(bytes(range(1, 100)))) is None
    assert recognise(memoryview(b"\0\0\0\2")) is None


def test_a_payload_that_its_node_calls_a_dlc_is_refused_by_that_name(scene):
    with pytest.raises(
        InvalidGraph, match=r"of kind ep_context_type=dlc.*is simulated"
    ) as caught:
        scene.open(b"\0" * 64, kind="dlc")

    assert "vendor's own EP" in caught.value.hint
