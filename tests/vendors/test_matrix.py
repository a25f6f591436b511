"""What one route compiles, another loads and runs, in each form; all agree with the vendor's own direct result."""

from __future__ import annotations

import functools
import itertools

import pytest
from agreement import worst_relative_error
from vendors.networks import MORE_NETWORKS, NETWORKS, network
from vendors.routes import route

FORMS = ("embedded", "file", "bytes")
STEP = {"qnn": 1e-3, "openvino": 1e-5}
"""Largest relative difference: QNN computes in half precision, OpenVINO in float32."""


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
