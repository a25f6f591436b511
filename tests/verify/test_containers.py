"""Payloads of the simulated SDK without a manifest: what their EP finds in them."""

from __future__ import annotations

import hashlib
import json

import pytest
from epctx_sim_sdk.container import FOOT_SIZE, Foot
from support.context_pairs import attribute, drop

import epctx_core as epctx

pytestmark = pytest.mark.internal

QNN_VERSION = "ep_sdk_version"


@pytest.fixture
def bare(compiled):
    """The compiled model without its manifest, so that only the EP can tell."""
    compiled.edit_metadata("epctx.manifest", None)
    return compiled


def retabled(content, change):
    """Return a container with other tables and the digest that belongs to them."""
    foot = Foot.unpack(memoryview(content)[-FOOT_SIZE:])
    body = content[foot.structures_start : -FOOT_SIZE]
    tables = json.loads(body[foot.structures :])
    change(tables)
    new = json.dumps(tables, sort_keys=True, separators=(",", ":")).encode()
    head, graphs = content[: foot.structures_start], body[: foot.structures]
    total = len(head) + len(graphs) + len(new) + FOOT_SIZE
    made = Foot(
        structures_start=foot.structures_start,
        structures=len(graphs),
        tables=len(new),
        total=total,
    )
    return head + graphs + new + made.pack(graphs + new)


def byte(offset):
    def change(content):
        spoilt = bytearray(content)
        spoilt[offset] ^= 0x40
        return bytes(spoilt)

    return change


def tables(change):
    return lambda content: retabled(content, change)


DAMAGES = {
    "the mark": (byte(0), "damaged or foreign"),
    "the format": (byte(8), "has format"),
    "a weight": (byte(64), "1 of its 3 weights do not have the digest"),
    "the tables": (byte(-200), "do not have the digest that is written in it"),
    "the end": (byte(-1), "does not end with the mark of an end"),
    "cut": (lambda content: content[:-100], "truncated"),
    "longer": (lambda content: content + bytes(10), "longer than it should be"),
    "short": (lambda content: content[:30], "truncated"),
    "bounds": (
        tables(lambda t: t["weights"][0].update(offset=1 << 40)),
        "are named, but there are only",
    ),
    "reference": (tables(lambda t: t["graphs"][0].update(structure=99)), "is damaged"),
    "another SDK": (
        tables(lambda t: t["made_by"].update(sdk="sim-9.0.0")),
        "has sdk sim-9.0.0",
    ),
    "another vendor": (
        tables(lambda t: t["made_by"].update(vendor="acme")),
        "has vendor acme",
    ),
    "another device": (
        tables(lambda t: t["made_by"].update(htp_arch="99")),
        "has htp_arch 99",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_payload_that_its_ep_would_refuse_is_found_once(bare, what):
    change, words = DAMAGES[what]
    bare.binary.write_bytes(change(bare.binary.read_bytes()))

    report = bare.verify()

    (refused,) = [
        finding for finding in report.findings if finding.code == "container-refused"
    ]
    assert not report.ok
    assert words in refused.message
    assert refused.hint
    assert [f.code for f in report.findings if f is not refused] == ["manifest-missing"]


@pytest.mark.parametrize("what", [what for what in DAMAGES if what != "a weight"])
def test_a_load_refuses_what_is_found_but_for_weights_which_it_does_not_read(
    bare, what
):
    change, words = DAMAGES[what]
    bare.binary.write_bytes(change(bare.binary.read_bytes()))

    with pytest.raises(epctx.InvalidGraph, match=words):
        epctx.InferenceSession(bare.path)


def test_each_graph_that_is_missing_or_other_than_its_node_is_found(bare):
    def change(found):
        first, second, third = found["graphs"]
        first["name"], second["name"] = "gone_1", "gone_2"
        third["inputs"] = third["inputs"] * 2

    bare.binary.write_bytes(retabled(bare.binary.read_bytes(), change))

    report = bare.verify()

    refused = [
        finding for finding in report.findings if finding.code == "container-refused"
    ]
    assert len(refused) == 3
    assert len({finding.node for finding in refused}) == 3
    assert sum("holds a graph" in finding.message for finding in refused) == 2
    assert sum("its inputs are" in finding.message for finding in refused) == 1


def test_what_a_node_states_is_judged(compiled):
    compiled.edit_node(
        1, lambda node: setattr(attribute(node, QNN_VERSION), "s", b"sim-9.0.0")
    )

    (finding,) = compiled.verify().findings

    assert finding.code == "container-refused"
    assert "sim-9.0.0" in finding.message


def test_a_vendors_payload_in_a_simulated_node_is_refused(bare):
    bare.binary.write_bytes(b"\x7fELF" + bytes(500))

    codes = bare.codes()

    assert codes == ["container-refused", "manifest-missing"]


def test_a_vendors_payload_in_a_vendors_node_is_named_and_not_checked(bare):
    bare.binary.write_bytes(b"\x7fELF" + bytes(500))
    for place in range(3):
        for name in (QNN_VERSION, "notes"):
            bare.edit_node(place, lambda node, name=name: drop(node, name))

    report = bare.verify()

    (unread,) = [f for f in report.findings if f.code == "container-not-checked"]
    assert report.verdict == "not-checked"
    assert (
        "is an ELF file, as real vendors' compilers for an NPU write it"
        in unread.message
    )


def test_a_flipped_bit_of_a_weight_is_found_and_a_load_does_not_see_it(compiled):
    content = compiled.binary.read_bytes()
    foot = Foot.unpack(memoryview(content)[-FOOT_SIZE:])
    weight = json.loads(content[foot.structures_start + foot.structures : -FOOT_SIZE])[
        "weights"
    ][-1]
    compiled.flip(weight["offset"] + 2)

    report = compiled.verify()

    (finding,) = report.findings
    assert finding.code == "digest-mismatch"
    assert (
        f"bytes {weight['offset']:,} to {weight['offset'] + weight['length']:,}"
        in finding.message
    )
    assert (
        hashlib.sha256(content[weight["offset"] :][: weight["length"]]).hexdigest()
        == weight["digest"]
    )


def test_a_payload_for_another_device_is_judged_by_the_options_of_a_load(compiled):
    options = epctx.SessionOptions()
    options.add_provider("QNN", {"htp_arch": "68"})

    without = compiled.codes()
    report = epctx.verify_model(compiled.path, options)

    assert without == []
    assert {finding.code for finding in report.findings} == {
        "compatibility-unsupported",
        "container-refused",
    }


def test_a_wrong_option_is_the_callers_error(compiled):
    options = epctx.SessionOptions()
    options.add_provider("QNN", {"no_such_option": "1"})

    with pytest.raises(epctx.InvalidArgument, match="no_such_option"):
        epctx.verify_model(compiled.path, options)
