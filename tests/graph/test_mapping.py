"""Bulk copies: the same bytes everywhere, and nothing around them."""

from __future__ import annotations

import mmap
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.payload_writing import noise

from epctx_core.graph.mapping import CHUNK, MappedFile, copy_range, read_small_file

pytestmark = pytest.mark.internal

PAGE = mmap.PAGESIZE
NEAR_A_PAGE = st.builds(
    lambda pages, more: pages * PAGE + more,
    st.integers(0, 3),
    st.sampled_from([0, 1, 512]),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "w.bin"
    path.write_bytes(noise(2 * CHUNK + 5 * PAGE))
    with path.open("rb") as file:
        return MappedFile(file.fileno(), str(path))


@pytest.fixture
def target(tmp_path):
    with (tmp_path / "t.bin").open("wb+", buffering=0) as file:
        yield file


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    offset=NEAR_A_PAGE,
    place=NEAR_A_PAGE,
    length=st.sampled_from([0, PAGE, CHUNK, 2 * CHUNK]),
    more=NEAR_A_PAGE,
)
def test_any_range_is_copied_to_any_place_and_nothing_around_it(
    source, target, offset, place, length, more
):
    length = min(length + more, source.size - offset)
    target.truncate(0)
    target.seek(0)
    target.write(b"\x55" * (place + length + 3))

    copy_range(source.descriptor, offset, target.fileno(), place, length)

    target.seek(0)
    content = target.read()
    assert content[place : place + length] == source.view[offset : offset + length]
    assert content[:place] + content[place + length :] == b"\x55" * (place + 3)


def test_a_source_that_was_cut_is_an_error_and_no_signal(tmp_path, target):
    path = tmp_path / "cut.bin"
    path.write_bytes(noise(2 * CHUNK))
    with path.open("rb") as file:
        mapped = MappedFile(file.fileno(), str(path))
    os.truncate(path, CHUNK)

    with pytest.raises(OSError, match=r"ended .* early"):
        copy_range(mapped.descriptor, 0, target.fileno(), 0, 2 * CHUNK)


def test_a_small_file_is_read_up_to_its_limit_and_no_folder_is_one(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")

    assert read_small_file(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes, and the limit is 4"):
        read_small_file(tmp_path / "file", 4)
    with pytest.raises(OSError, match="not a regular file"):
        read_small_file(tmp_path)
