"""Containers of Intel's OpenVINO EP that become one, made here by hand as its EP writes
them.
"""

from __future__ import annotations

import struct

import pytest
from epctx_onnxruntime.providers.openvino_container import join_containers
from support.bson_bytes import document, element, int32, nested, text

pytestmark = pytest.mark.internal

BLOCK = 1 << 16


def container(blobs, version="1.1.0", *more):
    """Return a container, its table before the blobs at multiples of 64 KiB."""
    places, body, offset = [], b"", BLOCK
    for name, blob in blobs.items():
        numbers = int32("data_offset", offset), int32("size", len(blob))
        places.append(nested(name, *numbers))
        padded = blob + bytes(-len(blob) % BLOCK)
        body, offset = body + padded, offset + len(padded)
    table = document(
        nested("blob_metadata_map", *places),
        text("producer", "onnxruntime-openvino-ep-plugin"),
        text("version", version),
        *more,
    )
    head = b"OVEP_BIN" + struct.pack("<4Q", 1, 40, 40, len(table)) + table
    return head.ljust(BLOCK, b"\0") + body


def find_blob(content, name):
    """Return a blob by its entry in the table."""
    numbers = content[content.index(f"{name}\0".encode()) :]
    (offset,) = struct.unpack_from("<i", numbers, numbers.index(b"data_offset\0") + 12)
    (size,) = struct.unpack_from("<i", numbers, numbers.index(b"size\0") + 5)
    assert offset % BLOCK == 0
    return content[offset : offset + size]


@pytest.fixture
def join(tmp_path):
    """Return a function that joins containers: the result, or None."""

    def call(*contents):
        paths = [tmp_path / f"{number}.bin" for number in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        target = tmp_path / "joined.bin"
        done = join_containers(paths, target)
        assert target.exists() == done
        return target.read_bytes() if done else None

    return call


def test_the_blobs_of_all_are_in_one(join):
    blobs = {"a_0": b"first" * 30000, "a_1": b"second"}

    joined = join(container(blobs), container({"b_0": b"third"}))

    assert {name: find_blob(joined, name) for name in ("a_0", "a_1", "b_0")} == {
        **blobs,
        "b_0": b"third",
    }
    assert len(joined) % BLOCK == 0
    assert joined.startswith(b"OVEP_BIN" + struct.pack("<3Q", 1, 40, 40))


def test_a_single_one_stays_as_it_is(join):
    alone = container({"a_0": b"first", "a_1": b"second"})

    assert join(alone) == alone


@pytest.mark.parametrize(
    "other",
    [
        container({"a_0": b"the same name"}),
        container({"b_0": b"of another version"}, "2.0.0"),
        container(
            {"b_0": b"with weights"},
            "1.1.0",
            nested("weights_metadata_map"),
        ),
        container({"b_0": b"of another producer's version"}, "1.2.0"),
        container(
            {"b_0": b"of an unknown table"}, "1.1.0", element(0x08, "flag", b"\x01")
        ),
        container({"b_0": b"cut off"})[:100],
        container({"b_0": b"cut off"})[:BLOCK],
        b"no container",
        b"",
    ],
    ids=[
        "a name twice",
        "version",
        "weights",
        "tables that differ",
        "unknown element",
        "cut within its table",
        "cut before its blob",
        "other bytes",
        "nothing",
    ],
)
def test_what_is_not_known_whole_is_not_joined(join, other):
    assert join(container({"a_0": b"first"}), other) is None
