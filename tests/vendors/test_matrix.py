"""What one route compiles, another loads and runs, in each form; all agree with the vendor's own direct result."""

from __future__ import annotations

import pytest
from agreement import worst_relative_error
from vendors.networks import NETWORKS, network
from vendors.vendors_onnxruntime import QNN, PluginEP, devices, qnn_options

FORMS = ("embedded", "file", "bytes")
HALF = 1e-3
"""A step of a number in half precision, relative to the number: as QNN computes, and its compiles may round otherwise."""


@pytest.fixture(scope="module")
def qnn():
    import onnxruntime_qnn

    listed = devices(QNN, onnxruntime_qnn)
    assert listed, "onnxruntime-qnn lists no device"
    return PluginEP(ep=QNN, devices=listed[:1], options=qnn_options())


def compiled(route, form, model, folder):
    if form == "bytes":
        return route.compile_to_bytes(model)
    return route.compile_to_file(model, folder / "m_ctx.onnx", embedded=form == "embedded")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_with_qnn_alone_gives_the_direct_result(name, form, qnn, tmp_path):
    source, inputs = network(name)

    results = qnn.run(compiled(qnn, form, source, tmp_path), inputs)

    assert worst_relative_error(results, qnn.run(source, inputs)) <= HALF
