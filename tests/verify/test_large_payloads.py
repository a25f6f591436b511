"""A payload of any size is digested in bounded memory, by several threads, and the
memory is given back.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import epctx_core as epctx
from epctx_core.context import digests

pytestmark = pytest.mark.internal

SIZE = 256 << 20
WEIGHT = 32 << 20
LIMIT = 100 << 20
"""Bytes resident above what the process has before."""

MEASURE = """
import json, resource, sys, threading, time
import support.context_pairs as harnesses
import epctx_core as epctx

registry = harnesses.knowing(harnesses.Alpha)
small = epctx.verify_model(sys.argv[2], registry=registry)
def resident():
    return int(open('/proc/self/statm').read().split()[1]) * resource.getpagesize()
before, most, done = resident(), 0, False
def watch():
    global most
    while not done:
        most = max(most, resident())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
report = epctx.verify_model(sys.argv[1], registry=registry)
done = True
thread.join()
print(json.dumps({"codes": [f.code for f in report.findings], "grown": most - before}))
"""


@pytest.fixture
def large(handmade, tmp_path):
    """A model with a sparse binary of 256 MiB and the manifest that belongs to it."""
    with handmade.binary.open("r+b") as file:
        file.truncate(SIZE)
    with handmade.binary.open("rb") as file:
        first = file.read(WEIGHT)
    digests = [hashlib.sha256(piece).hexdigest() for piece in (first, bytes(WEIGHT))]
    segments = [(start, WEIGHT, digests[start > 0]) for start in range(0, SIZE, WEIGHT)]
    lines = "".join(
        f"{start} {length} {digest}\n" for start, length, digest in segments
    )
    entry = {
        "name": "h_alpha.bin",
        "embedded": False,
        "bytes": SIZE,
        "root": hashlib.sha256(lines.encode()).hexdigest(),
        "segments": [[length, digest, 1] for _, length, digest in segments],
    }
    content = {"version": 1, "source_model": "", "providers": {}, "payloads": [entry]}
    handmade.edit_metadata("epctx.manifest", json.dumps(content))
    return handmade


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(),
    reason="measured by what Linux tells of a process",
)
def test_a_quarter_of_a_gigabyte_is_verified_in_bounded_memory(large, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    (small / "h_ctx.onnx").write_bytes(large.path.read_bytes())
    command = [
        sys.executable,
        "-c",
        MEASURE,
        str(large.path),
        str(small / "h_ctx.onnx"),
    ]

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.check_output(command, text=True, timeout=120, env=environment)

    answer = json.loads(output)
    assert answer["codes"] == []
    assert answer["grown"] < LIMIT


def test_one_bit_of_it_is_found(large):
    with large.binary.open("r+b") as file:
        file.seek(SIZE - 5)
        file.write(b"\1")

    (finding,) = large.verify().findings

    assert finding.code == "digest-mismatch"
    assert (
        f"its bytes {SIZE - WEIGHT:,} to {SIZE:,} have another digest"
        in finding.message
    )


def test_segments_are_digested_by_several_threads(large, monkeypatch):
    seen = set()
    right = digests.compute_digest
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    barrier = threading.Barrier(3, timeout=20)

    def watched(view, segment, forget=None):
        if len(seen) < 3:
            seen.add(threading.get_ident())
            barrier.wait()
        return right(view, segment, forget)

    monkeypatch.setattr(digests, "compute_digest", watched)

    report = large.verify()

    assert isinstance(report, epctx.VerifyReport)
    assert len(report.payloads) == 1
    assert len(seen) == 3
