"""The manifest: the same bytes for the same work, and damage is seen."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from context.writing import inline_weight, noise, written
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from epctx_core import __version__
from epctx_core.context.manifest import Manifest, read_manifest
from epctx_core.context.metadata import all_compatibility_info, set_metadata
from epctx_core.context.payload_writer import BLOCK, PayloadWriter, digested, dump_manifest
from epctx_core.errors import InvalidGraph

GOLDEN = Path(__file__).parent / "golden" / "manifest.json"


def example():
    head, _ = written(b"head", b"tail")
    long, _ = written(bytes(BLOCK), b"rest", name="pre_TestExecutionProvider_0")
    return Manifest(
        source_digest=hashlib.sha256(b"model").hexdigest(),
        providers={
            "ZExecutionProvider": {
                "distribution": "epctx-z",
                "version": "2.0",
                "plugin_api": 1,
                "options": "00",
            },
            "AExecutionProvider": {
                "version": "1.0",
                "distribution": "epctx-a",
                "plugin_api": 1,
                "options": "ff",
            },
        },
        payloads=(head, long),
    )


def with_text(text):
    model = ModelProto()
    set_metadata(model, "epctx.manifest", text)
    return model


def test_a_manifest_has_these_bytes():
    golden = GOLDEN.read_text().rstrip("\n").replace("VERSION", __version__)

    assert dump_manifest(example()) == golden


def test_what_was_dumped_is_read():
    found = read_manifest(with_text(dump_manifest(example())))

    assert found is not None
    assert (found.source_digest, tuple(found.payloads)) == (example().source_digest, example().payloads)
    assert found.providers == example().providers
    assert [p.root for p in found.payloads] == [
        p["root"] for p in json.loads(dump_manifest(example()))["payloads"]
    ]


def test_an_entry_is_found_by_name_and_kind():
    manifest = example()

    assert manifest.entry("a_x.bin", embedded=True) is manifest.payloads[0]
    assert manifest.entry("a_x.bin", embedded=False) is None
    assert manifest.entry("other", embedded=True) is None


def test_a_model_without_a_manifest_has_none():
    assert read_manifest(ModelProto()) is None


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.0])
def test_a_manifest_of_another_version_is_as_none(version):
    data = {**json.loads(dump_manifest(example())), "version": version}

    assert read_manifest(with_text(json.dumps(data))) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "{}", '{"version":1}', "[" * 100_000])
def test_a_damaged_manifest_is_refused(text):
    with pytest.raises(InvalidGraph, match=r"epctx\.manifest metadata is damaged") as caught:
        read_manifest(with_text(text))

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
    data = json.loads(dump_manifest(example()))
    data["payloads"][0] |= change

    with pytest.raises(InvalidGraph, match="metadata is damaged"):
        read_manifest(with_text(json.dumps(data)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(JSON)
def test_any_other_json_is_damage_or_another_version(data):
    try:
        found = read_manifest(with_text(json.dumps(data)))
    except InvalidGraph:
        return

    assert found is None


@given(st.sampled_from(["source_model", "providers", "payloads", "version"]), JSON)
def test_any_value_in_any_place_is_read_or_damage(key, value):
    data = {**json.loads(dump_manifest(example())), key: value}
    try:
        found = read_manifest(with_text(json.dumps(data)))
    except InvalidGraph:
        return

    if found is not None:
        assert all(isinstance(p.root, str) for p in found.payloads)
        assert isinstance(dump_manifest(found), str)


@given(st.binary(max_size=60))
def test_any_text_is_damage_or_a_manifest(data):
    try:
        found = read_manifest(with_text(data.decode("latin-1")))
    except InvalidGraph:
        return

    assert found is None


def test_the_right_bytes_pass_the_check():
    entry, content = written(noise(BLOCK + 5))

    entry.check_head(memoryview(content))


def test_a_truncated_payload_is_told_by_its_size():
    entry, content = written(noise(BLOCK + 5))

    with pytest.raises(InvalidGraph, match=r"has 1,048,580 bytes; .* one of 1,048,581"):
        entry.check_head(memoryview(content)[:-1], "n")


def test_a_swapped_payload_of_the_same_size_is_told_by_its_beginning():
    entry, content = written(noise(BLOCK + 5))
    other, _ = written(noise(BLOCK + 5, seed=1))

    with pytest.raises(InvalidGraph, match="is not the one that the model was written with") as caught:
        other.check_head(memoryview(content), "n")

    assert caught.value.node == "n"
    assert entry.root != other.root


def test_every_byte_counts_for_the_root():
    content = bytearray(noise(BLOCK + 5))
    roots = set()
    for place in (0, BLOCK - 1, BLOCK, BLOCK + 4):
        content[place] ^= 1
        roots.add(written(bytes(content))[0].root)

    assert len(roots) == 4


def test_a_payload_that_begins_with_an_empty_weight_is_told_by_what_follows():
    sink = io.BytesIO()
    writer = PayloadWriter("n", sink, embedded=True)
    writer.write_tensor(inline_weight(b""))
    writer.write(b"head")
    entry = writer.finish()

    entry.check_head(memoryview(b"head"))
    with pytest.raises(InvalidGraph, match="another digest"):
        entry.check_head(memoryview(b"tail"))


def test_an_empty_payload_has_nothing_to_check():
    entry, content = written()

    entry.check_head(memoryview(content))


def test_metadata_is_replaced_where_it_stands():
    model = ModelProto()
    for key in ("a", "b", "a"):
        set_metadata(model, key, f"{key}{len(model.metadata_props)}")

    assert [(p.key, p.value) for p in model.metadata_props] == [("a", "a2"), ("b", "b1")]


def test_compatibility_information_is_found_by_ep():
    model = ModelProto()
    set_metadata(model, "ep_compatibility_info.QNNExecutionProvider", "v2:6")
    set_metadata(model, "other", "x")

    assert all_compatibility_info(model) == {"QNNExecutionProvider": ["v2:6"]}


def test_looking_up_payloads_does_not_go_through_all_of_them():
    entry = written(b"x")[0]
    many = [replace(entry, name=f"n{i}", embedded=True) for i in range(20_000)]
    compared = []

    class Counted(str):
        __slots__ = ()

        def __eq__(self, other):
            compared.append(other)
            return super().__eq__(other)

        __hash__ = str.__hash__

    manifest = Manifest(
        source_digest="", providers={}, payloads=[*many, replace(entry, name="n7", embedded=False)]
    )

    found = [manifest.entry(Counted(f"n{i}"), embedded=True) for i in range(20_000)]

    assert found == many
    assert len(compared) < 2 * len(many)
    assert manifest.entry("n7", embedded=False) is manifest.payloads[-1]
    assert manifest.entry("n8", embedded=False) is None


def test_of_two_entries_of_one_name_the_first_counts():
    first, second = written(b"x")[0], written(b"y")[0]
    manifest = Manifest(source_digest="", providers={}, payloads=[first, second])

    assert manifest.entry(first.name, embedded=True) is first


@given(length=st.integers(0, 3 * BLOCK), extra=st.binary(max_size=3))
def test_bytes_about_which_nothing_is_known_get_an_entry_that_holds_them(length, extra):
    content = memoryview(bytes(length) + extra)
    forgotten = []

    entry = digested("a.bin", content, lambda offset, size: forgotten.append((offset, size)))

    entry.check_whole(content)
    assert (entry.name, entry.size, sum(size for _, size in forgotten)) == (
        "a.bin",
        len(content),
        len(content),
    )
    with pytest.raises(InvalidGraph):
        entry.check_whole(memoryview(bytes(content) + b"x"))


def test_an_entry_says_which_nodes_refer_to_it_and_the_manifest_finds_it():
    entry = replace(written(b"x")[0], references=("b", "c"))
    model = ModelProto()
    set_metadata(
        model, "epctx.manifest", dump_manifest(Manifest(source_digest="", providers={}, payloads=[entry]))
    )

    found = read_manifest(model)

    assert found.holder("c") == entry
    assert found.holder("a") is None
