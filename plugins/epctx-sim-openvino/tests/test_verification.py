"""`verify_model` over this EP's payloads: all nodes name one binary, and every fault is
listed once.
"""

from __future__ import annotations

import onnx
import pytest

import epctx_core as epctx

MODES = pytest.mark.parametrize("embedded", [False, True], ids=["file", "embedded"])


def without_manifest(path):
    model = onnx.load(path)
    kept = [entry for entry in model.metadata_props if entry.key != "epctx.manifest"]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, path)


def codes(report):
    return [finding.code for finding in report.findings]


@MODES
def test_what_this_ep_writes_is_good(bench, embedded):
    written = bench.compile(bench.two_partitions(), embedded=embedded)

    report = epctx.verify_model(written.path)

    assert codes(report) == []
    assert len(report.payloads) == 1
    assert report.payloads[0].looked_into_by.startswith("epctx-sim-openvino")


def test_a_payload_that_two_nodes_name_is_refused_once(bench):
    written = bench.compile(bench.two_partitions())
    without_manifest(written.path)
    (binary,) = written.path.parent.glob("*.bin")
    binary.write_bytes(binary.read_bytes()[:-10])

    report = epctx.verify_model(written.path)

    assert codes(report) == ["container-refused", "manifest-missing"]


def test_what_this_ep_demands_of_nodes_is_found_for_each(bench):
    written = bench.compile(bench.two_partitions())
    for place in (0, 1):
        written.change(place, ep_sdk_version=None)

    refused = epctx.verify_model(written.path).findings

    assert [finding.code for finding in refused] == ["container-refused"] * 2
    assert len({finding.node for finding in refused}) == 2
    assert "has sdk missing" in refused[0].message


def test_a_node_without_a_partition_name_is_refused_by_this_ep(bench):
    written = bench.compile(bench.two_partitions())
    written.change(1, partition_name=None)

    report = epctx.verify_model(written.path)

    assert codes(report) == ["container-refused"]


def test_a_payload_for_another_device_is_good_with_the_options_of_that_device(bench):
    written = bench.compile(bench.two_partitions(), device_type="NPU")

    without = epctx.verify_model(written.path)
    given = epctx.verify_model(written.path, bench.settings({"device_type": "NPU"}))

    assert set(codes(without)) == {"compatibility-unsupported", "container-refused"}
    assert codes(given) == []
