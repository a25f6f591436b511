"""What a child is doing is read from shared memory, whatever is there; its arrays lie
there where both sides expect them.
"""

from __future__ import annotations

import json
import os
import struct

import numpy as np
import pytest
from epctx_isolation.shared_memory import ChildMemory, HostMemory, place

pytestmark = pytest.mark.internal


@pytest.fixture
def child(host):
    return ChildMemory(host.descriptor)


def read(host, offset, size):
    """Return bytes as a host reads them."""
    found = np.empty(size, np.uint8)
    host.make_reader()(offset, found)
    return found.tobytes()


def put(child, content):
    """Have a child write bytes behind what is there; return their offset."""
    ((offset, view),) = child.make_room([len(content)])
    view[:] = content
    return offset


def test_what_the_child_says_the_host_reads(child, host):
    child.write_state({"hook": "compile", "partitions": ["é"], "count": 3})

    assert host.read_state() == (
        1,
        {"hook": "compile", "partitions": ["é"], "count": 3},
    )


def test_each_change_is_counted(child, host):
    assert host.read_state() == (0, {})

    child.write_state({"hook": "compile"})
    child.write_state({})

    assert host.read_state() == (2, {})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"hook": "comp',
        b"\xff\xfe{}",
        b"[1]",
        b"null",
        b"1",
        b'"text"',
        b"[" * 3000,
        b'{"a":' * 600 + b"1" + b"}" * 600,
        json.dumps({"list": [0] * 1000}).encode(),
        b"1" * 4000,
    ],
    ids=lambda text: f"{text[:12]!r}",
)
def test_a_page_of_anything_else_says_nothing(child, host, text):
    child.write_state({"hook": "compile"})
    os.pwrite(host.descriptor, struct.pack("<QI", 5, len(text)) + text, 0)

    assert host.read_state() == (5, {})


@pytest.mark.parametrize("length", [0, 3, 20, 4084, 4085, 1 << 31, (1 << 32) - 1])
def test_a_wrong_length_says_nothing(child, host, length):
    child.write_state({"hook": "compile"})
    os.pwrite(host.descriptor, struct.pack("<QI", 1, length), 0)

    assert host.read_state() == (1, {})


def test_a_page_of_random_bytes_says_nothing(host):
    generator = np.random.default_rng(0)

    for _ in range(500):
        os.pwrite(host.descriptor, generator.bytes(4096), 0)
        assert host.read_state()[1] == {}


def test_a_state_that_is_too_long_says_nothing_and_changes_no_array(child, host):
    offset = put(child, bytes(range(8)))

    child.write_state({"model": "x" * 5000})

    assert host.read_state() == (1, {})
    assert read(host, offset, 8) == bytes(range(8))


@pytest.mark.parametrize("size", [0, 10, 4096, 4100])
def test_memory_that_a_child_takes_away_is_missing_and_ends_no_host(child, host, size):
    put(child, bytes(1 << 16))
    child.write_state({"hook": "compile"})

    os.ftruncate(host.descriptor, size)

    with pytest.raises(ValueError, match=r"missing|never written"):
        read(host, 0, 1 << 16)
    assert host.read_state()[1] in ({}, {"hook": "compile"})


def test_arrays_are_aligned_and_do_not_overlap():
    sizes = [1, 64, 0, 65, 3]

    offsets, end = place(sizes, 100)

    assert all(offset % 64 == 0 and offset >= 100 for offset in offsets)
    for offset, size, following in zip(offsets, sizes, offsets[1:], strict=False):
        assert offset + size <= following
    assert end == offsets[-1] + 3


def test_memory_grows_and_keeps_what_was_there(child, host):
    ((first, kept),) = child.make_room([8])
    kept[:] = b"contents"

    second = put(child, b"\7" * (1 << 20))

    assert bytes(kept) == b"contents"
    assert read(host, first, 8) == b"contents"
    assert read(host, second, 1 << 20) == b"\7" * (1 << 20)


def test_what_a_host_writes_is_where_its_child_looks_and_cannot_be_changed(child, host):
    buffers = [memoryview(bytes([n % 256]) * n) for n in (5, 0, 100_000, 3)]

    for _ in range(2):
        host.write(buffers)
        views = child.receive([buffer.nbytes for buffer in buffers])

        assert [bytes(view) for view in views] == [*map(bytes, buffers)]
        assert all(view.readonly for view in views)


def test_what_was_never_written_is_not_there(child, host):
    put(child, bytes(16))
    os.ftruncate(host.descriptor, 1 << 34)

    with pytest.raises(ValueError, match="never written"):
        host.make_reader()(0, np.empty(1 << 30, np.uint8))


def test_a_run_gives_no_more_than_its_process_may_send():
    host = HostMemory(1000)
    put(ChildMemory(host.descriptor), bytes(2000))

    read(host, 0, 1000)
    with pytest.raises(ValueError, match="more than allowed"):
        read(host, 0, 1001)
    host.close()


def test_arrays_that_lie_over_each_other_are_no_more_than_was_written(child, host):
    put(child, bytes(1 << 20))
    reader = host.make_reader()
    array = np.empty(1 << 20, np.uint8)

    reader(0, array)
    with pytest.raises(ValueError, match="never written"):
        reader(0, array)
