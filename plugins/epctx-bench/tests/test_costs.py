"""Page cache, processor time and peak memory."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from epctx_bench import child
from epctx_bench.children import Request
from epctx_bench.page_cache import count_read_bytes, drop_files, read_files
from epctx_bench.process_costs import measure_costs, read_peak

pytestmark = pytest.mark.internal

SIZE = 64 << 20
SMALL = 1 << 20
WORK = """
import time
memory = bytearray(64 << 20)
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
"""


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="needs posix_fadvise")
def test_dropped_files_are_read_from_the_disk_again(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * SMALL)
    assert drop_files([path]) == ""
    before = count_read_bytes()
    read_files([path])
    cold = count_read_bytes() - before
    read_files([path])

    # A file system in memory reads nothing; code of this process may be read meanwhile.
    assert cold == 0 or cold >= SMALL // 2
    assert count_read_bytes() - before - cold < SMALL // 2


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="needs posix_fadvise")
def test_a_file_that_cannot_be_dropped_is_named(tmp_path):
    assert "none could not be dropped" in drop_files([tmp_path / "none"])


@pytest.mark.parametrize("stays", [True, False])
def test_a_load_that_reads_nothing_from_a_disk_says_so(monkeypatch, stays):
    counts = iter([7, 7 if stays else 8])
    monkeypatch.setattr(child, "count_read_bytes", lambda: next(counts))
    monkeypatch.setattr(child, "_prepare", lambda _: list)

    notes = child.load_model(Request(task="load", engine="epctx"))["notes"]

    assert len(notes) == stays
    assert all("load_cold: nothing was read from a disk" in note for note in notes)


def test_a_system_that_cannot_drop_files_says_so(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)

    assert "cannot drop files" in drop_files([tmp_path])


def test_costs_include_those_of_a_child_process():
    with measure_costs() as costs:
        subprocess.run([sys.executable, "-c", WORK], check=True)

    assert costs["seconds"] >= 0.3
    assert costs["cpu_seconds"] >= 0.3
    assert costs["peak_bytes"] >= read_peak() + SIZE


def test_the_peak_stays_after_memory_was_freed():
    before = read_peak()
    memory = np.ones(SIZE + before, np.uint8)
    del memory

    assert read_peak() >= SIZE + before
