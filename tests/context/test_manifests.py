"""The manifest of a context model: the same bytes for the same work, and damage is
seen.
"""

from __future__ import annotations

import hashlib
import json

import pytest
from context.compiling import EP, Writing, model_of, one_payload
from context.loading import (
    BLOCK,
    MANIFEST,
    context_model,
    entry_of,
    loaded,
    manifest,
    node,
    noise,
    root_of,
)
from hypothesis import given
from hypothesis import strategies as st

from epctx_core import get_compatibility_info_from_model, inspect_model
from epctx_core.errors import InvalidGraph


def example():
    """Return what a manifest says of two payloads."""
    facts = {
        "distribution": "epctx-z",
        "version": "2.0",
        "plugin_api": 1,
        "options": "00",
    }
    payloads = (
        entry_of(b"headtail"),
        entry_of(bytes(BLOCK) + b"rest", "pre_Test_0", embedded=True),
    )
    return json.loads(
        manifest(
            *payloads, source_model="5" * 64, providers={"ZExecutionProvider": facts}
        )
    )


def with_text(text):
    return context_model(node("n", cache=b"1", embed=True), said=text)


def read(text):
    """Return what a model's manifest is read as; None where it is of no known
    version.
    """
    return inspect_model(with_text(text).SerializeToString()).manifest


def test_a_written_manifest_says_what_was_compiled_by_whom_and_each_payload_in_one_way_to_write_it():
    source = model_of(1)
    made = Writing(one_payload).compiled(source)
    (text,) = (entry.value for entry in made.metadata_props if entry.key == MANIFEST)
    said = json.loads(text)

    assert text == json.dumps(said, sort_keys=True, separators=(",", ":"))
    assert (
        said["source_model"] == hashlib.sha256(source.SerializeToString()).hexdigest()
    )
    assert said["providers"][EP].keys() == {
        "distribution",
        "version",
        "plugin_api",
        "options",
    }
    (name,) = (each.name for each in made.graph.node)
    assert said["payloads"] == [entry_of(b"p", name, embedded=True)]
    assert said["version"] == 1


def test_what_is_written_is_read():
    found = read(json.dumps(example()))

    assert found is not None
    assert found.providers == example()["providers"]
    assert [(p.name, p.embedded, p.size, p.root) for p in found.payloads] == [
        (p["name"], p["embedded"], p["bytes"], p["root"]) for p in example()["payloads"]
    ]


def test_a_model_without_a_manifest_has_none():
    assert inspect_model(with_text(None).SerializeToString()).manifest is None


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.0])
def test_a_manifest_of_another_version_is_as_none(version):
    data = {**example(), "version": version}

    assert read(json.dumps(data)) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", "{}", '{"version":1}', "[" * 100_000]
)
def test_a_damaged_manifest_is_refused(text):
    with pytest.raises(
        InvalidGraph, match=r"epctx\.manifest metadata is damaged"
    ) as caught:
        read(text)

    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "change",
    [
        {"segments": [[-1, "a" * 64], [9, "a" * 64]]},
        {"segments": [[8, "a" * 63]]},
        {"segments": [[8, "\ud800" * 64]]},
        {"segments": [[8, 5]]},
        {"segments": [[8.0, "a" * 64]]},
        {"segments": [[8]]},
        {"segments": 5},
        {"bytes": 9},
        {"bytes": None},
    ],
    ids=str,
)
def test_an_entry_that_cannot_be_is_refused(change):
    data = example()
    data["payloads"][0] |= change

    with pytest.raises(InvalidGraph, match="metadata is damaged"):
        read(json.dumps(data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(JSON)
def test_any_other_json_is_damage_or_another_version(data):
    try:
        found = read(json.dumps(data))
    except InvalidGraph:
        return

    assert found is None


@given(st.sampled_from(["source_model", "providers", "payloads", "version"]), JSON)
def test_any_value_in_any_place_is_read_or_damage(key, value):
    data = {**example(), key: value}
    try:
        found = read(json.dumps(data))
    except InvalidGraph:
        return

    if found is not None:
        assert all(isinstance(p.root, str) for p in found.payloads)


@given(st.binary(max_size=60))
def test_any_text_is_damage_or_a_manifest(data):
    try:
        found = read(data.decode("latin-1"))
    except InvalidGraph:
        return

    assert found is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda content: content[:-1], r"has 1,048,580 bytes, not 1,048,581"),
        (
            lambda content: noise(len(content), seed=1),
            "is not the one that the model was written with",
        ),
    ],
    ids=["truncated", "swapped"],
)
def test_a_payload_that_is_not_the_one_written_is_told_by_its_size_or_its_beginning(
    wrong, said
):
    content = noise(BLOCK + 5)
    made = context_model(
        node("n", cache=wrong(content), embed=True),
        said=manifest(entry_of(content, "n", embedded=True)),
    )

    with (
        pytest.raises(InvalidGraph, match=said) as caught,
        loaded(made, lambda given: given.payload()),
    ):
        pass

    assert caught.value.node == "n"


@pytest.mark.parametrize("content", [b"head", b"tail"])
def test_a_payload_that_begins_with_an_empty_weight_is_told_by_what_follows(content):
    segments = [
        [len(piece), hashlib.sha256(piece).hexdigest(), *mark]
        for piece, mark in ((b"", [1]), (b"head", []))
    ]
    entry = entry_of(b"head", "n", embedded=True) | {
        "segments": segments,
        "root": root_of(segments),
    }
    made = context_model(node("n", cache=content, embed=True), said=manifest(entry))

    if content == b"head":
        with loaded(made, lambda given: given.payload()) as given:
            assert given.payload().digest == entry["root"]
        return
    with (
        pytest.raises(InvalidGraph, match="another digest"),
        loaded(made, lambda given: given.payload()),
    ):
        pass


def test_compatibility_information_is_found_by_ep():
    made = with_text(None)
    made.metadata_props.add(
        key="ep_compatibility_info.QNNExecutionProvider", value="v2:6"
    )
    made.metadata_props.add(key="other", value="x")
    data = made.SerializeToString()

    assert get_compatibility_info_from_model(data, "QNNExecutionProvider") == "v2:6"
    assert get_compatibility_info_from_model(data, "other") is None
