"""Digests ahead: made by threads while earlier weights are written, and no thread stays
behind.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.payload_writing import noise, weight_in_file

from epctx_core.graph import weights
from epctx_core.graph.weights import (
    PARALLEL_FROM,
    Weight,
    compute_digests_ahead,
    share_digests,
)

pytestmark = pytest.mark.internal

PATIENCE = 20
"""Seconds after which something that should have happened will not."""


class Watched(Weight):
    """A weight that counts how often its bytes are read, and may be held before its
    first.
    """

    def __init__(self, data, name="w"):
        super().__init__(name, 2, (len(data),), data)
        self.reads = 0
        self.readers = set()
        self.held = threading.Event()
        self.held.set()
        self.begun = threading.Event()

    def chunks(self):
        self.reads += 1
        self.readers.add(threading.current_thread())
        self.begun.set()
        assert self.held.wait(PATIENCE)
        yield from super().chunks()


def large(count, size=PARALLEL_FROM):
    return [Watched(noise(size, seed), f"w{seed}") for seed in range(count)]


def digest_threads():
    return [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("epctx-digest")
    ]


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def test_each_weight_is_read_once_by_whoever_comes_first_and_its_digest_is_right():
    weights = large(6)

    with compute_digests_ahead(weights):
        found = [weight.digest for weight in weights]
        again = [weight.digest for weight in weights]

    assert found == again == [sha256(weight.array()) for weight in weights]
    assert [weight.reads for weight in weights] == [1] * 6


def test_a_weight_is_used_while_later_ones_are_still_being_digested():
    first, last = large(2)
    last.held.clear()

    with compute_digests_ahead([first, last]):
        assert first.digest == sha256(first.array())
        assert last.begun.wait(PATIENCE)
        last.held.set()

        assert last.digest == sha256(last.array())

    assert threading.current_thread() not in last.readers


def test_a_digest_that_no_thread_has_begun_is_made_by_the_one_who_asks(monkeypatch):
    monkeypatch.setattr(weights.os, "cpu_count", lambda: 1)
    first, last = large(2)
    first.held.clear()

    with compute_digests_ahead([first, last]):
        assert first.begun.wait(PATIENCE)
        assert last.digest == sha256(last.array())
        assert last.readers == {threading.current_thread()}
        first.held.set()


def test_small_weights_cost_no_thread():
    small = Watched(bytes(PARALLEL_FROM - 1))

    with compute_digests_ahead([small]):
        assert digest_threads() == []

    assert small.reads == 0


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_an_error_the_threads_stop_at_their_next_piece_and_are_gone(
    tmp_path, error
):
    path = tmp_path / "w.bin"
    with path.open("wb") as file:
        file.truncate(2 << 30)  # a second of hashing in each of several threads
    weights = [
        weight_in_file(path, 0, 2 << 30),
        weight_in_file(path, 0, (2 << 30) - 1),
    ] * 8

    start = time.process_time()
    with pytest.raises(error), compute_digests_ahead(weights):
        raise error

    # To hash all 32 GiB takes more than 15 s of a processor.
    assert time.process_time() - start < 5
    assert digest_threads() == []


def test_a_digest_that_was_stopped_is_made_when_it_is_asked_for():
    weights = large(3)
    for weight in weights:
        weight.held.clear()

    with pytest.raises(OSError, match="full"), compute_digests_ahead(weights):
        threading.Timer(0.05, lambda: [weight.held.set() for weight in weights]).start()
        raise OSError("full")

    assert [weight.digest for weight in weights] == [
        sha256(weight.array()) for weight in weights
    ]


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="memory is counted on Linux only"
)
@pytest.mark.parametrize(
    "piece", [1 << 20, 64 << 20], ids=["many middling weights", "a few large ones"]
)
def test_weights_in_a_file_are_digested_with_little_of_it_in_memory(tmp_path, piece):
    size = 256 << 20
    path = tmp_path / "w.bin"
    np.arange(size // 8).tofile(path)
    whole = weight_in_file(path, 0, size)
    mapped, _ = whole.mapping
    weights = [
        Weight(
            f"w{start}",
            2,
            (piece,),
            mapped.view[start : start + piece],
            mapped=mapped,
            offset=start,
        )
        for start in range(0, size, piece)
    ]
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")

    with compute_digests_ahead(weights):
        assert len({weight.digest for weight in weights}) == len(weights)

    assert memory("VmHWM") - before < 64 << 20


def read_by(weights, monkeypatch):
    """Return the digests of weights, and how many bytes were read for them."""
    read = []
    chunks = Weight.chunks

    def counted(self):
        read.append(self.nbytes)
        return chunks(self)

    monkeypatch.setattr(Weight, "chunks", counted)
    return [weight.digest for weight in weights], sum(read)


def test_one_place_of_one_file_is_digested_once_whoever_opened_it_and_by_which_name(
    tmp_path, monkeypatch
):
    data = noise(3000)
    path, link = tmp_path / "w.bin", tmp_path / "other.bin"
    path.write_bytes(data)
    link.hardlink_to(path)
    weights = [
        weight_in_file(path, 0, 1000),
        weight_in_file(link, 0, 1000),
        weight_in_file(path, 1000, 2000),
    ]

    extents: dict = {}
    for weight in weights:
        share_digests([weight], extents)
    found, read = read_by(weights, monkeypatch)

    assert found == [sha256(data[:1000]), sha256(data[:1000]), sha256(data[1000:])]
    assert read == 3000


@pytest.mark.parametrize("how", ["replaced", "written in place"])
def test_another_content_at_the_same_path_is_digested_for_itself(
    tmp_path, monkeypatch, how
):
    old, new = noise(1000, 0), noise(1000, 1)
    path = tmp_path / "w.bin"
    path.write_bytes(old)
    first = weight_in_file(path, 0, 1000)
    extents: dict = {}
    share_digests([first], extents)
    assert first.digest == sha256(old)
    if how == "replaced":
        (tmp_path / "new.bin").write_bytes(new)
        status = path.stat()
        (tmp_path / "new.bin").replace(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        time.sleep(0.02)  # the clock of files is coarse
        path.write_bytes(new)

    second = weight_in_file(path, 0, 1000)
    share_digests([second], extents)
    found, read = read_by([second], monkeypatch)

    assert found == [sha256(new)]
    assert read == 1000


def memory(counter):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(
        int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{counter}:")
    )
