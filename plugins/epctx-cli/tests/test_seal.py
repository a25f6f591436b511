"""`epctx seal`."""

from __future__ import annotations

import shutil

import pytest
from support.folders import REAL


@pytest.fixture
def share(tmp_path):
    """Return two context models of a vendor with one binary."""
    for name in ("share1_ctx.onnx", "share2_ctx.onnx", "share1_qnn.bin"):
        shutil.copy(REAL / name, tmp_path)
    return tmp_path / "share1_ctx.onnx", tmp_path / "share2_ctx.onnx"


def test_it_prints_the_digest_of_each_payload(epctx, share):
    said = epctx("seal", share[0])

    assert said.code == 0
    assert f"wrote {share[0]}" in said.out
    assert "share1_qnn.bin" in said.out
    assert "100.0 KiB" in said.out
    assert epctx("seal", share[0]).out.startswith(f"sealed already: {share[0]}")


def test_the_json_of_a_seal_beside_its_model(epctx, share):
    answers = [epctx("seal", path, "--beside", "--json").json for path in share]

    assert [answer["manifest"] for answer in answers] == [
        f"{path}.epctx.json" for path in share
    ]
    assert [answer["written"] for answer in answers] == [True, True]
    (first,), (second,) = (answer["payloads"] for answer in answers)
    assert first == second
    assert (first["name"], first["bytes"]) == ("share1_qnn.bin", 102_400)


def test_verify_and_inspect_tell_of_the_seal(epctx, share):
    before = epctx("verify", share[0], "--json").json
    epctx("seal", share[0])

    after = epctx("verify", share[0], "--json").json

    assert [each["payloads"][0]["digests_checked"] for each in (before, after)] == [
        False,
        True,
    ]
    assert (
        "Compiled by an unknown tool, sealed by epctx-core"
        in epctx("inspect", share[0]).out
    )
    assert (
        epctx("inspect", share[0], "--json").json["sealed_by"].startswith("epctx-core ")
    )
    assert epctx("inspect", share[1], "--json").json["sealed_by"] is None


def test_a_damaged_binary_fails_the_check_of_a_sealed_model(epctx, share):
    epctx("seal", share[0])
    binary = share[0].with_name("share1_qnn.bin")
    binary.write_bytes(bytes(binary.stat().st_size))

    said = epctx("verify", share[0])

    assert said.code == 1
    assert "error digest-mismatch" in said.out


def test_another_manifest_is_replaced_by_force_only(epctx, share):
    epctx("seal", share[0])
    share[0].with_name("share1_qnn.bin").write_bytes(b"another")

    refused, forced = epctx("seal", share[0]), epctx("seal", share[0], "--force")

    assert (refused.code, forced.code) == (2, 0)
    assert "--force" in refused.err
    assert "7 bytes" in forced.out


def test_a_sealed_copy(epctx, share):
    said = epctx("seal", share[0], "-o", share[0].with_name("copy.onnx"))

    assert said.code == 0
    assert share[0].read_bytes() == (REAL / "share1_ctx.onnx").read_bytes()
    assert epctx("verify", share[0].with_name("copy.onnx"), "--json").json["payloads"][
        0
    ]["digests_checked"]


def test_a_model_without_payloads_is_a_wrong_argument(epctx):
    said = epctx("seal", REAL / "conv.onnx")

    assert said.code == 2
    assert "nothing to seal" in said.err


def test_it_is_listed_and_explained(epctx):
    assert "seal" in epctx("--help").out
    help_text = epctx("seal", "--help").out
    assert all(
        option in help_text for option in ("--beside", "--force", "-o", "--json")
    )
