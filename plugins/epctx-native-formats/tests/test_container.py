"""The codec of OVEP_BIN: files that Intel's EP wrote, the same bytes again, and bytes
that are damaged or hostile.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from epctx_native_formats.openvino import (
    ALIGNMENT,
    TABLE_VERSION,
    align,
    decode_table,
    encode_head,
    lay_out,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bson_bytes import document, element, int32, text
from support.bson_bytes import nested as blob
from support.folders import REAL

from epctx_core.errors import InvalidGraph

pytestmark = pytest.mark.internal

CONTAINER = REAL / "ov_ctx0_OpenVINOExecutionProvider.bin"
HEAD = Path(__file__).parent / "golden/onnxruntime-ep-openvino-1.8.1.head"
"""Header and table of a binary with three blobs."""
PRODUCER = "onnxruntime-openvino-ep-1.24.1"
FIELDS = {"producer": PRODUCER, "version": TABLE_VERSION}


def int64(name, value):
    return element(0x12, name, struct.pack("<q", value))


def table_of(*blobs, more=()):
    """Return a table as BSON, made here by hand."""
    return document(
        element(0x03, "blob_metadata_map", document(*blobs)),
        text("producer", PRODUCER),
        text("version", "1.0.0"),
        *more,
    )


def container(table, *, blobs=ALIGNMENT):
    """Return a container with a table of one's own, and room for blobs."""
    head = struct.pack("<8s4Q", b"OVEP_BIN", 1, 40, 40, len(table)) + table
    return head.ljust(align(len(head)), b"\0") + bytes(blobs)


def read(content):
    return decode_table(memoryview(content), "net.bin")


def test_a_file_that_intels_ep_wrote_is_read():
    table = read(CONTAINER.read_bytes())

    assert table.fields == FIELDS
    assert table.entries == {
        "OpenVINOExecutionProvider_OpenVINO-EP-subgraph_1_0": {
            "data_offset": ALIGNMENT,
            "size": 12209,
        }
    }


def test_names_are_sorted_and_blobs_lie_where_they_were_written_as_in_a_file_of_intels_ep():
    head = HEAD.read_bytes()
    blobs = bytes(4 * ALIGNMENT - len(head))
    table = read(head + blobs)
    stored = sorted(table.entries.items(), key=lambda item: item[1]["data_offset"])
    sizes = {name: {"size": entry["size"]} for name, entry in stored}

    placed = lay_out(table.fields, sizes)
    sorted_names = dict(sorted(placed.entries.items()))

    assert [name[-2:] for name in sizes] == ["_2", "_1", "_0"]
    assert placed.entries == table.entries
    assert encode_head(replace(placed, entries=sorted_names)) == head.ljust(
        ALIGNMENT, b"\0"
    )


def test_a_table_is_written_as_it_was_read():
    table = read(CONTAINER.read_bytes())
    (size,) = struct.unpack_from("<Q", CONTAINER.read_bytes(), 32)

    assert encode_head(table)[: 40 + size] == CONTAINER.read_bytes()[: 40 + size]


def test_blobs_lie_at_multiples_of_64_kib_behind_room_for_the_largest_numbers():
    # By numbers of 32 bits this table would end just before the first multiple.
    names = [f"{i:04}" + "x" * 60 for i in range(664)]
    entries = {name: {"size": 3} for name in names}

    table = lay_out(FIELDS, entries)
    head = encode_head(table)
    content = head + bytes(
        align(table.entries[names[-1]]["data_offset"] + 3) - len(head)
    )

    assert struct.unpack_from("<Q", head, 32)[0] < ALIGNMENT - 40
    assert table.entries[names[0]]["data_offset"] == len(head) == 2 * ALIGNMENT
    assert read(content).entries == table.entries


def test_numbers_beyond_32_bits_come_back():
    sizes = {"a": {"size": (1 << 31) - 1}, "b": {"size": 1 << 31}, "c": {"size": 5}}

    table = lay_out(FIELDS, sizes)
    head = encode_head(table)

    assert int32("size", (1 << 31) - 1) in head
    assert int64("size", 1 << 31) in head
    assert int64("data_offset", table.entries["c"]["data_offset"]) in head


def test_a_table_above_16_mib_is_not_written():
    entries = {f"{i:07}" + "x" * 200: {"size": 1} for i in range(70_000)}

    with pytest.raises(ValueError, match="and may have 16,777,216"):
        encode_head(lay_out(FIELDS, entries))


def test_a_name_that_bson_cannot_hold_is_not_written():
    with pytest.raises(ValueError, match="has a NUL"):
        lay_out(FIELDS, {"a\0b": {"size": 1}})


def test_fields_of_a_later_minor_version_are_read():
    table = read(
        container(
            table_of(
                blob("a", int32("data_offset", ALIGNMENT), int32("size", 7)),
                more=(
                    element(0x01, "double", struct.pack("<d", 0.5)),
                    element(0x04, "array", document(int32("0", 4), int32("1", 5))),
                    element(0x05, "binary", struct.pack("<iB", 2, 0) + b"ab"),
                    element(0x08, "bool", b"\1"),
                    element(0x0A, "null"),
                    element(0x11, "unsigned", struct.pack("<Q", (1 << 64) - 1)),
                    int64("negative", -5),
                ),
            )
        )
    )

    assert table.fields == {
        **FIELDS,
        "double": 0.5,
        "array": [4, 5],
        "binary": b"ab",
        "bool": True,
        "null": None,
        "unsigned": (1 << 64) - 1,
        "negative": -5,
    }


def entry(offset, size):
    return blob("a", int64("data_offset", offset), int64("size", size))


def nested(levels):
    inner = document()
    for _ in range(levels):
        inner = document(element(0x03, "d", inner))
    return element(0x03, "deep", inner)


GOOD = table_of(entry(ALIGNMENT, 5))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "does not begin with OVEP_BIN"),
        (container(GOOD)[:-1], "its length is not a multiple of 65,536"),
        (container(GOOD).replace(b"\1", b"\2", 1), "has version 2"),
        (container(b""), "no document of 0 bytes begins at byte 0"),
        (container(GOOD[:-1]), "no document of"),
        (container(GOOD[:-1] + b"x"), "the document at byte 0 does not end with a NUL"),
        (container(document(b"\x10endless")), "the key at byte 5 does not end"),
        (container(document(element(0x07, "id", bytes(12)))), "has the type 0x07"),
        (container(document(element(0x10, "a", b"12"))), "longer than its document"),
        (container(document(element(0x02, "a", b"12"))), "has the type 0x02"),
        (container(document(element(0x02, "a", bytes(4)))), "does not end with a NUL"),
        (container(document(element(0x02, "a", b"\1\0\0\0x"))), "not end with a NUL"),
        (
            container(document(element(0x03, "a", b"\xff" * 4))),
            "no document of 0 bytes",
        ),
        (container(document(element(0x05, "a", b"\xff\xff\xff\x7f\0"))), "is longer"),
        (
            container(document(text("a", "b"), text("a", "c"))),
            "the key 'a' is there twice",
        ),
        (container(document(b"\x0a\xff\0")), "cannot be read ('utf-8' codec"),
        (container(table_of(more=(nested(20),))), "nested more than 16 deep"),
        (container(document(text("version", "1.0"))), "its table has no blobs"),
        (container(table_of(int32("a", 5))), "no offset and size of the blob 'a'"),
        (
            container(
                table_of(
                    blob("a", element(0x08, "data_offset", b"\1"), int32("size", 1))
                )
            ),
            "no offset and size of the blob 'a'",
        ),
        (container(table_of(entry(ALIGNMENT, 0))), "'a' lies outside of it"),
        (container(table_of(entry(-1, 5))), "'a' lies outside of it"),
        (container(table_of(entry(39, 5))), "'a' lies outside of it"),
        (
            container(table_of(entry(ALIGNMENT, ALIGNMENT + 1))),
            "'a' lies outside of it",
        ),
        (container(table_of(entry(1 << 62, 1 << 62))), "'a' lies outside of it"),
        (
            container(
                table_of(
                    entry(ALIGNMENT, 20),
                    blob("b", int32("data_offset", ALIGNMENT + 19), int32("size", 5)),
                )
            ),
            "two of its blobs overlap at byte 65,555",
        ),
    ],
)
def test_what_is_damaged_is_refused_with_its_fault(content, fault):
    with pytest.raises(InvalidGraph) as caught:
        read(content)

    assert fault in caught.value.message
    assert "the payload net.bin" in caught.value.message
    assert "compile the model again" in caught.value.hint


@pytest.mark.parametrize(
    ("version", "named"),
    [(text("version", "2.0"), "version '2.0'"), (int32("version", 1), "version 1")],
)
def test_another_version_is_named_and_not_called_damaged(version, named):
    with pytest.raises(InvalidGraph) as caught:
        read(container(document(version)))

    assert f"has {named} of OpenVINO's container" in caught.value.message
    assert "damaged" not in caught.value.message
    assert "Upgrade epctx-native-formats" in caught.value.hint


NAMES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)


@settings(deadline=None)
@given(st.dictionaries(NAMES, st.integers(1, 100_000), max_size=20), NAMES)
def test_any_table_that_is_written_is_read_again(sizes, producer):
    fields = {"producer": producer, "version": TABLE_VERSION}
    table = lay_out(fields, {name: {"size": size} for name, size in sizes.items()})
    head = encode_head(table)
    places = table.entries.values()
    end = max((e["data_offset"] + e["size"] for e in places), default=len(head))

    assert read(head.ljust(align(end), b"\0")) == table


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_as_a_table_are_read_or_refused(table):
    try:
        read(container(table))
    except InvalidGraph as error:
        assert error.hint


@settings(deadline=None)
@given(st.data())
def test_changed_bytes_are_refused_or_blobs_stay_within_the_file(data):
    content = bytearray(CONTAINER.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 220))] = data.draw(st.integers(0, 255))
    try:
        table = read(bytes(content))
    except InvalidGraph:
        return
    for found in table.entries.values():
        assert 40 <= found["data_offset"] < len(content)
        assert 0 < found["size"] <= len(content) - found["data_offset"]


def test_the_codec_needs_neither_openvino_nor_onnxruntime_nor_onnx():
    program = (
        "import sys, epctx_native_formats.openvino as codec\n"
        "codec.encode_head(codec.lay_out({}, {'a': {'size': 1}}))\n"
        "print({'onnx', 'numpy', 'onnxruntime', 'openvino', 'bson'} & set(sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert done.stdout == "set()\n"
