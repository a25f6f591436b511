"""onnxruntime's OpenVINO EP behind the hooks of epctx, on its CPU device; it lists
devices on Intel CPUs alone.
"""

from __future__ import annotations

import json

import onnx
import pytest
from support.agreement import worst_relative_error
from support.vendor_routes import route
from support.vendors_onnxruntime import OPENVINO, devices
from vendors.vendor_networks import network

import epctx_core as epctx
from epctx_core.plugin import Purpose

ROUNDING = 1e-5
"""Of sums in another order, relative: OpenVINO may compile a graph otherwise each
time.
"""


@pytest.fixture
def openvino():
    """Return epctx with the EP."""
    return route("epctx with OpenVINO")


@pytest.fixture
def onnxruntime_alone():
    """Return onnxruntime with the EP."""
    return route("onnxruntime with OpenVINO")


def test_three_partitions_are_one_binary(openvino, tmp_path):
    openvino.compile_to_file(
        network("three_parts").model, tmp_path / "m_ctx.onnx", embedded=False
    )

    nodes = [
        n
        for n in onnx.load(tmp_path / "m_ctx.onnx").graph.node
        if n.op_type == "EPContext"
    ]

    caches = {
        a.s for node in nodes for a in node.attribute if a.name == "ep_cache_context"
    }
    assert len(nodes) == 3
    assert caches == {b"m_OpenVINOExecutionProvider.bin"}
    assert len(list(tmp_path.glob("*.bin"))) == 1


def test_a_context_model_with_renamed_values_loads(
    openvino, onnxruntime_alone, tmp_path
):
    source, inputs = network("two_parts")
    path = openvino.compile_to_file(source, tmp_path / "m_ctx.onnx", embedded=True)
    model = onnx.load(path)
    for values in (
        *(node.input for node in model.graph.node),
        *(node.output for node in model.graph.node),
    ):
        values[:] = [f"renamed {name}" for name in values]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.name = f"renamed {value.name}"
    onnx.save(model, path)

    results = openvino.run(
        path, {f"renamed {name}": array for name, array in inputs.items()}
    )

    assert (
        worst_relative_error(results, onnxruntime_alone.run(source, inputs)) <= ROUNDING
    )


def test_a_context_model_of_another_openvino_is_refused_where_onnxruntime_asks_nobody(
    openvino, tmp_path
):
    path = openvino.compile_to_file(
        network("bert").model, tmp_path / "m_ctx.onnx", embedded=True
    )
    model = onnx.load(path)
    (info,) = (
        p for p in model.metadata_props if p.key == f"ep_compatibility_info.{OPENVINO}"
    )
    said = json.loads(info.value)
    said["ov_compat_string"] = said["ov_compat_string"].replace("ov=20", "ov=19")
    info.value = json.dumps(said)
    onnx.save(model, path)

    with pytest.raises(epctx.InvalidGraph, match=OPENVINO):
        openvino.run(path, network("bert").inputs)


def test_a_binary_of_another_model_is_refused(openvino, tmp_path):
    """In onnxruntime a binary that holds the names runs, whatever it computes."""
    bert, resnet = (
        openvino.compile_to_file(
            network(name).model, tmp_path / f"{name}_ctx.onnx", embedded=False
        )
        for name in ("bert", "resnet")
    )
    binary_of = {
        path: path.with_name(f"{path.stem.removesuffix('_ctx')}_{OPENVINO}.bin")
        for path in (bert, resnet)
    }
    binary_of[bert].write_bytes(binary_of[resnet].read_bytes())

    with pytest.raises(epctx.InvalidGraph):
        openvino.run(bert, network("bert").inputs)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda binary: binary[:-1], "its length is not a multiple of 65,536"),
        (lambda binary: binary[:65536], "lies outside of it"),
        # Intel's EP allocates what an entry says, before it reads the blob.
        (lambda binary: with_size(binary, (1 << 31) - 1), "lies outside of it"),
        (lambda binary: binary.replace(b"size\0", b"data\0", 1), "no offset and size"),
        (lambda binary: binary.replace(b"\3blob", b"\7blob", 1), "has the type 0x07"),
    ],
    ids=["its last byte", "its blobs", "a huge blob", "an entry", "the table"],
)
def test_a_damaged_container_without_digests_is_refused_before_intels_ep_gets_it(
    openvino, onnxruntime_alone, tmp_path, damage, fault
):
    source, inputs = network("two_parts")
    path = onnxruntime_alone.compile_to_file(
        source, tmp_path / "m_ctx.onnx", embedded=True
    )
    model = onnx.load(path)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "ep_cache_context" and attribute.s:
                attribute.s = damage(attribute.s)

    with pytest.raises(epctx.InvalidGraph, match=fault):
        openvino.run(model.SerializeToString(), inputs)


def with_size(binary: bytes, size: int) -> bytes:
    """Return a container whose first entry says another size."""
    at = binary.index(b"\x10size\0") + 6
    return binary[:at] + size.to_bytes(4, "little") + binary[at + 4 :]


def test_on_a_processor_that_is_not_intels_it_says_so():
    import onnxruntime_ep_openvino
    from epctx_onnxruntime.providers.openvino import OpenVINOExecutionProvider

    if devices(OPENVINO, onnxruntime_ep_openvino):
        pytest.skip("this processor is Intel's")
    found = OpenVINOExecutionProvider.availability(Purpose.EXPORT)

    assert not found.available
    assert "devices of Intel processors only" in found.reason
    assert "epctx-sim-openvino:OpenVINO" in found.hint
