"""Files that vendors' compilers wrote, put together and taken apart without them."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
from epctx_files import diff, embed, externalize, extract, merge

import epctx_core as epctx

REAL = Path(__file__).parents[3] / "tests" / "real"
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
    (output, *_) = onnx.load(context, load_external_data=False).graph.output
    last = onnx.ValueInfoProto()
    last.CopyFrom(output)
    last.name = "last"
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", [output.name], ["last"])],
        "head",
        [output],
        [last],
    )
    onnx.save(onnx.helper.make_model(graph), path)
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

    unread = diff(folder / "qnn_ctx0.onnx", changed / "qnn_ctx0.onnx")
    read = diff(folder / "qnn_ctx0.onnx", changed / "qnn_ctx0.onnx", weights=True)

    assert not unread.differences
    assert "1 payload" in unread.notes[0]
    assert [each.part for each in read.differences] == ["payload"]


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
