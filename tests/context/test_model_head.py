"""Metadata of a model: found with a few small reads, the same as protobuf finds, and
junk is called junk.
"""

from __future__ import annotations

import io
import os

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, helper

from epctx_core.context.model_head import WINDOW, read_metadata, scan_metadata
from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
)

pytestmark = pytest.mark.internal


def everything(_key):
    return True


def model(*entries, before=b"", graph_doc=""):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [], [], doc_string=graph_doc
    )
    proto = helper.make_model(graph, ir_version=9, producer_name="tests")
    for key, value in entries:
        proto.metadata_props.add(key=key, value=value)
    return before + proto.SerializeToString()


class CountingFile(io.FileIO):
    """A file that remembers what was read of it."""

    def __init__(self, path):
        super().__init__(path, "rb")
        self.reads = []

    def readinto(self, buffer):
        length = super().readinto(buffer)
        self.reads.append(length)
        return length


def varint(number):
    pieces = bytearray()
    while number > 0x7F:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*pieces, number])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def test_all_entries_are_found():
    data = model(("a", "1"), ("ep_compatibility_info.X", "ü"), ("empty", ""))

    assert read_metadata(data, everything) == {
        "a": "1",
        "ep_compatibility_info.X": "ü",
        "empty": "",
    }


def test_only_wanted_values_are_read():
    data = model(("a", "1"), ("b", "2"))

    assert read_metadata(data, "b".__eq__) == {"b": "2"}


def test_of_several_with_one_key_the_last_counts():
    data = model(("a", "1"), ("a", "2"))

    assert read_metadata(data, everything) == {"a": "2"}


def test_entries_count_wherever_they_stand():
    entry = onnx.StringStringEntryProto(key="first", value="1").SerializeToString()

    assert read_metadata(model(("last", "2"), before=field(14, entry)), everything) == {
        "first": "1",
        "last": "2",
    }


@pytest.mark.parametrize("size", [1 << 30, 5 << 30], ids=["1GiB", "5GiB"])
def test_a_huge_graph_costs_a_few_reads(tmp_path, size):
    entries = b"".join(
        field(14, onnx.StringStringEntryProto(key=key, value=value).SerializeToString())
        for key, value in (("big", "x" * 100_000), ("wanted", "1"))
    )
    path = tmp_path / "huge.onnx"
    with path.open("wb") as file:
        # An embedded payload is in the graph; a hole in the file stands for it and
        # costs no disk.
        file.write(varint(8) + varint(9) + varint(7 << 3 | 2) + varint(size))
        file.seek(size, os.SEEK_CUR)
        file.write(entries)

    with CountingFile(path) as file, io.BufferedReader(file, WINDOW) as window:
        found = scan_metadata(
            window, path.stat().st_size, "wanted".__eq__, where="huge.onnx"
        )

    assert found == {"wanted": "1"}
    assert len(file.reads) <= 8
    assert sum(file.reads) <= 4 * WINDOW
    assert read_metadata(path, "wanted".__eq__) == found


def test_a_long_value_is_read_only_if_it_is_wanted(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(model(("long", "v" * 300_000), ("short", "s")))

    for key, limit in (("short", 4 * WINDOW), ("long", 300_000 + 4 * WINDOW)):
        with CountingFile(path) as file, io.BufferedReader(file, WINDOW) as window:
            size = path.stat().st_size
            found = scan_metadata(window, size, key.__eq__, where="m.onnx")
        assert set(found) == {key}
        assert sum(file.reads) <= limit


def test_a_path_that_leads_nowhere_is_said_so(tmp_path):
    with pytest.raises(NoSuchFile, match="there is no model file"):
        read_metadata(tmp_path / "no.onnx", everything)
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(NoSuchFile):
        read_metadata(tmp_path / "file" / "m.onnx", everything)
    with pytest.raises(InvalidArgument, match="is a folder"):
        read_metadata(tmp_path, everything)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_metadata("a\0b", everything)
    for wrong in (None, 3, "", bytearray(model())):
        with pytest.raises(InvalidArgument, match="a model is a path or bytes"):
            read_metadata(wrong, everything)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        pytest.param(b"\x3a", "it is damaged at byte 0", id="cut before a length"),
        pytest.param(b"\x3a\x05abcd", "it is damaged at byte 0", id="cut in a field"),
        pytest.param(b"\x08\x09\x00\x00", "it is damaged at byte 2", id="field 0"),
        pytest.param(b"\x0b", "it is damaged at byte 0", id="a group"),
        pytest.param(
            b"\x80" * 11, "it is damaged at byte 0", id="a number without end"
        ),
        pytest.param(
            field(14, b"\x0a\x7fkey"), "it is damaged at byte 2", id="cut in an entry"
        ),
        pytest.param(
            b"\x72\x02\x0a\x01" + field(7, b""),
            "it is damaged at byte 2",
            id="longer than its message",
        ),
        pytest.param(
            b"\x72\x01\x08" + field(7, b""),
            "it is damaged at byte 2",
            id="number beyond its message",
        ),
        (b"PK\x03\x04" + bytes(100), "not an ONNX model"),
        (b'{"json": 1}', "not an ONNX model"),
    ],
)
def test_what_is_no_protobuf_is_said_to_be_none(data, why):
    with pytest.raises(InvalidProtobuf, match=why):
        read_metadata(data, everything)


@pytest.mark.parametrize("data", [b"\x08\x09", field(2, b"onnx"), b"\x38\x01"])
def test_a_protobuf_without_a_graph_is_no_model(data):
    with pytest.raises(InvalidGraph, match="has no graph"):
        read_metadata(data, everything)


def test_a_value_that_is_no_text_is_an_invalid_graph_and_such_a_key_is_nobodys():
    bad = b"\x0a\x01a\x12\x01\xff"
    assert read_metadata(model(before=field(14, bad)), "b".__eq__) == {}
    assert read_metadata(model(before=field(14, b"\x0a\x01\xff")), everything) == {}

    with pytest.raises(
        InvalidGraph, match="the metadata 'a' of the model given as bytes is not UTF-8"
    ):
        read_metadata(model(before=field(14, bad)), everything)


TEXTS = st.text(max_size=20)


@settings(deadline=None)
@given(
    entries=st.lists(st.tuples(TEXTS, TEXTS | st.just("x" * (WINDOW + 7))), max_size=6),
    doc=st.integers(0, 3 * WINDOW),
    cut=st.none() | st.integers(0, 200),
)
def test_protobuf_finds_the_same(entries, doc, cut):
    data = model(*entries, graph_doc="d" * doc)[:cut]

    assert found(data) == expected(data)


@settings(deadline=None)
@given(
    data=st.binary(max_size=60),
    place=st.integers(0, 300),
    base=st.lists(st.tuples(TEXTS, TEXTS), max_size=3),
)
def test_protobuf_takes_what_is_taken(data, place, base):
    whole = model(*base)
    junk = whole[:place] + data + whole[place + len(data) :]

    # The graph is not looked into, so only protobuf finds damage there.
    if found(junk) is not None:
        assert expected(junk) in (found(junk), None)


def found(data):
    try:
        return read_metadata(data, everything)
    except EpctxError:
        return None


def expected(data):
    try:
        proto = ModelProto.FromString(data)
    except Exception:  # noqa: BLE001 - protobuf's own, by which it says that this is none
        return None
    # A key that is no text comes as bytes, and is nobody's.
    found = {e.key: e.value for e in proto.metadata_props if isinstance(e.key, str)}
    return found if proto.HasField("graph") else None
