"""Page cache, processor time and peak memory."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from epctx_bench.page_cache import count_cached_pages, drop_files, read_files
from epctx_bench.process_costs import CostMeter, read_peak

SIZE = 64 << 20
WORK = """
import time
memory = bytearray(64 << 20)
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
"""


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="needs posix_fadvise")
def test_dropped_files_leave_the_page_cache_or_the_reason_is_said(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * (1 << 20))
    read_files([path])
    assert count_cached_pages(path)

    reason = drop_files([path])

    assert (count_cached_pages(path) == 0) is (reason == "")
    assert not reason or "file stayed in the page cache" in reason


def test_a_system_that_cannot_drop_files_says_so(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)

    assert "cannot drop files" in drop_files([tmp_path])


def test_costs_include_those_of_a_child_process():
    with CostMeter() as meter:
        subprocess.run([sys.executable, "-c", WORK], check=True)

    assert meter.costs.seconds >= 0.3
    assert meter.costs.cpu_seconds >= 0.3
    assert meter.costs.peak_bytes >= read_peak() + SIZE


def test_the_peak_stays_after_memory_was_freed():
    before = read_peak()
    memory = np.ones(SIZE + before, np.uint8)
    del memory

    assert read_peak() >= SIZE + before
