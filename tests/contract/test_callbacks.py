"""Entries 121 to 124: payloads through the host's functions instead of files."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import pytest
from contract.payload_store import (
    LIMIT,
    NODES,
    HostError,
    Store,
    compiler_of,
    expected,
    kept,
    opened,
    raising,
    result,
)
from support.engine_eps import Alpha, Beta, scripted
from support.routes import refused
from support.small_models import chain, example, saved, snapshot

import epctx_core as epctx
from epctx_core import Fail, InvalidArgument, InvalidGraph
from epctx_core.plugin import hookimpl


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    return saved(chain(NODES), folder / "m.onnx")


@pytest.fixture
def store():
    return Store()


# --- a round trip ---------------------------------------------------------------------


@pytest.mark.entry(124)
@pytest.mark.parametrize(
    ("ep", "names"),
    [(Alpha, ["m_alpha.bin"]), (Beta, ["m_beta_0.bin", "m_beta_1.bin"])],
)
def test_each_payload_is_one_call_to_write_and_one_to_read_and_no_file_appears(
    ep, names, tmp_path, store, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    operators = ["Relu", "Sigmoid", "Relu"]
    source = chain(operators).SerializeToString()

    compiler = compiler_of(source, ep, ep__context_file_path="m_ctx.onnx")
    compiler.set_ep_context_data_write_func(store.write)
    model = compiler.compile_to_bytes()
    with opened(model, store.read, ep) as session:
        found = session.run(None, {"x": example()})[0]

    assert sorted(store.payloads) == sorted(store.asked) == names
    assert [
        n.attribute
        for n in onnx.load_from_string(model).graph.node
        if n.op_type == "EPContext"
    ]
    assert snapshot(tmp_path) == {}
    with epctx.InferenceSession(source) as plain:
        assert np.allclose(found, plain.run(None, {"x": example()})[0])


@pytest.mark.parametrize("ep", ["QNN", "OpenVINO", "VitisAI"])
def test_every_ep_can_be_used_because_the_core_owns_the_bytes(ep, network, store):
    source, options = network("squeezenet_int8"), epctx.SessionOptions()
    options.add_provider(ep)
    compiler = epctx.ModelCompiler(options, source.path)
    report = compiler.compile_to_file()
    compiler.set_ep_context_data_write_func(store.write)
    model = compiler.compile_to_bytes()
    options.set_ep_context_data_read_func(store.read, 1 << 30)

    with (
        epctx.InferenceSession(report.output) as by_file,
        epctx.InferenceSession(model, options) as session,
    ):
        for found, wanted in zip(
            session.run(None, source.inputs),
            by_file.run(None, source.inputs),
            strict=True,
        ):
            assert np.array_equal(found, wanted)
    assert store.asked == list(store.payloads)
    assert store.payloads == {
        name: (source.path.parent / name).read_bytes() for name in store.payloads
    }


@pytest.mark.entry(124)
def test_the_model_may_be_a_file_while_payloads_go_to_the_callback(source, store):
    compiler = compiler_of(source, Alpha)
    compiler.set_ep_context_data_write_func(store.write)

    report = compiler.compile_to_file()

    assert sorted(snapshot(source.parent)) == ["m.onnx", "m_ctx.onnx"]
    assert list(store.payloads) == ["m_alpha.bin"]
    assert np.allclose(result(opened(report.output, store.read)), expected())


@pytest.mark.entry(121)
def test_binary_information_names_what_the_write_callback_gets(source, store, tmp_path):
    compiler = compiler_of(source, Alpha)
    compiler.set_ep_context_binary_information(tmp_path / "binaries", "other.onnx")
    compiler.set_ep_context_data_write_func(store.write)

    model = compiler.compile_to_bytes()

    assert list(store.payloads) == ["other_alpha.bin"]
    assert not (tmp_path / "binaries").exists()
    assert np.allclose(result(opened(model, store.read)), expected())


def test_embedded_payloads_go_through_no_callback(source, store):
    compiler = compiler_of(source, Alpha, ep__context_embed_mode=1)
    compiler.set_ep_context_data_write_func(store.write)

    model = compiler.compile_to_bytes()

    assert np.allclose(result(opened(model, store.read)), expected())
    assert (store.payloads, store.asked) == ({}, [])


# --- what a callback is handed --------------------------------------------------------


@pytest.mark.entry(124)
def test_the_write_callback_reads_ranges_while_it_runs_and_nothing_afterwards(source):
    seen = []

    def write(name, data):
        seen.append(data)
        content, size = data.read(), data.size
        assert (name, size) == ("m_alpha.bin", len(content))
        assert (
            data.read(size - 2),
            data.read(2, 3),
            data.read(size),
            data.read(size, 0),
        ) == (
            content[-2:],
            content[2:5],
            b"",
            b"",
        )
        for wrong in ((size + 1,), (-1,), (0, size + 1), (5, -1), ("0",), (0, 1.0)):
            with pytest.raises(InvalidArgument):
                data.read(*wrong)

    compiler = compiler_of(source, Alpha)
    compiler.set_ep_context_data_write_func(write)
    compiler.compile_to_bytes()

    (data,) = seen
    for use in (data.read, lambda: data.size):
        with pytest.raises(
            InvalidArgument, match="after its callback had returned"
        ) as caught:
            use()
        assert isinstance(caught.value, RuntimeError)


@pytest.mark.entry(124)
def test_the_read_callback_fills_its_buffer_in_pieces_and_cannot_use_it_afterwards(
    source, store
):
    model = kept(source, store)
    content, buffers, read_only = store.payloads["m_alpha.bin"], [], []

    def read(name, buffer):
        buffers.append(buffer)
        assert (name, buffer.max_size, buffer.size, buffer.is_allocated) == (
            "m_alpha.bin",
            LIMIT,
            0,
            False,
        )
        with pytest.raises(InvalidArgument, match="not allocated"):
            buffer.write(b"x")
        buffer.allocate(len(content))
        assert (buffer.size, buffer.is_allocated) == (len(content), True)
        buffer.write(content[4:], 4)
        buffer.write(np.frombuffer(content[2:4], np.uint16), 2)
        buffer.write(memoryview(content[:2]))
        beyond = (
            (content + b"x",),
            (b"x", len(content)),
            (b"x", -1),
            ("x",),
            (memoryview(b"abcd")[::2],),
        )
        for wrong in beyond:
            with pytest.raises(InvalidArgument):
                buffer.write(*wrong)
        with pytest.raises(InvalidArgument, match="allocated before"):
            buffer.allocate(6)

    class Looking(Alpha):
        @hookimpl
        def load_context(self, nodes, reader):
            read_only.append(reader.payload(nodes[0]).view.readonly)
            return super().load_context(nodes, reader)

    found = result(opened(model, read, Looking))

    assert np.allclose(found, expected())
    assert read_only == [True]
    (buffer,) = buffers
    for use in (
        lambda: buffer.write(b"x"),
        lambda: buffer.allocate(1),
        lambda: buffer.size,
    ):
        with pytest.raises(RuntimeError, match="after its callback had returned"):
            use()


def test_an_empty_payload_is_refused_as_an_empty_file_is(source, store):
    model = kept(source, store)

    with refused(
        InvalidGraph, "node .* names the context binary 'm_alpha.bin', which is empty"
    ):
        opened(model, lambda _, buffer: buffer.allocate(0))


@pytest.mark.entry(122, 124)
def test_a_payload_above_the_maximum_is_refused_before_it_has_memory(source, store):
    model = kept(source, store)

    def read(_name, buffer):
        buffer.allocate(1 << 40)

    tracemalloc.start()
    try:
        with refused(Fail, "exceeds the configured maximum size of 1,048,576"):
            opened(model, read)
        assert tracemalloc.get_traced_memory()[1] < 1 << 27
    finally:
        tracemalloc.stop()


@pytest.mark.entry(122)
def test_a_payload_of_the_maximum_is_taken(source, store):
    model = kept(source, store)
    size = len(store.payloads["m_alpha.bin"])

    opened(model, store.read, limit=size).close()
    with refused(Fail, "configured maximum size"):
        opened(model, store.read, limit=size - 1)


# --- errors ---------------------------------------------------------------------------


@pytest.mark.entry(123, 124)
def test_what_the_read_callback_raises_is_the_cause_of_a_fail_with_its_text(
    source, store
):
    model = kept(source, store)

    with refused(
        Fail,
        (
            "read callback raised for the payload 'm_alpha.bin': HostError: the cloud "
            "is down"
        ),
    ) as caught:
        opened(model, raising)

    assert isinstance(caught.value.__cause__, HostError)


@pytest.mark.entry(123, 124)
def test_what_the_write_callback_raises_is_the_cause_of_a_fail_and_nothing_is_written(
    source,
):
    compiler = compiler_of(source, Alpha)
    compiler.set_ep_context_data_write_func(raising)

    for compile_it in (compiler.compile_to_file, compiler.compile_to_bytes):
        with refused(
            Fail,
            "write callback raised.*HostError: the cloud is down",
            folder=source.parent,
        ) as caught:
            compile_it()
        assert isinstance(caught.value.__cause__, HostError)


@pytest.mark.entry(123, 124)
def test_a_read_callback_has_to_allocate(source, store):
    model = kept(source, store)

    with refused(InvalidArgument, "must allocate its output buffer"):
        opened(model, lambda _name, _buffer: None)


def test_a_compile_that_fails_before_its_end_calls_nobody(source, store):
    def fails(_honest, *_):
        raise RuntimeError("no room")

    compiler = compiler_of(source, scripted(get_ep_context_nodes=fails))
    compiler.set_ep_context_data_write_func(store.write)

    with pytest.raises(epctx.PluginError, match="no room"):
        compiler.compile_to_bytes()

    assert store.payloads == {}


@pytest.mark.parametrize("verify", ["once", "head", "full"])
def test_the_callbacks_bytes_are_checked_against_the_manifest(source, store, verify):
    model = kept(source, store)
    good = store.payloads["m_alpha.bin"]

    for bad in (good[:-1], good + b"x", b"x" + good[1:], good[::-1]):
        store.payloads["m_alpha.bin"] = bad
        store.asked.clear()
        with refused(InvalidGraph, "'m_alpha.bin'"):
            opened(model, store.read, ep__context_verify=verify)
        assert store.asked == ["m_alpha.bin"]
