"""Entries 118 to 120, 123 to 125 and 127: which callback is used, for how long, and
what is none.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import tempfile
import threading
import weakref
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import pytest
from contract.payload_store import (
    LIMIT,
    NODES,
    Store,
    compiler_of,
    expected,
    kept,
    opened,
    raising,
    reading,
    result,
)
from support.engine_eps import Alpha, scripted
from support.routes import refused
from support.small_models import chain, saved
from support.validating_eps import registry_with

import epctx_core as epctx
from epctx_core import Fail, InvalidArgument
from epctx_core.plugin import hookimpl

needs_files_in_memory = pytest.mark.skipif(
    not hasattr(os, "memfd_create"),
    reason="this system has no files in memory that have a path",
)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    return saved(chain(NODES), folder / "m.onnx")


@pytest.fixture
def store():
    return Store()


# --- which callback, and for how long -------------------------------------------------


@pytest.mark.entry(118, 123)
def test_a_callback_goes_before_files_which_are_then_not_even_looked_for(
    source, store, tmp_path
):
    model = kept(source, store)
    path = saved(onnx.load_from_string(model), source.parent / "m_ctx.onnx")
    (source.parent / "m_alpha.bin").write_bytes(b"of another model")

    for entries in ({}, {"ep__context_file_path": tmp_path / "nowhere" / "m_ctx.onnx"}):
        assert np.allclose(result(opened(path, store.read, **entries)), expected())
        assert np.allclose(result(opened(model, store.read, **entries)), expected())

    assert store.asked == ["m_alpha.bin"] * 4


@pytest.mark.entry(123)
@pytest.mark.parametrize(
    "name", ["../../m.bin", "/srv/m.bin", "s3:bucket//m.bin", "ä b.bin"]
)
def test_a_name_is_passed_as_the_model_has_it(source, store, name):
    model = onnx.load_from_string(kept(source, store))
    (payload,) = store.payloads.values()
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "ep_cache_context" and attribute.s:
                attribute.s = name.encode()
    (entry,) = [e for e in model.metadata_props if e.key == "epctx.manifest"]
    assert entry.value.count('"m_alpha.bin"') == 1
    entry.value = entry.value.replace('"m_alpha.bin"', json.dumps(name))
    store.payloads = {name: payload}

    assert np.allclose(
        result(opened(model.SerializeToString(), store.read)), expected()
    )
    assert store.asked == [name]


@pytest.mark.entry(118)
def test_a_callback_that_was_cleared_is_not_called(source, store):
    report = compiler_of(source, Alpha).compile_to_file()
    options = reading(raising, Alpha)
    options.clear_ep_context_data_read_func()
    options.clear_ep_context_data_read_func()
    epctx.InferenceSession(
        report.output, options, registry=registry_with(Alpha)
    ).close()

    compiler = compiler_of(source, Alpha)
    compiler.set_ep_context_data_write_func(raising)
    compiler.set_ep_context_data_write_func(store.write)
    compiler.compile_to_file()
    assert list(store.payloads) == ["m_alpha.bin"]
    compiler.clear_ep_context_data_write_func()
    compiler.compile_to_file()

    assert (source.parent / "m_alpha.bin").read_bytes() == store.payloads["m_alpha.bin"]


@pytest.mark.entry(119)
def test_what_is_set_later_changes_neither_a_session_nor_a_compiler(source, store):
    model = kept(source, store)
    options = reading(store.read, Alpha)
    registry = registry_with(Alpha)
    session = epctx.InferenceSession(model, options, registry=registry)
    compiler = epctx.ModelCompiler(options, source, registry=registry)

    options.clear_ep_context_data_read_func()
    options.add_provider("Nobody")

    inherited = session.get_session_options()
    assert inherited is not options
    assert inherited.data_reader.function == store.read
    assert [name for name, _ in inherited.providers] == [Alpha.name]
    with session:
        epctx.InferenceSession(model, inherited, registry=registry).close()
    compiler.compile_to_file()


@pytest.mark.entry(119)
def test_a_load_uses_the_callback_that_was_set_when_it_began(source, store):
    options = epctx.SessionOptions()

    def changing(honest):
        options.set_ep_context_data_read_func(raising, LIMIT)
        return honest()

    ep = scripted(load_context=changing)
    model = kept(source, store, ep)
    options.add_provider(ep.name)
    options.set_ep_context_data_read_func(store.read, LIMIT)

    assert np.allclose(
        result(epctx.InferenceSession(model, options, registry=registry_with(ep))),
        expected(),
    )


@pytest.mark.entry(120, 127)
@pytest.mark.parametrize(
    ("function", "size"),
    [(None, 10), (5, 10), ("read", 10)]
    + [
        (raising, size)
        for size in (0, -1, 1 << 63, (1 << 64) - 1, None, 1.5, "10", True, float("inf"))
    ],
)
def test_a_callback_is_a_function_with_a_finite_size(function, size):
    options = epctx.SessionOptions()

    with refused(
        InvalidArgument, "read callback must be a function|max_data_size must be"
    ):
        options.set_ep_context_data_read_func(function, size)

    assert options.data_reader is None


@pytest.mark.entry(127)
def test_a_write_callback_is_a_function(source):
    for wrong in (None, 5, "write"):
        with refused(
            InvalidArgument, "set_ep_context_data_write_func takes a function"
        ):
            compiler_of(source, Alpha).set_ep_context_data_write_func(wrong)


class ByFile(Alpha):
    """Alpha that loads its payload by way of a file, which another program can read,
    too.
    """

    paths: ClassVar[dict] = {}

    @hookimpl
    def load_context(self, nodes, reader):
        for node in nodes:
            path = reader.payload(node).as_file()
            read = subprocess.run(["cat", path], capture_output=True, check=True).stdout
            assert read == Path(path).read_bytes() == reader.payload(node).view
            self.paths[path] = reader.payload(node).as_file()
        return super().load_context(nodes, reader)


@pytest.fixture
def by_file(monkeypatch):
    monkeypatch.setattr(ByFile, "paths", {})
    return ByFile


@pytest.mark.entry(127)
@needs_files_in_memory
def test_an_ep_that_takes_only_files_gets_a_callbacks_payload_on_no_disk(
    source, store, by_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))

    session = opened(kept(source, store), store.read, by_file)
    (path,) = by_file.paths
    content = Path(path).read_bytes()

    np.testing.assert_allclose(result(session), expected())
    assert content == store.payloads["m_alpha.bin"]
    assert by_file.paths == {path: path}
    assert not Path(path).exists()


@pytest.mark.entry(127)
def test_where_files_in_memory_do_not_exist_an_ep_that_takes_only_files_is_refused(
    source, store, by_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delattr(os, "memfd_create", raising=False)
    model = kept(source, store)

    with refused(
        Fail, "no files in memory that have a path", folder=tmp_path, ep=Alpha.name
    ):
        opened(model, store.read, by_file)


@pytest.mark.entry(124)
def test_compiling_does_not_call_the_read_callback(source, store):
    compiler = epctx.ModelCompiler(
        reading(raising, Alpha), source, registry=registry_with(Alpha)
    )
    compiler.set_ep_context_data_write_func(store.write)

    compiler.compile_to_bytes()

    assert list(store.payloads) == ["m_alpha.bin"]


@pytest.mark.entry(124)
def test_callbacks_outlive_the_options_and_go_with_their_owner(source):
    store = Store()
    options = reading(lambda name, buffer, keep=store: keep.read(name, buffer), Alpha)
    compiler = epctx.ModelCompiler(options, source, registry=registry_with(Alpha))
    compiler.set_ep_context_data_write_func(
        lambda name, data, keep=store: keep.write(name, data)
    )
    alive = weakref.ref(store)
    model = compiler.compile_to_bytes()
    session = epctx.InferenceSession(model, options, registry=registry_with(Alpha))
    del options, store
    gc.collect()

    alive().payloads.clear()
    assert compiler.compile_to_bytes() == model
    assert alive().asked == ["m_alpha.bin"]
    del compiler
    gc.collect()
    inherited = session.get_session_options()
    session.close()
    del session
    gc.collect()
    assert alive() is not None
    epctx.InferenceSession(model, inherited, registry=registry_with(Alpha)).close()

    del inherited
    gc.collect()
    assert alive() is None


@pytest.mark.entry(125)
@pytest.mark.parametrize("how", ["set", "clear"])
def test_a_callbacks_finalizer_may_change_the_configuration(source, how):
    options, compiler = epctx.SessionOptions(), compiler_of(source, Alpha)
    finalized = []

    class Callback:
        def __init__(self, setting, clearing):
            self._setting, self._clearing = setting, clearing

        def __call__(self, _name, _data):
            raise AssertionError("never called here")

        def __del__(self):
            finalized.append(how)
            self._clearing()
            self._setting()
            self._clearing()

    def work():
        options.set_ep_context_data_read_func(
            Callback(
                lambda: options.set_ep_context_data_read_func(raising, LIMIT),
                options.clear_ep_context_data_read_func,
            ),
            LIMIT,
        )
        compiler.set_ep_context_data_write_func(
            Callback(
                lambda: compiler.set_ep_context_data_write_func(raising),
                compiler.clear_ep_context_data_write_func,
            )
        )
        if how == "set":
            options.set_ep_context_data_read_func(raising, LIMIT)
            compiler.set_ep_context_data_write_func(raising)
        else:
            options.clear_ep_context_data_read_func()
            compiler.clear_ep_context_data_write_func()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)

    assert not thread.is_alive(), "deadlock"
    assert finalized == [how] * 2
    assert options.data_reader is None


def test_threads_load_at_the_same_time_through_one_callback(source, store):
    model = kept(source, store)
    options, results = reading(store.read, Alpha), []

    def load():
        results.append(
            result(
                epctx.InferenceSession(model, options, registry=registry_with(Alpha))
            )
        )

    threads = [threading.Thread(target=load) for _ in range(os.cpu_count() + 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(store.asked) == len(results) == len(threads)
    assert all(np.array_equal(found, results[0]) for found in results)
