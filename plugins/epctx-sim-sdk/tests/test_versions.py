"""Versions, relations and a vendor's table."""

from __future__ import annotations

import pytest
from epctx_sim_sdk.versions import (
    BLOB_VERSION,
    CONTEXT_API,
    NUMBER,
    OPTIMAL,
    RECOMPILE,
    SDK_VERSION,
    VERSION,
    LoadPolicy,
    Relation,
    Version,
    field_rules,
    judge,
    read_info,
    relation,
    stated_facts,
    write_info,
)

from epctx_core.errors import InvalidArgument
from epctx_core.plugin import Compatibility

pytestmark = pytest.mark.internal

RULES = {
    ("sdk", Relation.NEWER): Compatibility.EP_UNSUPPORTED,
    ("sdk", Relation.OLDER): Compatibility.EP_SUPPORTED_OPTIMAL,
    ("arch", Relation.OLDER): Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION,
    ("arch", Relation.MISSING): Compatibility.EP_UNSUPPORTED,
}


@pytest.mark.parametrize(
    ("found", "needed", "expected"),
    [
        ("sim-2.51.0", "sim-2.51.0", Relation.SAME),
        ("sim-2.9.0", "sim-2.51.0", Relation.OLDER),
        ("sim-2.51.1", "sim-2.51.0", Relation.NEWER),
        ("sim-1.99.0", "sim-2.0.0", Relation.OLDER_MAJOR),
        ("sim-3.0.0", "sim-2.99.9", Relation.NEWER_MAJOR),
        ("68", "73", Relation.OLDER),
        ("100", "73", Relation.NEWER),
        ("073", "73", Relation.SAME),
        ("htp", "gpu", Relation.OTHER),
        ("v2.51.0.260929181845", "sim-2.51.0", Relation.OTHER),
        (None, "73", Relation.MISSING),
        (None, None, Relation.SAME),
        ("73", None, Relation.SAME),
    ],
)
def test_facts_are_compared_by_what_they_are(found, needed, expected):
    assert relation(found, needed) is expected


def test_the_worst_field_decides_and_is_named():
    verdict = judge(
        RULES, {"sdk": "sim-3.0.1", "arch": "68"}, {"sdk": "sim-3.0.0", "arch": "73"}
    )

    assert verdict.verdict is Compatibility.EP_UNSUPPORTED
    assert (verdict.field, verdict.found, verdict.needed) == (
        "sdk",
        "sim-3.0.1",
        "sim-3.0.0",
    )


def test_what_the_table_does_not_list_is_optimal():
    assert (
        judge(RULES, {"sdk": "x", "arch": "99"}, {"sdk": "y", "arch": "73"}).verdict
        == 1
    )


def test_a_missing_field_is_an_answer_too():
    assert judge(RULES, {"sdk": "sim-1.0.0"}, {"arch": "73"}).found == "missing"


def test_a_host_can_set_what_the_runtime_claims_to_be():
    options = {
        "runtime_sdk_version": "",
        "runtime_api_version": 0,
        "runtime_blob_version": 0,
    }
    claims = {
        "runtime_sdk_version": "sim-9.0.0",
        "runtime_api_version": 7,
        "runtime_blob_version": 8,
    }
    versions = {"sdk": SDK_VERSION}

    real = stated_facts("E", "V", options, versions)

    assert real == {
        "vendor": "V",
        "api": CONTEXT_API,
        "blob": BLOB_VERSION,
        "sdk": SDK_VERSION,
    }
    assert stated_facts("E", "V", claims, versions) == {
        "vendor": "V", "api": "7", "blob": "8", "sdk": "sim-9.0.0",
    }  # fmt: skip
    with pytest.raises(
        InvalidArgument,
        match=r"'runtime_sdk_version' is '2\.51\.0', which is not a simulated version",
    ):
        stated_facts("E", "V", options | {"runtime_sdk_version": "2.51.0"}, versions)


def test_every_difference_is_refused_but_those_that_the_table_accepts():
    rules = field_rules("sdk", NUMBER, older=OPTIMAL, newer=RECOMPILE)

    assert {relation.name: verdict for (_, relation), verdict in rules.items()} == {
        "OLDER": OPTIMAL,
        "NEWER": RECOMPILE,
        "OTHER": Compatibility.EP_UNSUPPORTED,
        "MISSING": Compatibility.EP_UNSUPPORTED,
    }


@pytest.mark.parametrize(
    ("found", "verdict"),
    [("sim-2.51.9", OPTIMAL), ("sim-2.50.0", Compatibility.EP_UNSUPPORTED)],
)
def test_a_patch_does_not_count_where_the_vendor_says_so(found, verdict):
    policy = LoadPolicy(
        ep="E",
        rules=field_rules("sdk", VERSION),
        runtime={"sdk": "sim-2.51.3"},
        claims={},
        without_patch=("sdk",),
    )

    assert policy.judge({"sdk": found}).verdict is verdict


def test_a_version_is_written_as_it_is_read():
    assert str(Version.parse(SDK_VERSION)) == SDK_VERSION
    assert Version.parse("sim-1.2") is None


def test_info_is_read_as_it_was_written_and_nothing_else_is():
    facts = {"sdk": "sim-2.51.0", "backend": "htp"}

    assert write_info(facts) == "epctx-sim;backend=htp;sdk=sim-2.51.0"
    assert read_info(write_info(facts)) == facts
    assert read_info("v2:6:2.51.0:5.51.0:0:60:0:0") is None
    assert read_info("") is None
    assert read_info("epctx-sim;" + "x" * 5000) is None
    assert read_info("epctx-sim;junk;sdk=1") == {"sdk": "1"}
