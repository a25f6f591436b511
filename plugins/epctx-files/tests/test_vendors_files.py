"""Files that vendors' compilers wrote, put together and taken apart without them."""

from __future__ import annotations

import shutil

import onnx
import pytest
from epctx_files import diff, embed, externalize, extract, merge
from support.folders import REAL

import epctx_core as epctx

NAMES = ("qnn_ctx0", "qnn_ctx1", "ov_ctx0", "share1_ctx")


@pytest.fixture(params=NAMES)
def context(request, tmp_path):
    """A vendor's context model, as a test's own copy."""
    folder = shutil.copytree(REAL, tmp_path / "real")
    return folder / f"{request.param}.onnx"


def get_node(path):
    (node,) = (
        each
        for each in onnx.load(path, load_external_data=False).graph.node
        if each.op_type == "EPContext"
    )
    return node


def get_payload(path):
    """Return the file of a model's payload, None for an embedded one."""
    attributes = {each.name: each for each in get_node(path).attribute}
    if attributes["embed_mode"].i:
        return None
    return path.parent / attributes["ep_cache_context"].s.decode()


def head_of(context, path):
    """Write a plain model that goes on from a context model's output."""
    model = onnx.load(context, load_external_data=False)
    (output, *_) = model.graph.output
    last = onnx.ValueInfoProto()
    last.CopyFrom(output)
    last.name = "last"
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", [output.name], ["last"])],
        "head",
        [output],
        [last],
    )
    opsets = [each for each in model.opset_import if not each.domain]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), path)
    return path


def check_digests(path):
    """Verify a model: its payloads have digests, and these fit."""
    report = epctx.verify_model(path)
    codes = {finding.code for finding in report.findings}
    assert not codes & {"digest-mismatch", "seal-broken", "payload-missing"}, report
    assert [payload.digests for payload in report.payloads] == [True]


@pytest.mark.parametrize("seal", [None, "inside", "beside"])
def test_a_merged_node_is_extracted_equal_with_its_binary(context, seal, tmp_path):
    original = get_node(context)
    if seal:
        epctx.seal_model(context, beside=seal == "beside")
    head = head_of(context, tmp_path / "head.onnx")

    whole = merge([context, head], tmp_path / "merged" / "whole.onnx").model
    part = extract(whole, tmp_path / "part" / "part.onnx", node=original.name).model

    assert get_node(part) == get_node(whole) == original
    binary = get_payload(context)
    if binary is not None:
        assert get_payload(part).samefile(binary)
    if seal:
        check_digests(whole)
        check_digests(part)


@pytest.mark.parametrize("seal", [None, "inside", "beside"])
def test_a_payload_goes_in_and_out_of_its_model(context, seal, tmp_path):
    binary = get_payload(context)
    if seal:
        epctx.seal_model(context, beside=seal == "beside")

    inside = embed(context, tmp_path / "inside" / "net_ctx.onnx").model
    outside = externalize(inside, tmp_path / "outside" / "net_ctx.onnx").model

    expected = (
        binary.read_bytes()
        if binary
        else next(
            each.s
            for each in get_node(context).attribute
            if each.name == "ep_cache_context"
        )
    )
    assert get_payload(inside) is None
    assert get_payload(outside).read_bytes() == expected
    if seal:
        check_digests(inside)
        check_digests(outside)


def test_payloads_without_digests_are_told_apart(tmp_path):
    folder = shutil.copytree(REAL, tmp_path / "real")
    changed = shutil.copytree(REAL, tmp_path / "changed")
    binary = changed / "qnn_ctx0_qnn.bin"
    content = bytearray(binary.read_bytes())
    content[-1] ^= 1
    binary.write_bytes(content)

    report = diff(folder / "qnn_ctx0.onnx", changed / "qnn_ctx0.onnx")

    (difference,) = report.differences
    assert (difference.part, difference.name) == ("payload", binary.name)
    assert difference.first.startswith(f"{len(content):,} bytes, data ")
    assert not report.notes


def test_a_payload_in_a_file_of_another_name_is_paired_by_its_digest(tmp_path):
    folder = shutil.copytree(REAL, tmp_path / "real")
    renamed = shutil.copytree(REAL, tmp_path / "renamed")
    (renamed / "qnn_ctx0_qnn.bin").rename(renamed / "other.bin")
    model = onnx.load(renamed / "qnn_ctx0.onnx", load_external_data=False)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "ep_cache_context":
            attribute.s = b"other.bin"
    onnx.save(model, renamed / "qnn_ctx0.onnx")

    report = diff(folder / "qnn_ctx0.onnx", renamed / "qnn_ctx0.onnx")

    assert [each.as_dict() for each in report.differences] == [
        {
            "part": "payload",
            "name": "qnn_ctx0_qnn.bin -> other.bin",
            "first": "named qnn_ctx0_qnn.bin",
            "second": "named other.bin",
        }
    ]


def test_embedded_payloads_without_digests_are_compared(tmp_path):
    model = onnx.load(REAL / "qnn_ctx1.onnx")
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "ep_cache_context":
            attribute.s = attribute.s[:-1] + b"?"
    onnx.save(model, tmp_path / "changed.onnx")

    report = diff(REAL / "qnn_ctx1.onnx", tmp_path / "changed.onnx")

    assert [each.part for each in report.differences] == ["payload"]


def test_texts_in_attributes_are_shown_as_text():
    report = diff(REAL / "share1_ctx.onnx", REAL / "share2_ctx.onnx")

    nodes = [each for each in report.differences if each.part == "node"]
    assert nodes
    shown = " ".join(each.first or each.second for each in nodes)
    assert "source='QNNExecutionProvider'" in shown
