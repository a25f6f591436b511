"""Blobs of OpenVINO without a model: what they say of themselves, and what OpenVINO says
of them.
"""

from __future__ import annotations

import numpy as np
import openvino
import pytest
from epctx_native_formats import BinaryReader, describe_binary
from support.folders import REAL
from vendors.vendor_networks import network


@pytest.fixture(scope="module")
def blob():
    """Return what OpenVINO exports of resnet, and its model."""
    core = openvino.Core()
    model = core.compile_model(core.read_model(network("resnet").model), "CPU")
    return model.export_model().getvalue(), model


@pytest.mark.parametrize("as_file", [False, True])
def test_a_blob_is_described_by_its_text_and_by_openvino(blob, as_file, tmp_path):
    content, model = blob
    (tmp_path / "net.blob").write_bytes(content)
    binary = describe_binary(tmp_path / "net.blob" if as_file else memoryview(content))

    version = openvino.get_version().partition("-")[0]
    assert (binary.format, binary.sdk) == ("openvino-blob", f"OpenVINO {version}")
    assert "Intel" in binary.target or binary.target
    (graph,) = binary.graphs
    for tensors, ports in (
        (graph.inputs, model.inputs),
        (graph.outputs, model.outputs),
    ):
        for tensor, port in zip(tensors, ports, strict=True):
            assert tensor.name in port.names
            assert tensor.element_type == "FLOAT"
            assert tensor.shape == tuple(port.shape)


def test_a_blob_of_another_version_is_described_without_graphs():
    container = (REAL / "ov_ctx0_OpenVINOExecutionProvider.bin").read_bytes()
    content = memoryview(container)[1 << 16 :][:12209]

    binary = describe_binary(content)

    assert (binary.format, binary.graphs) == ("openvino-blob", ())
    assert "another version of OpenVINO" in binary.facts["graphs"]


def test_a_damaged_blob_ends_no_host(blob):
    content, _ = blob
    generator = np.random.default_rng(5)
    described = 0
    with BinaryReader() as reader:
        for _ in range(30):
            damaged = bytearray(content)
            for _ in range(3):
                damaged[int(generator.integers(8, len(damaged)))] ^= 0xFF
            del damaged[int(generator.integers(len(damaged) // 2, len(damaged))) :]
            described += reader.describe(memoryview(bytes(damaged)), "it") is not None
        assert reader.describe(memoryview(content)).graphs

    assert described == 30
