"""What one route compiles, another loads and runs, in each form; all agree with the vendor's own direct result."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import pytest
from agreement import worst_relative_error
from vendors.networks import MORE_NETWORKS, NETWORKS, network
from vendors.routes import Epctx
from vendors.vendors_onnxruntime import OPENVINO, QNN, PluginEP, devices, qnn_options

FORMS = ("embedded", "file", "bytes")
STEP = {"qnn": 1e-3, "openvino": 1e-5}
"""Largest relative difference: QNN computes in half precision, OpenVINO in that of the model."""
NEEDS_INTEL = "needs an Intel CPU: onnxruntime-ep-openvino lists no other device"


@functools.cache
def route(name):
    """Return a producer and consumer; skip the test if this machine lacks its device."""
    if name == "onnxruntime with QNN":
        import onnxruntime_qnn

        listed = devices(QNN, onnxruntime_qnn)
        assert listed, "onnxruntime-qnn lists no device"
        return PluginEP(ep=QNN, devices=listed[:1], options=qnn_options())
    if name == "epctx with QNN":
        return Epctx(ep="epctx-onnxruntime:QNN", options=qnn_options())
    if name == "epctx-openvino":
        return Epctx(ep="epctx-openvino:OpenVINO")
    import onnxruntime_ep_openvino

    listed = devices(OPENVINO, onnxruntime_ep_openvino)
    if not listed:
        assert "GenuineIntel" not in Path("/proc/cpuinfo").read_text(), "no device on an Intel CPU"
        pytest.skip(NEEDS_INTEL)
    if name == "onnxruntime with OpenVINO":
        return PluginEP(ep=OPENVINO, devices=listed[:1], options={})
    return Epctx(ep="epctx-onnxruntime:OpenVINO")


GROUPS = {
    "qnn": ("onnxruntime with QNN", "epctx with QNN"),
    "openvino": ("onnxruntime with OpenVINO", "epctx with OpenVINO"),
}
"""Routes that read each other's context models; the first gives the vendor's direct result."""
PAIRS = [(group, *pair) for group, names in GROUPS.items() for pair in itertools.product(names, repeat=2)]


def compiled(producer, form, model, folder):
    if form == "bytes":
        return producer.compile_to_bytes(model)
    return producer.compile_to_file(model, folder / "m_ctx.onnx", embedded=form == "embedded")


@functools.cache
def direct(group, name):
    source, inputs = network(name)
    return route(GROUPS[group][0]).run(source, inputs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name", [*NETWORKS, *(pytest.param(n, marks=pytest.mark.stress) for n in MORE_NETWORKS)]
)
@pytest.mark.parametrize(("group", "producer", "consumer"), PAIRS)
def test_one_vendors_routes_read_each_other_and_give_the_direct_result(
    group, producer, consumer, name, form, tmp_path
):
    producer, consumer = route(producer), route(consumer)
    source, inputs = network(name)

    results = consumer.run(compiled(producer, form, source, tmp_path), inputs)

    assert worst_relative_error(results, direct(group, name)) <= STEP[group]
