"""Entries that are not what was written: found, dropped, compiled anew; no load fails
because of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from epctx_cache import store
from epctx_cache.store import RECORD
from support.sim_eps import QNN, with_eps
from support.small_models import chain, example, saved

import epctx_core as epctx
from epctx_core.context import digests
from epctx_core.plugin import hookimpl

pytestmark = pytest.mark.internal

FILES = (RECORD, "model_ctx.onnx", "model_qnn.bin")


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 0x20
    path.write_bytes(data)


def answer(session):
    with session:
        return session.run(None, {"x": example()})[0]


@pytest.fixture
def entry(cache, model):
    """The folder of the one entry of a cache."""
    return cache.path(model).parent


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_found_dropped_and_compiled_anew(
    cache, model, entry, name
):
    expected = answer(cache.session(model))
    size = (entry / name).stat().st_size
    places = sorted({0, size - 1, *range(7, size, max(size // 10, 1))})

    for count, place in enumerate(places, start=1):
        flip(entry / name, place)

        assert np.array_equal(answer(cache.session(model)), expected)
        assert cache.compiles == count + 1
        assert len(cache.warnings) == count
        assert "is removed" in cache.warnings[-1]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage", ["emptied", "cut", "longer", "gone", "a folder", "another entry's"]
)
def test_a_file_that_is_no_longer_what_it_was_is_compiled_anew(
    cache, model, entry, tmp_path, name, damage
):
    expected = answer(cache.session(model))
    file = entry / name
    data = file.read_bytes()
    if damage == "another entry's":
        other = saved(chain(["Add", "Relu"], seed=9), tmp_path / "other.onnx")
        shutil.copyfile(cache.path(other).parent / name, file)
    elif damage in {"gone", "a folder"}:
        file.unlink()
        if damage == "a folder":
            file.mkdir()
    else:
        file.write_bytes(
            {"emptied": b"", "cut": data[: len(data) // 2], "longer": data + b"\0"}[
                damage
            ]
        )
    before = cache.compiles

    answers = [answer(cache.session(model)) for _ in range(2)]

    assert all(np.array_equal(a, expected) for a in answers)
    assert cache.compiles == before + 1
    assert sorted(path.name for path in entry.iterdir()) == sorted(
        [*FILES, "hits", "used"]
    )


def test_weights_that_were_altered_where_a_load_does_not_look_are_found_by_verify(
    cache, with_weights
):
    options = epctx.SessionOptions()
    path = with_weights()
    weights = cache.path(path, options).parent / "model.weights"
    flip(weights, 1000)

    (entry, fault), *others = store.verify(cache.store)

    assert others == []
    assert entry.key == weights.parent.name
    assert "model.weights" in fault
    assert cache.keys == set()
    assert cache.key(path, options) == entry.key


def test_verify_finds_nothing_wrong_with_what_was_written(cache, model, with_weights):
    cache.path(model)
    cache.path(with_weights())
    cache.path(with_weights(), epctx.SessionOptions())

    assert [fault for _, fault in store.verify(cache.store)] == ["", "", ""]
    assert len(cache.keys) == 3


def test_an_entry_that_an_ep_no_longer_loads_is_compiled_anew(
    cache, model, monkeypatch
):
    cls = epctx.Registry().load(epctx.Registry().resolve("QNN"))
    expected = answer(cache.session(model))
    original, refusals = cls.load_context, []

    def refuse_once(self, nodes, reader):
        if not refusals:
            refusals.append(1)
            raise epctx.InvalidGraph("made for an older driver.")
        return original(self, nodes, reader)

    monkeypatch.setattr(cls, "load_context", hookimpl(refuse_once))

    assert np.array_equal(answer(cache.session(model)), expected)
    assert cache.compiles == 2
    assert "made for an older driver" in cache.warnings[0]


def test_an_entry_that_an_ep_fails_to_load_stays_and_a_warning_says_how_to_remove_it(
    cache, model, monkeypatch
):
    """The fault may be the plugin's, and a compile for each start would be worse."""
    cls = epctx.Registry().load(epctx.Registry().resolve("QNN"))
    key = cache.key(model)

    def fail(self, nodes, reader):
        raise RuntimeError("stale")

    monkeypatch.setattr(cls, "load_context", hookimpl(fail))

    with pytest.raises(epctx.PluginError, match="stale"):
        cache.session(model)
    assert cache.keys == {key}
    (warning,) = cache.warnings
    assert f"the cache entry {key[:12]} of small.onnx" in warning
    assert "epctx cache clear" in warning


def test_an_error_that_is_not_the_entrys_fault_drops_nothing(cache, model, entry):
    options = with_eps(QNN)
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    plain = saved(chain(["Relu", "Add", "Erf"]), model.parent / "more.onnx")
    options.add_session_config_entry("ep.partition_min_nodes", "100")

    for _ in range(2):
        with pytest.raises(epctx.Fail, match="disable_cpu_ep_fallback"):
            cache.session(plain, options)

    assert cache.compiles == 2
    assert len(cache.keys) == 2
    assert all(text.startswith("nothing was compiled") for text in cache.warnings)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"digest": "x", "context": false}', b"\xff" * 100]
)
def test_a_damaged_index_only_means_that_the_model_is_read_again(
    cache, model, none_too_new, content
):
    cache.path(model)
    (record,) = (cache.folder / "v1" / "index").rglob("*.json")
    record.write_bytes(content)

    cache.path(model)

    assert cache.compiles == 1
    assert cache.warnings == []


def test_a_damaged_secret_is_drawn_again(cache, model):
    options = with_eps(QNN)
    options.add_session_config_entry("acme.entry", "hidden")
    cache.path(model, options)
    (cache.folder / "v1" / "secret").write_bytes(b"short")

    keys = {cache.key(model, options) for _ in range(2)}

    assert len(keys) == 1
    assert cache.compiles == 2


def test_checked_once_an_entry_is_read_again_only_where_it_has_changed(
    cache, model, entry, monkeypatch
):
    read = []
    monkeypatch.setattr(
        digests.PayloadEntry, "find_damage", lambda _, view, *__: read.append(len(view))
    )
    binary, record = entry / "model_qnn.bin", store.read_record(entry)

    store.check_whole(entry, record, once=True)
    assert read == []  # the compile left a receipt

    os.utime(binary, (1, 1))
    time.sleep(2.1)  # a younger file gets no receipt
    store.check_whole(entry, record, once=True)
    store.check_whole(entry, record, once=True)
    assert read == [binary.stat().st_size]

    store.check_whole(entry, record)
    assert len(read) == 2


def test_checked_once_an_entry_with_another_binary_is_damaged(entry):
    flip(entry / "model_qnn.bin", 5000)

    with pytest.raises(store.CorruptEntryError, match="have another digest"):
        store.check_whole(entry, store.read_record(entry), once=True)


WHOLE = """
import sys
from pathlib import Path
from epctx_cache.store import check_whole, read_record
folder = Path(sys.argv[1])
check_whole(folder, read_record(folder))
assert "onnx" not in sys.modules
"""


def test_all_files_of_an_entry_are_checked_without_onnx(cache, tmp_path):
    """Those of weights that stay outside of payloads, too: no EP here takes doubles."""
    weights = [
        onnx.numpy_helper.from_array(np.ones((64, 64), dtype), name)
        for name, dtype in (("w", np.float32), ("double", np.float64))
    ]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["a"]),
        onnx.helper.make_node("Cast", ["a"], ["b"], to=onnx.TensorProto.DOUBLE),
        onnx.helper.make_node("Mul", ["b", "double"], ["y"]),
    ]
    ends = [
        onnx.helper.make_tensor_value_info(name, elem_type, [64, 64])
        for name, elem_type in (
            ("x", onnx.TensorProto.FLOAT),
            ("y", onnx.TensorProto.DOUBLE),
        )
    ]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    opsets = [onnx.helper.make_opsetid("", 18)]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    folder = cache.path(saved(proto, tmp_path / "doubles.onnx")).parent
    assert (folder / "model.weights").is_file()

    subprocess.run([sys.executable, "-c", WHOLE, folder], check=True, timeout=100)
