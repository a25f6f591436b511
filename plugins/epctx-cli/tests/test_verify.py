"""`epctx verify`."""

from __future__ import annotations

import shutil

import onnx
import pytest
from support.folders import REAL
from support.install_commands import pip_install


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_good_model_is_ok_and_the_report_says_who_looked_into_what(epctx, compiled):
    said = epctx("verify", compiled)

    assert said.code == 0
    assert "resnet_qnn.bin" in said.out
    assert "epctx-sim-qnn 0.1.0" in said.out
    assert said.out.rstrip().endswith("ok: nothing found")


def test_the_json_of_a_good_model(epctx, compiled):
    answer = epctx("verify", compiled, "--json").json

    assert answer["ok"] is True
    assert (answer["verdict"], answer["findings"]) == ("ok", [])
    (payload,) = answer["payloads"]
    assert payload["digests_checked"] is True
    assert payload["looked_into_by"] == "epctx-sim-qnn 0.1.0"


def test_a_flipped_bit_anywhere_fails_the_check(epctx, compiled):
    binary = compiled.with_name("resnet_qnn.bin")
    flip(binary, binary.stat().st_size // 2)

    said = epctx("verify", compiled)
    answer = epctx("verify", compiled, "--json").json

    assert said.code == 1
    assert "error digest-mismatch" in said.out
    assert "not ok: 1 error" in said.out
    assert (answer["ok"], answer["verdict"]) == (False, "not-ok")
    assert [f["code"] for f in answer["findings"]] == ["digest-mismatch"]
    assert answer["findings"][0]["severity"] == "error"


@pytest.mark.parametrize(
    "name", ["qnn_ctx0", "qnn_ctx1", "share1_ctx", "share2_ctx", "ov_ctx0"]
)
def test_a_vendors_model_is_not_checked_where_its_ep_is_simulated_and_the_line_to_install_is_said(
    epctx, name
):
    package = "epctx-openvino" if name.startswith("ov") else "epctx-onnxruntime[qnn]"

    said = epctx("verify", REAL / f"{name}.onnx")
    answer = epctx("verify", REAL / f"{name}.onnx", "--json").json

    assert said.code == 0
    assert said.out.splitlines()[-1] == "not checked: 3 notes"
    assert (answer["ok"], answer["verdict"]) == (True, "not-checked")
    assert [payload["looked_into_by"] for payload in answer["payloads"]] == [None]
    found = {finding["code"]: finding for finding in answer["findings"]}
    assert "written by the real" in found["container-not-checked"]["message"]
    assert "simulated" in found["container-not-checked"]["message"]
    assert found["not-checked"]["hint"].startswith(pip_install(package))


def test_a_model_of_which_no_payload_byte_was_judged_ends_with_not_checked_and_strict_makes_that_exit_1(
    epctx, tmp_path
):
    proto = onnx.load(REAL / "qnn_ctx0.onnx")
    next(a for a in proto.graph.node[0].attribute if a.name == "source").s = b"Unheard"
    model = tmp_path / "m.onnx"
    onnx.save(proto, model)
    shutil.copy(REAL / "qnn_ctx0_qnn.bin", tmp_path)

    said = epctx("verify", model)
    strict = epctx("verify", model, "--strict")
    answer = epctx("verify", model, "--strict", "--json")

    assert (said.code, strict.code, answer.code) == (0, 1, 1)
    assert said.out == strict.out
    assert said.out.splitlines()[-1].startswith("not checked: ")
    assert answer.json["ok"] is True
    (finding,) = [f for f in answer.json["findings"] if f["code"] == "not-checked"]
    assert "qnn_ctx0_qnn.bin" in finding["message"]


def test_strict_says_nothing_against_a_model_with_digests(epctx, compiled):
    assert epctx("verify", compiled, "--strict").code == 0


def test_a_missing_plugin_is_a_warning_with_what_would_help(
    epctx, compiled, monkeypatch
):
    proto = onnx.load(compiled)
    next(a for a in proto.graph.node[0].attribute if a.name == "source").s = b"Unheard"
    onnx.save(proto, compiled)

    said = epctx("verify", compiled)

    assert said.code == 0
    assert "warning plugin-missing" in said.out
    assert "No installed plugin accepts the source 'Unheard'" in said.out


def test_a_file_that_is_not_there_is_wrong_usage(epctx, tmp_path):
    said = epctx("verify", tmp_path / "nothing.onnx")

    assert said.code == 2
    assert "nothing.onnx" in said.err


def test_what_is_no_model_is_bad_input(epctx, tmp_path):
    (tmp_path / "x.onnx").write_bytes(b"\xff" * 30)

    said = epctx("verify", tmp_path / "x.onnx", "--json")

    assert said.code == 2
    assert said.json["ok"] is False
    assert [f["code"] for f in said.json["findings"]] == ["model-unreadable"]


def test_a_broken_plugin_is_its_own_exit_code(process, compiled, site):
    proto = onnx.load(compiled)
    next(
        a for a in proto.graph.node[0].attribute if a.name == "source"
    ).s = b"SpoiltExecutionProvider"
    onnx.save(proto, compiled)
    folder = site(
        "epctx-spoilt",
        "SpoiltExecutionProvider",
        code="raise RuntimeError('no SDK here')",
    )

    said = process("verify", compiled, path=[folder])

    assert said.code == 3
    assert "error plugin-broken" in said.out
    assert "no SDK here" in said.out


def test_a_faulty_model_counts_more_than_a_broken_plugin(process, compiled, site):
    proto = onnx.load(compiled)
    next(
        a for a in proto.graph.node[0].attribute if a.name == "source"
    ).s = b"SpoiltExecutionProvider"
    onnx.save(proto, compiled)
    compiled.with_name("resnet_qnn.bin").write_bytes(b"")
    folder = site(
        "epctx-spoilt",
        "SpoiltExecutionProvider",
        code="raise RuntimeError('no SDK here')",
    )

    said = process("verify", compiled, path=[folder])

    assert said.code == 1
    assert "error payload-refused" in said.out


def test_options_of_an_ep_are_given_as_for_a_run(epctx, compiled):
    said = epctx("verify", compiled, "--ep", "QNN", "-p", "QNN.htp_arch=68", "--json")

    assert said.code == 1
    assert {f["code"] for f in said.json["findings"]} == {
        "compatibility-unsupported",
        "container-refused",
    }


def test_names_out_of_a_model_cannot_steer_the_terminal(epctx, compiled):
    proto = onnx.load(compiled)
    proto.graph.node[0].name = "\x1b[2J\u202eevil"
    del proto.graph.node[0].attribute[:]
    onnx.save(proto, compiled)

    said = epctx("verify", compiled)

    assert said.code == 1
    assert not set("\x1b\u202e") & set(said.out + said.err)
