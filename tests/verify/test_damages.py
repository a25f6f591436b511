"""Each kind of damage gives its finding, and no other; several give several."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from onnx import TensorProto, helper
from support.context_pairs import Alpha, Harness, attribute, context_node, drop, knowing
from support.paths_corpus import ESCAPES, NOT_UTF8
from verify.damages import DAMAGES, documented_codes, renames

import epctx_core as epctx
from epctx_core.plugin import Compatibility, Severity

pytestmark = pytest.mark.internal

SEVERITIES = {code: Severity(severity) for code, severity, *_ in documented_codes()}
BEFORE = {"compiled": [], "handmade": ["manifest-missing"], "plain": []}
"""Findings in each harness when nothing is damaged."""
INSTEAD = {
    # What is no model has no manifest to miss.
    "model-unreadable": ["model-unreadable"],
    "seal-broken": ["seal-broken"],
    "budget-exceeded": ["budget-exceeded"],
    # Without a manifest the EP's own check is all there is.
    "plugin-missing": ["plugin-missing", "manifest-missing", "not-checked"],
    "container-not-checked": [
        "manifest-missing",
        "container-not-checked",
        "not-checked",
    ],
    "not-checked": ["manifest-missing", "container-not-checked", "not-checked"],
}
"""Damages that give more than their own code."""


@pytest.fixture
def harness(request, tmp_path):
    """The harness that a damage is done to."""

    def make(name: str) -> Harness:
        if name == "plain":
            return Harness(tmp_path / "plain.onnx")
        return request.getfixturevalue(name)

    return make


def test_there_is_a_damage_for_every_code():
    assert set(DAMAGES) == set(SEVERITIES)


@pytest.mark.parametrize("name", ["compiled", "handmade"])
def test_nothing_is_found_in_a_scene_before_it_is_damaged(harness, name):
    report = harness(name).verify()

    assert report.ok
    assert [finding.code for finding in report.findings] == BEFORE[name]


@pytest.mark.parametrize("code", SEVERITIES)
def test_a_damage_gives_exactly_its_finding(harness, code):
    damage = DAMAGES[code]
    damaged = harness(damage.harness)
    damage.apply(damaged)

    report = damaged.verify()

    expected = INSTEAD.get(code) or [
        code,
        *(c for c in BEFORE[damage.harness] if c != code),
    ]
    assert sorted(finding.code for finding in report.findings) == sorted(expected), (
        report.findings
    )
    assert report.ok is (SEVERITIES[code] is not Severity.ERROR)
    for finding in report.findings:
        assert finding.severity is SEVERITIES[finding.code]
        assert finding.message.endswith(".") or ": " in finding.message


NODES = {
    "node-refused": "b",
    "source-missing": "b",
    "primary-missing": "a",
    "type-undeclared": "a",
}


@pytest.mark.parametrize("code", NODES)
def test_a_finding_names_the_node(handmade, code):
    DAMAGES[code].apply(handmade)

    (finding,) = [
        finding for finding in handmade.verify().findings if finding.code == code
    ]

    assert finding.node == NODES[code]
    assert finding.hint


def test_several_damages_give_several_findings_errors_first(handmade):
    handmade.edit_node(0, renames(b"gone.bin"))
    handmade.edit_node(1, lambda node: setattr(attribute(node, "main_context"), "i", 5))
    handmade.edit(lambda proto: proto.graph.ClearField("value_info"))

    codes = handmade.codes()

    assert codes == [
        "node-refused",
        "type-undeclared",
        "payload-refused",
        "manifest-missing",
    ]


def spoil_name(harness):
    """Give a node a name that is not UTF-8."""
    harness.edit(
        lambda proto: proto.graph.node.append(context_node("spoilt!", ["x"], ["z"]))
    )
    content = harness.path.read_bytes()
    index = content.rindex(
        b"spoilt!", 0, content.index(b"partition_name", content.index(b"spoilt!"))
    )
    harness.path.write_bytes(content[:index] + b"\xff" + content[index + 1 :])


def spoil_attribute_name(harness):
    """Give a node an attribute whose name is not UTF-8."""
    harness.edit_node(
        0, lambda node: node.attribute.append(helper.make_attribute("spoilt!", 1))
    )
    content = harness.path.read_bytes()
    harness.path.write_bytes(content.replace(b"spoilt!", b"\xffpoilt!"))


def spoil_attribute(harness):
    """Give a node an attribute whose tensor has too few bytes."""
    short = TensorProto(data_type=TensorProto.FLOAT, dims=[4], raw_data=b"123")
    harness.edit_node(
        0, lambda node: node.attribute.append(helper.make_attribute("extra", short))
    )


REFUSED_NODES = {
    "a name that is not text": (spoil_name, "not UTF-8"),
    "an attribute whose name is not text": (
        spoil_attribute_name,
        "'a' has the attribute b'\\xffpoilt!', whose name is not UTF-8",
    ),
    "an attribute of another type": (
        DAMAGES["node-refused"].apply,
        "'notes' as INT; the operator has STRING",
    ),
    "a switch that is neither 0 nor 1": (
        lambda harness: harness.edit_node(
            1, lambda node: setattr(attribute(node, "main_context"), "i", 2)
        ),
        "main_context=2; the operator has 0 and 1",
    ),
    "an attribute that cannot be read": (
        spoil_attribute,
        "'extra', which cannot be read",
    ),
    "no outputs": (
        lambda harness: harness.edit(
            lambda proto: proto.graph.node.append(context_node("c", ["x"], []))
        ),
        "'c' has no outputs",
    ),
}


@pytest.mark.parametrize("fault", REFUSED_NODES)
def test_a_node_that_a_load_refuses_is_found_with_what_a_load_says(handmade, fault):
    damage, says = REFUSED_NODES[fault]
    damage(handmade)

    (finding,) = [
        finding
        for finding in handmade.verify().findings
        if finding.code == "node-refused"
    ]

    assert says in finding.message
    with pytest.raises(epctx.InvalidGraph):
        epctx.InferenceSession(
            handmade.path, handmade.options, registry=handmade.registry
        )


def test_each_attribute_that_a_load_refuses_is_found_and_the_payload_is_checked_all_the_same(
    handmade,
):
    def spoil(node):
        attribute(node, "embed_mode").i = 7
        attribute(node, "main_context").i = 9
        node.attribute.append(helper.make_attribute("notes", 1))

    handmade.edit_node(1, spoil)
    handmade.edit_node(0, renames(b"gone.bin"))

    report = handmade.verify()

    says = "\n".join(
        finding.message for finding in report.findings if finding.code == "node-refused"
    )
    assert [
        word in says for word in ("embed_mode=7", "main_context=9", "'notes' as INT")
    ] == [True] * 3
    assert "payload-refused" in {finding.code for finding in report.findings}
    assert report.nodes == 2


def link_outside(harness):
    """Put a link that leaves the folder in the place of the binary."""
    binary, outside = harness.binary, harness.path.parent.parent / "outside.bin"
    binary.rename(outside)
    binary.symlink_to(outside)


REFUSED_PAYLOADS = {
    "missing": (lambda harness: harness.binary.unlink(), "which is missing"),
    "not said": (
        lambda harness: harness.edit_node(
            0, lambda node: drop(node, "ep_cache_context")
        ),
        "no file name in ep_cache_context",
    ),
    "a link that leaves": (link_outside, "a link that leaves the model's folder"),
    "empty": (lambda harness: harness.binary.write_bytes(b""), "is empty"),
    "pending": (
        lambda harness: harness.edit_manifest(
            lambda manifest: manifest.update(pending=[harness.binary.name])
        ),
        "was not written yet",
    ),
}


@pytest.mark.parametrize("fault", REFUSED_PAYLOADS)
def test_a_payload_that_a_load_refuses_is_found_with_what_a_load_says(compiled, fault):
    damage, says = REFUSED_PAYLOADS[fault]
    damage(compiled)

    (finding,) = compiled.verify().findings

    assert finding.code == "payload-refused"
    assert says in finding.message
    assert finding.node
    assert finding.hint


@pytest.mark.parametrize("content", [b"\0", b""])
def test_a_payload_of_another_size_is_found(compiled, content):
    compiled.binary.write_bytes(compiled.binary.read_bytes()[:-1] + content + content)

    report = compiled.verify()
    (finding,) = report.findings

    assert finding.code == "digest-mismatch"
    assert "is not the one that the model was written with: it has" in finding.message
    (payload,) = report.payloads
    assert (payload.name, payload.digests) == (compiled.binary.name, False)
    assert payload.size == compiled.binary.stat().st_size


def test_a_name_that_leaves_the_folder_is_refused(handmade):
    for name in [*(name.encode() for name in ESCAPES.values()), *NOT_UTF8.values()]:
        handmade.edit_node(0, renames(name))

        assert handmade.codes()[0] == "payload-refused", name


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_what_is_no_regular_file_is_refused_at_once(compiled, kind):
    import os

    binary = compiled.binary
    binary.unlink()
    if kind == "folder":
        binary.mkdir()
    elif kind == "pipe":
        os.mkfifo(binary)
    else:
        binary.symlink_to(binary.name)

    assert compiled.codes() == ["payload-refused"]


def test_a_link_inside_the_folder_is_good(compiled):
    binary = compiled.binary
    inside = binary.rename(binary.with_name("real.data"))
    binary.symlink_to(inside.name)

    report = compiled.verify()

    assert report.ok
    assert report.findings == ()


def test_a_model_from_bytes_with_its_folder_is_checked_in_full(compiled):
    options = epctx.SessionOptions()
    options.add_session_config_entry("ep.context_file_path", str(compiled.path))

    report = epctx.verify_model(compiled.path.read_bytes(), options)

    assert report.findings == ()
    assert report.path is None
    assert report.payloads[0].digests


def test_every_bit_of_a_payload_counts(compiled):
    size = compiled.binary.stat().st_size
    for offset in (0, 20, size // 3, size - 1):
        compiled.flip(offset)
        assert compiled.codes() == ["digest-mismatch"], offset
        compiled.flip(offset)

    assert compiled.codes() == []


def test_a_plugin_that_cannot_be_imported_is_broken(handmade, monkeypatch):
    def fail(source, among=None):
        raise epctx.PluginError("alpha cannot be imported.", ep=source)

    handmade.registry = knowing(Alpha)
    monkeypatch.setattr(handmade.registry, "route", fail)

    (finding, _) = handmade.verify().findings

    assert (finding.code, finding.message) == (
        "plugin-broken",
        "alpha cannot be imported.",
    )


@pytest.mark.parametrize("answer", ["nonsense", 7, ["text"], {"a": 1}])
def test_an_answer_that_is_none_of_the_contract_is_the_plugins_fault(handmade, answer):
    wrong = type(
        "Wrong",
        (Alpha,),
        {"verify_payloads": classmethod(lambda cls, context, nodes, reader: answer)},
    )
    handmade.registry = knowing(wrong)

    (finding, _) = handmade.verify().findings

    assert finding.code == "plugin-broken"
    assert re.search(
        r"verify_payloads.* instead of a (list, which may be empty|Finding)\.$",
        finding.message,
    )


def test_the_verdict_of_a_plugin_that_raises_is_the_plugins_fault(handmade):
    handmade.edit_metadata(
        "ep_compatibility_info.AlphaExecutionProvider", "NO_SUCH_VERDICT"
    )

    (finding, _) = handmade.verify().findings

    assert finding.code == "plugin-broken"
    assert "validate_compatibility" in finding.message


def test_an_ep_gets_the_nodes_and_their_payloads(handmade):
    seen = {}

    def look(cls, context, nodes, reader):
        for node in nodes:
            payload = reader.payload(node)
            seen[node.name] = (
                node.main_context,
                bytes(payload.view[:3]),
                payload.name,
                payload.digest,
            )
        with pytest.raises(
            epctx.InvalidGraph, match="no EPContext node names its file"
        ):
            reader.source_tensor("w")
        with context.scratch() as folder:
            assert folder.is_dir()
        seen["as_file"] = Path(payload.as_file()).read_bytes()[:3]
        return []

    handmade.registry = knowing(
        type("Looking", (Alpha,), {"verify_payloads": classmethod(look)})
    )

    report = handmade.verify()

    assert seen == {
        "a": (True, b"\x00\x01\x02", "h_alpha.bin", None),
        "b": (False, b"\x00\x01\x02", "h_alpha.bin", None),
        "as_file": b"\x00\x01\x02",
    }
    assert report.payloads[0].looked_into_by == "registered by the host"


def test_a_path_that_is_not_there_is_the_callers_error(tmp_path):
    with pytest.raises(epctx.NoSuchFile):
        epctx.verify_model(tmp_path / "nothing.onnx")
    with pytest.raises(epctx.InvalidArgument):
        epctx.verify_model(tmp_path)


def test_a_model_that_is_replaced_meanwhile_is_verified_as_it_is_then(
    compiled, tmp_path
):
    good = compiled.path.read_bytes()
    other = tmp_path / "other_ctx.onnx"
    compiled.edit_manifest(
        lambda content: content["payloads"][0].update(bytes=1, segments=[[1, "0" * 64]])
    )
    verdicts = []

    def replace(cls, info, options):
        verdicts.append(info)
        other.write_bytes(good)
        other.replace(compiled.path)
        return Compatibility.EP_SUPPORTED_OPTIMAL

    replacing = type(
        "Replacing",
        (Alpha,),
        {
            "name": "QNNExecutionProvider",
            "validate_compatibility": classmethod(replace),
        },
    )
    compiled.registry = knowing(replacing)

    report = compiled.verify()

    assert report.ok
    assert len(verdicts) == 2


def test_payloads_that_the_host_reads_are_checked(compiled):
    content = compiled.binary.read_bytes()
    compiled.binary.unlink()
    asked = []

    def read(name, buffer):
        asked.append(name)
        buffer.allocate(len(content))
        buffer.write(content)

    compiled.options.set_ep_context_data_read_func(read, len(content))

    report = compiled.verify()

    assert report.findings == ()
    assert report.payloads[0].digests
    assert asked == ["m_qnn.bin"]


def test_what_the_hosts_callback_raises_is_the_hosts(compiled):
    def read(name, buffer):
        raise ZeroDivisionError(name)

    compiled.options.set_ep_context_data_read_func(read, 1 << 20)

    with pytest.raises(epctx.Fail, match="ZeroDivisionError"):
        compiled.verify()
