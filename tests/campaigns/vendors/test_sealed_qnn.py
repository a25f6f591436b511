"""Context models that onnxruntime wrote with Qualcomm's EP, sealed: all loads go on,
and epctx checks them.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.vendor_routes import route
from vendors.vendor_networks import network

import epctx_core as epctx

NAMES = ("resnet", "two_parts")


@pytest.fixture(params=NAMES)
def compiled(request, tmp_path):
    """Return a function that has onnxruntime compile a network; gives the context
    model, the inputs and its result.
    """
    vendor, (source, inputs) = route("onnxruntime with QNN"), network(request.param)

    def compile_network(*, embedded):
        path = vendor.compile_to_file(
            source, tmp_path / "net_ctx.onnx", embedded=embedded
        )
        return path, inputs, vendor.run(path, inputs)

    return compile_network


@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
@pytest.mark.parametrize("embedded", [False, True], ids=["file", "embedded"])
def test_a_sealed_model_gives_the_same_results_in_onnxruntime_and_in_epctx(
    compiled, embedded, beside
):
    path, inputs, expected = compiled(embedded=embedded)

    epctx.seal_model(path, beside=beside)

    for name in ("onnxruntime with QNN", "epctx with QNN"):
        for result, same in zip(route(name).run(path, inputs), expected, strict=True):
            np.testing.assert_array_equal(result, same)
    report = epctx.verify_model(path, route("epctx with QNN").session_options())
    assert report.ok
    assert [payload.digests for payload in report.payloads] == [True] * len(
        report.payloads
    )


@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
def test_a_binary_that_was_changed_after_it_was_sealed_is_refused(
    compiled, beside, tmp_path
):
    path, inputs, _ = compiled(embedded=False)
    (binary,) = tmp_path.glob("*.bin")
    epctx.seal_model(path, beside=beside)
    content = bytearray(binary.read_bytes())
    content[len(content) // 2] ^= 1
    binary.write_bytes(content)

    with pytest.raises(epctx.InvalidGraph, match=binary.name):
        route("epctx with QNN").run(path, inputs)

    report = epctx.verify_model(path, route("epctx with QNN").session_options())
    assert "digest-mismatch" in {finding.code for finding in report.findings}
