"""The check of all bytes of a payload: what it reads, and what it lets go."""

from __future__ import annotations

import pytest
from support.payload_writing import noise, written

from epctx_core.errors import InvalidGraph
from epctx_core.graph.mapping import MappedFile

pytestmark = pytest.mark.internal


def test_the_whole_check_tells_what_it_read_so_that_a_mapping_need_not_stay_in_memory(
    tmp_path,
):
    entry, content = written(noise((20 << 20) + 5))
    path = tmp_path / "p.bin"
    path.write_bytes(content)
    forgotten = []
    with path.open("rb") as file:
        mapped = MappedFile(file.fileno(), str(path))

    entry.check_whole(mapped.view, forget=lambda *extent: forgotten.append(extent))
    entry.check_whole(mapped.view, forget=mapped.forget)

    assert sum(length for _, length in forgotten) == len(content)
    assert bytes(mapped.view[:5]) == content[:5]


def test_the_whole_check_finds_a_wrong_size_before_it_reads():
    entry, content = written(noise(100))
    reads = []

    with pytest.raises(InvalidGraph, match="has 99 bytes"):
        entry.check_whole(
            memoryview(content)[1:], forget=lambda *extent: reads.append(extent)
        )

    assert reads == []
