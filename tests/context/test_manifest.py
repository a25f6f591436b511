"""The manifest's entries, and how they are found."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto
from support.payload_writing import written

from epctx_core.context.digests import BLOCK, PayloadEntry, Segment
from epctx_core.context.manifest import Manifest
from epctx_core.context.metadata import set_metadata
from epctx_core.errors import InvalidGraph

pytestmark = pytest.mark.internal


def test_metadata_is_replaced_where_it_stands():
    model = ModelProto()
    for key in ("a", "b", "a"):
        set_metadata(model, key, f"{key}{len(model.metadata_props)}")

    assert [(p.key, p.value) for p in model.metadata_props] == [
        ("a", "a2"),
        ("b", "b1"),
    ]


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
        source_digest="",
        providers={},
        payloads=[*many, replace(entry, name="n7", embedded=False)],
    )

    found = [
        manifest.find_entry(Counted(f"n{i}"), embedded=True) for i in range(20_000)
    ]

    assert found == many
    assert len(compared) < 2 * len(many)
    assert manifest.find_entry("n7", embedded=False) is manifest.payloads[-1]
    assert manifest.find_entry("n8", embedded=False) is None


def test_of_two_entries_of_one_name_the_first_counts():
    first, second = written(b"x")[0], written(b"y")[0]
    manifest = Manifest(source_digest="", providers={}, payloads=[first, second])

    assert manifest.find_entry(first.name, embedded=True) is first


def test_the_head_of_a_payload_is_its_first_segment_also_where_that_is_a_weight():
    weight = hashlib.sha256(b"weight").hexdigest()
    zeros = hashlib.sha256(bytes(10)).hexdigest()
    entry = PayloadEntry(
        name="a.bin",
        embedded=False,
        size=16,
        segments=(Segment(0, 6, weight, is_weight=True), Segment(6, 10, zeros)),
    )

    entry.check_head(memoryview(b"weight" + bytes(10)))
    with pytest.raises(InvalidGraph, match="bytes 0 to 6 have another digest"):
        entry.check_head(memoryview(b"WEIGHT" + bytes(10)))


@given(length=st.integers(0, 3 * BLOCK), extra=st.binary(max_size=3))
def test_bytes_about_which_nothing_is_known_get_an_entry_that_holds_them(length, extra):
    content = memoryview(bytes(length) + extra)
    forgotten = []

    entry = PayloadEntry.of(
        "a.bin", content, lambda offset, size: forgotten.append((offset, size))
    )

    entry.check_whole(content)
    assert (entry.name, entry.size, sum(size for _, size in forgotten)) == (
        "a.bin",
        len(content),
        len(content),
    )
    with pytest.raises(InvalidGraph):
        entry.check_whole(memoryview(bytes(content) + b"x"))
