"""A hit reads neither the model nor its weights again while the state of their files is
as before.
"""

from __future__ import annotations

import os
import time

import pytest
from epctx_cache import content
from support.sim_eps import QNN, with_eps
from support.strange_files import STRANGE

import epctx_core as epctx
from epctx_core.graph import mapping

pytestmark = pytest.mark.internal

LONG_AGO = 1_000_000_000


def rest(path):
    """Make a file look as if nobody had touched it for years."""
    os.utime(path, (LONG_AGO, LONG_AGO))


def write_and_set_back(path, data):
    """Write other bytes of the same number and set the time back, as tools do that
    unpack archives.
    """
    status = path.stat()
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.fixture
def reads(monkeypatch):
    """The models that were read for their digests."""
    seen = []
    original = content.Source.read

    def read(self):
        seen.append(self.name)
        return original(self)

    monkeypatch.setattr(content.Source, "read", read)
    return seen


@pytest.fixture
def rested(with_weights, none_too_new):
    """A model whose files look old."""
    path = with_weights()
    for file in path.parent.iterdir():
        rest(file)
    return path


def test_files_in_the_same_state_are_read_once(cache, rested, reads):
    keys = {cache.key(rested) for _ in range(3)}

    assert len(keys) == 1
    assert reads == ["big.onnx"]


@pytest.mark.parametrize("file", ["big.onnx", "w.bin"])
@pytest.mark.parametrize("change", ["time", "size", "another file"])
def test_a_file_in_another_state_is_read_again(cache, rested, reads, file, change):
    before = cache.key(rested)
    path = rested.parent / file
    if change == "time":
        os.utime(path, (LONG_AGO + 1, LONG_AGO + 1))
    elif change == "size":
        path.write_bytes(
            path.read_bytes() + b"\x32\x00"
        )  # to a protobuf an empty field
        rest(path)
    else:
        path.write_bytes(
            b""
        )  # the old file keeps its inode, so that the new one has another
        path.rename(path.with_name("aside"))
        return_to(path, rested, file)

    after = cache.key(rested)

    assert reads == ["big.onnx", "big.onnx"]
    assert (after == before) == ((file, change) != ("big.onnx", "size"))


def return_to(path, model, file):
    """Put a file with the first content in place."""
    import numpy as np
    import onnx

    if file == "w.bin":
        path.write_bytes(np.full((128, 128), 0.5, np.float32).tobytes())
    else:
        weights = model.parent / "w.bin"
        state = weights.stat()
        weight = onnx.numpy_helper.from_array(np.full((128, 128), 0.5, np.float32), "w")
        nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="n")]
        values = [
            onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 128])
            for n in ("x", "y")
        ]
        graph = onnx.helper.make_graph(nodes, "big", values[:1], values[1:], [weight])
        made = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8
        )
        weights.unlink()
        onnx.save(
            made, path, save_as_external_data=True, location="w.bin", size_threshold=0
        )
        os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    rest(path)


@pytest.mark.parametrize("file", ["big.onnx", "w.bin"])
def test_other_bytes_under_the_same_size_time_and_inode_are_seen(cache, rested, file):
    before = cache.key(rested)
    path = rested.parent / file
    data = (
        path.read_bytes().replace(b"big", b"gib") if file == "big.onnx" else bytes(64)
    )
    write_and_set_back(path, data)

    assert cache.key(rested) != before


def test_what_the_state_does_not_tell_is_not_seen_unless_all_is_read(
    cache, rested, monkeypatch
):
    monkeypatch.setattr(content, "file_state", state_without_ctime)
    before = cache.key(rested)
    write_and_set_back(rested.parent / "w.bin", b"\0" * 64)

    trusting, reading = cache.key(rested), cache.key(rested, trust_stat=False)

    assert trusting == before
    assert reading != before


def state_without_ctime(status):
    """Return a state as a file system tells it that keeps no time for changes of
    attributes.
    """
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, 0


def test_the_environment_can_have_all_be_read(cache, rested, reads, monkeypatch):
    monkeypatch.setenv("EPCTX_CACHE_TRUST_STAT", "0")

    cache.key(rested)
    cache.key(rested)

    assert reads == ["big.onnx", "big.onnx"]


@pytest.mark.parametrize("file", ["big.onnx", "w.bin"])
def test_a_file_changed_within_the_last_two_seconds_is_not_remembered(
    cache, rested, reads, file, monkeypatch
):
    monkeypatch.setattr(content, "RACY_NS", 2_000_000_000)
    monkeypatch.setattr(content, "file_state", state_without_ctime)
    now = time.time()
    os.utime(rested.parent / file, (now, now))

    cache.key(rested)
    cache.key(rested)

    assert reads == ["big.onnx", "big.onnx"]


def test_a_hard_link_elsewhere_finds_its_weights_there(cache, rested, with_weights):
    first = cache.key(rested)
    other = with_weights(0.25, "other", "unused.onnx").parent
    os.link(rested, other / "linked.onnx")
    rest(other / "w.bin")

    assert cache.key(other / "linked.onnx") != first
    assert cache.key(rested) == first


def test_a_model_from_bytes_is_known_by_its_bytes(cache, rested, reads):
    options = with_eps(QNN)
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(rested.parent)
    )

    for _ in range(2):
        cache.key(rested.read_bytes(), options)

    assert len(reads) == 1


def test_a_model_that_is_replaced_while_it_is_compiled_is_not_kept_under_the_old_key(
    cache, rested, with_weights, monkeypatch
):
    original, states = epctx.ModelCompiler.compile_to_file, []

    def replaced_meanwhile(self, path):
        report = original(self, path)
        if not states:
            states.append(1)
            with_weights(0.25)
        return report

    monkeypatch.setattr(epctx.ModelCompiler, "compile_to_file", replaced_meanwhile)
    key = cache.key(rested)

    assert cache.keys == {key}
    assert cache.key(rested, trust_stat=False) == key
    assert len(states) == 1


def test_a_miss_digests_each_weight_once(cache, rested, monkeypatch):
    digested = []
    original = mapping._compute_digest

    def noted(chunks, *stopped):
        digested.append(sum(len(chunk) for chunk in chunks()))
        return original(chunks, *stopped)

    monkeypatch.setattr(mapping, "_compute_digest", noted)

    cache.path(rested)

    assert digested.count(128 * 128 * 4) == 1


@pytest.mark.parametrize("kind", STRANGE)
def test_a_record_of_the_index_that_could_not_be_read_to_its_end_is_none(
    kind, cache, rested, reads
):
    key = cache.key(rested)
    (record,) = cache.store.index_folder.glob("??/*")
    record.unlink()
    STRANGE[kind](record)

    assert cache.key(rested) == key
    assert reads == ["big.onnx"] * 2
