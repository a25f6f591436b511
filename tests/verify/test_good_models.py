"""Models of compilers verify as good: the simulated ones in full, vendors' own where
nobody simulates their EPs.
"""

from __future__ import annotations

import pytest
from support.agreement_of_routes import compiled as compiled_with_bodies
from support.agreement_of_routes import model_of
from support.context_pairs import knowing
from support.engine_eps import Alpha
from support.folders import REAL

import epctx_core as epctx
from epctx_core.plugin import Severity

CASES = [
    ("resnet", ("QNN",), 1),
    ("lstm", ("OpenVINO",), 1),
    ("bert", ("OpenVINO", "QNN"), 1),
    ("resnet_int8", ("VitisAI",), 1),
    ("resnet_int8", ("VitisAI", "QNN"), 1),
]


@pytest.mark.parametrize("embed", ["0", "1"], ids=["file", "embedded"])
@pytest.mark.parametrize(("name", "eps", "least"), CASES, ids=str)
def test_what_the_simulated_eps_write_is_good(
    network, tmp_path, name, eps, least, embed
):
    options = epctx.SessionOptions()
    for ep in eps:
        options.add_provider(ep)
    options.add_session_config_entry("ep.context_embed_mode", embed)
    output = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(options, network(name).path).compile_to_file(output)

    report = epctx.verify_model(output)

    assert report.ok
    assert report.findings == ()
    assert report.nodes >= least
    assert len(report.payloads) >= 1
    for payload in report.payloads:
        assert payload.digests
        assert payload.embedded is (embed == "1")
        assert payload.looked_into_by is not None
        assert payload.looked_into_by.startswith("epctx-sim-")


def test_nodes_in_bodies_are_checked(tmp_path):
    text = """agraph (bool c, float[2] x) => (float[2] y) {
        y = If (c) <
            then_branch = t () => (float[2] a) { a = Relu(x) },
            else_branch = e () => (float[2] a) { b = Tanh(x)  a = Add(b, b) }
        >
    }"""
    output = compiled_with_bodies(model_of(text), tmp_path / "m.onnx").output

    report = epctx.verify_model(output, registry=knowing(Alpha))

    assert report.ok
    assert report.nodes == 2
    assert [finding.code for finding in report.findings] == ["container-not-checked"]


VENDORS = {
    "qnn_ctx0": "the real QNN SDK (Qualcomm)",
    "qnn_ctx1": "the real QNN SDK (Qualcomm)",
    "share1_ctx": "the real QNN SDK (Qualcomm)",
    "share2_ctx": "the real QNN SDK (Qualcomm)",
    "ov_ctx0": "the real OpenVINO execution provider (Intel)",
}


@pytest.mark.parametrize("name", VENDORS)
def test_a_vendors_model_is_not_checked_by_a_simulated_ep_and_said_whose_it_is(name):
    report = epctx.verify_model(REAL / f"{name}.onnx")

    (unread,) = [
        finding
        for finding in report.findings
        if finding.code == "container-not-checked"
    ]
    assert report.verdict == "not-checked"
    assert VENDORS[name] in unread.message
    assert "simulated" in unread.message
    assert unread.node is not None


@pytest.mark.parametrize("name", VENDORS)
def test_a_vendors_model_without_a_plugin_is_good_with_a_warning_that_says_what_to_install(
    name,
):
    report = epctx.verify_model(REAL / f"{name}.onnx", registry=knowing())

    (missing,) = [
        finding for finding in report.findings if finding.code == "plugin-missing"
    ]
    assert report.ok
    assert missing.severity is Severity.WARNING
    assert missing.hint


def test_the_report_as_json_has_the_keys_that_stay():
    answer = epctx.verify_model(REAL / "qnn_ctx0.onnx").as_dict()

    assert (answer["ok"], answer["verdict"]) == (True, "not-checked")
    assert all(
        f.keys() == {"severity", "code", "node", "message", "hint"}
        for f in answer["findings"]
    )
