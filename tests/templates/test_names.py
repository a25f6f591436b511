"""All names of a new plugin follow from one word, and bad ones are refused with the reason."""

from __future__ import annotations

import pytest

from epctx_core.errors import InvalidArgument
from epctx_core.templates import PluginNames


def test_the_names_follow_from_one_word():
    names = PluginNames.of("acme")

    assert (names.distribution, names.module, names.ep, names.provider, names.magic) == (
        "epctx-acme",
        "epctx_acme",
        "AcmeExecutionProvider",
        "AcmeProvider",
        "ACME0001",
    )


def test_a_word_may_have_parts():
    names = PluginNames.of("acme-npu2")

    assert (names.distribution, names.module, names.ep) == (
        "epctx-acme-npu2",
        "epctx_acme_npu2",
        "AcmeNpu2ExecutionProvider",
    )


@pytest.mark.parametrize("word", ["x", "ab", "acme", "a-very-long-name-of-a-company"])
def test_a_payloads_first_eight_characters_are_always_eight(word):
    assert len(PluginNames.of(word).magic.encode()) == 8


@pytest.mark.parametrize(
    ("word", "why", "hint"),
    [
        ("Acme", "lower-case letters", "'acme'"),
        ("My_NPU_2", "lower-case letters", "'my-npu-2'"),
        ("my_npu", "lower-case letters", "'my-npu'"),
        ("9lives", "begins with a letter", "'lives'"),
        ("../acme", "cannot name a plugin", "'acme'"),
        ("a--b", "single dashes", "'a-b'"),
        ("a" * 41, "1 to 40", "'aaaa"),
        ("", "cannot name a plugin", "'acme'"),
        ("epctx-acme", "put before it anyway", "'acme'"),
        ("core", "epctx's own", "device or company"),
        ("sim-acme", "epctx's own", "device or company"),
        ("qnn", "reserved for Qualcomm", "device or company"),
        ("openvino", "reserved for Intel", "device or company"),
    ],
)
def test_a_bad_name_is_refused_with_the_reason_and_a_better_one(word, why, hint):
    with pytest.raises(InvalidArgument, match=why) as caught:
        PluginNames.of(word)

    assert hint in caught.value.hint
