"""`verify_model` over this EP's payloads: archives, their nodes and the containers in
them, every fault listed.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import epctx_core as epctx

MODES = [pytest.param(False, id="file"), pytest.param(True, id="embedded")]


def found(bench, path, **options):
    """Return what this EP found."""
    report = epctx.verify_model(path, bench.options(**options))
    return [
        finding for finding in report.findings if finding.code.startswith("container-")
    ]


@pytest.mark.parametrize("embed", MODES)
def test_what_this_ep_writes_is_good(bench, embed):
    path, _ = bench.compile(bench.two_partitions(), embed=embed)

    report = epctx.verify_model(path)

    assert report.findings == ()
    assert report.payloads[0].looked_into_by.startswith("epctx-sim-vitisai")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n1": {"index": None}}, "it has no index"),
        ({"n1": {"index": 2}}, "index is 2, and its archive holds 2 graphs"),
        (
            {"n0": {"cache_file_prefix": "other"}},
            "its cache_file_prefix is 'other', that of the payload",
        ),
        ({"n1": {"cache_file_prefix": None}}, "it has no cache_file_prefix"),
        ({"n0": {"cache_file_prefix": [1, 2]}}, "it has no cache_file_prefix"),
        (
            {"n0": {"enable_encryption": numpy_helper.from_array(np.ones(2))}},
            "its enable_encryption is no number",
        ),
        (
            {"n0": {"enable_encryption": 1}},
            "is not encrypted, but the node says that it is",
        ),
        ({"n1": {"partition_name": "elsewhere"}}, "not 'elsewhere'"),
        ({"n1": {"version_of_xcompiler": "sim-9.0.0"}}, "sim-9.0.0"),
    ],
    ids=lambda value: str(value).replace("\n", " "),
)
def test_a_node_that_a_load_refuses_is_found(bench, compiled, changes, words):
    bench.change(compiled, **changes)

    refused = found(bench, compiled)

    with pytest.raises(epctx.InvalidGraph):
        epctx.InferenceSession(compiled)

    assert any(words in finding.message for finding in refused), refused
    assert {finding.code for finding in refused} == {"container-refused"}


def test_every_fault_is_listed(bench, compiled):
    bench.change(compiled, n0={"index": 5}, n1={"index": -3})

    refused = found(bench, compiled)

    assert len(refused) == 2
    assert len({finding.node for finding in refused}) == 2


def test_a_lost_node_is_found(bench, compiled):
    model = onnx.load(compiled)
    lost = [node for node in model.graph.node if node.op_type == "EPContext"][1]
    lost.CopyFrom(onnx.helper.make_node("Identity", [lost.input[0]], [lost.output[0]]))
    onnx.save(model, compiled)

    (finding,) = found(bench, compiled)

    assert "has nodes for 1 of the 2 graphs" in finding.message


@pytest.mark.parametrize("offset", [0, 300, 520, 4200, -600, -1])
def test_a_changed_byte_is_found_once(bench, compiled, offset):
    content = bytearray(bench.binary().read_bytes())
    content[offset] ^= 0x40
    bench.binary().write_bytes(content)

    (finding,) = found(bench, compiled)

    assert finding.code == "container-refused"


def test_a_tar_of_a_real_ep_is_named_and_not_checked(bench, compiled):
    content = bytearray(512)
    content[257:262] = b"ustar"
    bench.binary().write_bytes(content)
    stated = {
        name: None
        for name in bench.nodes(compiled)[0]
        if name.startswith("version_of_")
    }
    bench.change(compiled, n0=stated, n1=stated)

    (finding,) = found(bench, compiled)

    assert finding.code == "container-not-checked"
    assert "the real VitisAI execution provider (AMD)" in finding.message


def test_an_encrypted_payload_is_looked_into_with_its_key_only(bench):
    path, _ = bench.compile(bench.two_partitions(), encryption_key=bench.key)

    without = found(bench, path)
    right = found(bench, path, encryption_key=bench.key)
    wrong = found(bench, path, encryption_key="ab" * 32)

    assert [finding.code for finding in without] == ["container-not-checked"]
    assert "encryption_key" in without[0].hint
    assert right == []
    assert [finding.code for finding in wrong] == ["container-refused"]
    assert bench.key not in str([*without, *wrong])
