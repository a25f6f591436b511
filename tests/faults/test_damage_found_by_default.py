"""Damage is found by a load without options, wherever it lies; and a file that was
checked once is not read again.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import logging
import mmap
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.command_line import main
from support.engine_eps import Alpha, Beta
from support.share_models import options
from support.sim_eps import QNN
from support.small_models import chain
from support.validating_eps import registry_with

import epctx_core as epctx
from epctx_core import InvalidGraph
from epctx_core.errors import PluginError
from epctx_core.plugin import CompiledPartition, hookimpl

MIB = 1 << 20
OTHER = (
    r"is not the one that the model was written with: its bytes [\d,]+ to [\d,]+ have "
    r"another digest"
)


def layers(count, width, seed=0):
    """A chain of MatMuls and Relus of `width * width * 4` bytes each."""
    random = np.random.default_rng(seed)
    names = ["x", *(f"v{i}" for i in range(1, count)), "y"]
    nodes, weights = [], []
    for i in range(count):
        weight = random.standard_normal((width, width), np.float32) / np.float32(
            width**0.5
        )
        weights.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(
            helper.make_node(
                "MatMul", [names[i], f"w{i}"], [f"m{i}"], name=f"matmul{i}"
            )
        )
        nodes.append(
            helper.make_node("Relu", [f"m{i}"], [names[i + 1]], name=f"relu{i}")
        )
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width])
        for name in ("x", "y")
    ]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )


def left_weight():
    """A model whose weight of 2 MiB the EP leaves to the CPU, as it is double."""
    width = MIB // 4
    nodes = [
        helper.make_node("Relu", ["x"], ["m"]),
        helper.make_node("Cast", ["m"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("Mul", ["wide", "left"], ["y"]),
    ]
    weight = numpy_helper.from_array(
        np.random.default_rng(0).standard_normal(width), "left"
    )
    ends = (("x", TensorProto.FLOAT), ("y", TensorProto.DOUBLE))
    values = [
        helper.make_tensor_value_info(name, kind, [1, width]) for name, kind in ends
    ]
    graph = helper.make_graph(nodes, "left", values[:1], values[1:], [weight])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )


def compiled(folder, proto, *, embedded=False, initializers=None):
    folder.mkdir(exist_ok=True)
    onnx.save(proto, folder / "m.onnx")
    compiler = epctx.ModelCompiler(
        options(QNN),
        folder / "m.onnx",
        embed_compiled_data_into_model=embedded,
        external_initializers_file_path=initializers,
    )
    compiler.compile_to_file(folder / "m_ctx.onnx")
    return folder / "m_ctx.onnx"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model with a binary of about 2.5 MiB, and what it answers."""
    folder = tmp_path_factory.mktemp("small") / "m"
    return with_answer(compiled(folder, layers(10, 256)))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The same with 8 MiB."""
    return with_answer(compiled(tmp_path_factory.mktemp("large") / "m", layers(8, 512)))


def with_answer(model):
    return model, answer(model)


def answer(model, session_options=None, **more):
    with epctx.InferenceSession(model, session_options, **more) as session:
        feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
        return session.run(None, feeds)[0]


NUMBERS = itertools.count()


@pytest.fixture
def receipts(tmp_path, monkeypatch):
    """A folder for receipts of the test's own, not made yet.

    No two tests of a process have one of the same path, of which a process warns once.
    """
    folder = tmp_path / f"receipts {next(NUMBERS)}"
    monkeypatch.setenv("EPCTX_RECEIPTS", str(folder))
    return folder


def put(pair, folder):
    """Copy a context model and its binary to a folder; return both paths."""
    model = pair[0]
    binary = model.with_name("m_qnn.bin")
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(model, folder)), Path(shutil.copy(binary, folder))


def overwrite(path, place, data):
    """Change bytes in place, as a broken copy or a bad block does: the file stays the
    same one.
    """
    with path.open("r+b") as file:
        file.seek(place)
        before = file.read(len(data))
        file.seek(place)
        file.write(data)
    return before


def resident(path):
    """Bytes of a file that lie in the system's page cache."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped,
    ):
        first = ctypes.c_char.from_buffer(mapped)
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        failed = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(ctypes.addressof(first)), len(mapped), pages
        )
        del first
    assert not failed
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def evict(path):
    """Have the system forget a file's pages, so that `resident` shows who reads it."""
    gc.collect()  # what is mapped stays
    with path.open("rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident(path):
        pytest.skip("this file system keeps its files in memory")


def facts(path):
    status = path.stat()
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


class Decay:
    """Changes a byte in the middle of a file, and the system notes no change: only who
    reads it can tell.

    The system notes the first write into a mapped page, and none that follow until the
    page goes to disk.
    """

    def __init__(self, path):
        self.path = path
        with path.open("r+b") as file:
            self.mapped = mmap.mmap(file.fileno(), 0)
        self.place = len(self.mapped) // 2
        self.mapped[self.place] = self.mapped[self.place]
        aged(path)

    def happen(self):
        before = facts(self.path)
        self.mapped[self.place] ^= 0x55
        if facts(self.path) != before:
            pytest.skip("the system wrote the page to disk meanwhile")


@pytest.fixture(autouse=True)
def settled(settle_after):
    """Have files count as settled soon: nearly every test waits for that."""
    settle_after(0.3)


def aged(*paths, seconds=0.3):
    """Give files another mtime, and wait until they settled and get receipts."""
    for path in paths:
        os.utime(path, (1_700_000_000, 1_700_000_000))
    time.sleep(seconds + 0.1)


# --- what is found --------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.15, 0.3, 0.45, 0.6, 0.75, 0.9])
def test_overwritten_bytes_anywhere_in_a_binary_are_refused_and_the_restored_file_loads(
    small, tmp_path, share
):
    model, binary = put(small, tmp_path)
    size = binary.stat().st_size
    assert 2 * MIB < size < 3 * MIB
    assert np.array_equal(answer(model), small[1])

    before = overwrite(binary, int(size * share), b"\x55" * 64)

    with pytest.raises(InvalidGraph, match=rf"'m_qnn\.bin' {OTHER}") as caught:
        answer(model)
    assert caught.value.node.startswith("QNNExecutionProvider_")
    assert (caught.value.ep, Path(caught.value.path)) == (QNN, binary)
    overwrite(binary, int(size * share), before)
    assert np.array_equal(answer(model), small[1])


def test_each_of_60_flipped_bits_in_8_mib_is_refused(large, tmp_path):
    model, binary = put(large, tmp_path)
    size = binary.stat().st_size
    assert size > 8 * MIB

    for place in np.random.default_rng(0).integers(0, size, 60):
        (byte,) = overwrite(binary, int(place), b"\0")
        overwrite(binary, int(place), bytes([byte ^ 0x10]))
        with pytest.raises(InvalidGraph, match=r"written with"):
            epctx.InferenceSession(model)
        overwrite(binary, int(place), bytes([byte]))

    assert np.array_equal(answer(model), large[1])


def test_a_byte_changed_right_after_the_compile_is_refused_although_the_compile_left_a_receipt(
    tmp_path,
):
    model = compiled(tmp_path / "m", layers(1, 64))
    binary = model.with_name("m_qnn.bin")
    (byte,) = overwrite(binary, 9000, b"\0")
    overwrite(binary, 9000, bytes([byte ^ 1]))

    with pytest.raises(InvalidGraph, match=OTHER):
        epctx.InferenceSession(model)


def test_a_change_that_restores_size_and_time_is_refused(small, tmp_path, receipts):
    model, binary = put(small, tmp_path / "m")
    aged(binary)
    answer(model)
    assert len(list(receipts.iterdir())) == 1

    overwrite(binary, MIB, b"\x55" * 8)
    aged(binary)

    with pytest.raises(InvalidGraph, match=OTHER):
        epctx.InferenceSession(model)


def test_the_command_line_refuses_damage_and_says_what_to_do(small, tmp_path, capsys):
    model, binary = put(small, tmp_path)
    overwrite(binary, MIB, b"\x55" * 64)

    assert main(["run", str(model)]) == 2

    said = capsys.readouterr().err
    assert "m_qnn.bin" in said
    assert "have another digest" in said
    assert "fetch both again, or compile again" in said


@pytest.mark.parametrize("given", [Path, Path.read_bytes], ids=["path", "bytes"])
@pytest.mark.parametrize("width", [64, 512], ids=["in place", "beside the load"])
def test_damage_of_an_embedded_payload_is_refused(tmp_path, width, given):
    model = compiled(tmp_path / "m", layers(2, width), embedded=True)
    expected = answer(given(model))
    proto = onnx.load(model)
    (payload,) = [
        a
        for node in proto.graph.node
        for a in node.attribute
        if a.name == "ep_cache_context"
    ]
    middle = len(payload.s) * 3 // 4
    place = model.read_bytes().index(payload.s) + middle
    assert np.array_equal(answer(given(model)), expected)

    before = overwrite(model, place, b"\x55" * 4)

    with pytest.raises(InvalidGraph, match=OTHER):
        answer(given(model))
    overwrite(model, place, before)
    assert np.array_equal(answer(given(model)), expected)


def test_damage_of_an_embedded_payload_is_refused_again_where_others_of_the_model_are_right(
    tmp_path,
):
    model, registry = of_two_eps(tmp_path)

    for _ in range(2):
        with pytest.raises(InvalidGraph, match=OTHER):
            epctx.InferenceSession(model, registry=registry)


def of_two_eps(folder):
    """Compile a model with two payloads in it, damage the second; return it and the
    registry of its EPs.
    """
    onnx.save(chain(["Relu", "Neg"]), folder / "m.onnx")
    registry = registry_with(Alpha, Beta)
    both = options(Alpha.name)
    both.add_provider(Beta.name)
    compiler = epctx.ModelCompiler(
        both,
        folder / "m.onnx",
        embed_compiled_data_into_model=True,
        registry=registry,
    )
    compiler.compile_to_file(folder / "m_ctx.onnx")
    proto = onnx.load(folder / "m_ctx.onnx")
    first, second = (
        a
        for node in proto.graph.node
        for a in node.attribute
        if a.name == "ep_cache_context"
    )
    assert first.s != second.s
    second.s = second.s[:-1] + bytes([second.s[-1] ^ 1])
    onnx.save(proto, folder / "m_ctx.onnx")

    return folder / "m_ctx.onnx", registry


class Blind(Beta):
    """Does not look at its payload."""

    @hookimpl
    def load_context(self, nodes, reader):
        return [
            CompiledPartition(lambda inputs, outputs=None: [np.array(inputs[0])])
            for _ in nodes
        ]


def test_a_load_that_checks_some_embedded_payloads_leaves_no_receipt_of_all(tmp_path):
    model, registry = of_two_eps(tmp_path)
    lazy = epctx.SessionOptions()
    lazy.add_session_config_entry("ep.context_verify", "lazy")

    answer(model, lazy, registry=registry_with(Alpha, Blind))

    with pytest.raises(InvalidGraph, match=OTHER):
        answer(model, registry=registry)


def test_a_cached_model_that_was_damaged_is_compiled_anew(tmp_path):
    onnx.save(layers(8, 256), tmp_path / "m.onnx")

    def cached():
        with epctx.load_or_compile(
            tmp_path / "m.onnx", options(QNN), tmp_path / "cache"
        ) as session:
            return session.run(None, {"x": np.ones((1, 256), np.float32)})[0]

    expected = cached()
    (binary,) = (tmp_path / "cache").rglob("*.bin")
    sound = binary.read_bytes()
    overwrite(binary, MIB, b"\x55" * 64)

    assert np.array_equal(cached(), expected)
    (binary,) = (tmp_path / "cache").rglob("*.bin")
    assert binary.read_bytes() == sound


def test_damage_of_a_shared_binary_is_refused_for_each_model_of_the_group(tmp_path):
    with epctx.ShareGroup(output_dir=tmp_path) as group:
        for name in "ab":
            onnx.save(layers(8 if name == "a" else 7, 256), tmp_path / f"{name}.onnx")
            group.compile(tmp_path / f"{name}.onnx", options(QNN))
    (binary,) = tmp_path.glob("*.bin")
    models = [tmp_path / "a_ctx.onnx", tmp_path / "b_ctx.onnx"]
    for shared in (None, options(QNN, ep__share_ep_contexts=1)):
        before = overwrite(binary, MIB, b"\x55" * 64)
        for model in models:
            with pytest.raises(InvalidGraph, match=OTHER):
                epctx.InferenceSession(model, shared)
        overwrite(binary, MIB, before)
        for model in models:
            epctx.InferenceSession(model, shared).close()


def test_the_host_checks_what_an_isolated_ep_gets(small, tmp_path):
    model, binary = put(small, tmp_path)
    isolated = options(QNN, ep__isolate="all")
    before = overwrite(binary, MIB, b"\x55" * 64)
    with pytest.raises(InvalidGraph, match=OTHER):
        answer(model, isolated)
    overwrite(binary, MIB, before)

    assert np.array_equal(answer(model, isolated), small[1])


def test_many_threads_that_load_at_once_are_all_told(small, tmp_path, receipts):
    model, binary = put(small, tmp_path / "m")
    aged(binary)
    with ThreadPoolExecutor(8) as threads:
        assert all(
            np.array_equal(found, small[1])
            for found in threads.map(answer, [model] * 8)
        )
    overwrite(binary, MIB, b"\x55" * 64)

    def refused(path):
        with pytest.raises(InvalidGraph, match=OTHER):
            answer(path)
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(refused, [model] * 8))


# --- an EP that stumbles over what is damaged -----------------------------------------


class Reader(Alpha):
    """An EP with a payload of 20 MiB, mostly of zeroes, that reads as much of it as
    `reads` says.
    """

    reads = 0

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = super().get_ep_context_nodes(writer)
        nodes[0].payload.write(bytes(20 * MIB))
        return nodes

    @hookimpl
    def load_context(self, nodes, reader):
        payload = reader.payload(nodes[0])
        if any(bytes(payload.view[-self.reads :])[: self.reads]):
            raise RuntimeError("what a strange byte does to an EP")
        return [
            CompiledPartition(lambda inputs, outputs=None: [np.array(inputs[0])])
            for _ in nodes
        ]


class Greedy(Reader):
    """Reads most of it."""

    reads = 2 * MIB


class OfFiles(Reader):
    """Wants its payload as a file, as some SDKs do."""

    @hookimpl
    def load_context(self, nodes, reader):
        assert Path(reader.payload(nodes[0]).as_file()).stat().st_size > 20 * MIB
        return super().load_context(nodes, reader)


class Careless(Reader):
    """Writes to its payload while it loads, after the check has read it, and restores
    the times.
    """

    @hookimpl
    def load_context(self, nodes, reader):
        path = Path(reader.payload(nodes[0]).mapped.path)
        # A check that has not read it yet finds it, which is right, too.
        time.sleep(0.3)
        overwrite(path, path.stat().st_size - MIB, b"\x55")
        aged(path)
        return super().load_context(nodes, reader)


def of_ep(folder, ep):
    """Compile a model with an EP of the test's own; return it and its binary."""
    folder.mkdir(exist_ok=True)
    onnx.save(chain(["Relu", "Add"]), folder / "m.onnx")
    session_options = epctx.SessionOptions()
    session_options.add_provider(ep.name)
    compiler = epctx.ModelCompiler(
        session_options, folder / "m.onnx", registry=registry_with(ep)
    )
    compiler.compile_to_file(folder / "m_ctx.onnx")
    return folder / "m_ctx.onnx", folder / "m_alpha.bin"


def test_damage_goes_before_the_error_that_the_ep_made_of_it(tmp_path):
    model, binary = of_ep(tmp_path, Greedy)
    overwrite(binary, binary.stat().st_size - MIB * 3 // 2, b"\x55")

    with pytest.raises(InvalidGraph, match=OTHER) as caught:
        answer(model, registry=registry_with(Greedy))

    assert isinstance(caught.value.__cause__, PluginError)
    assert "what a strange byte does to an EP" in str(caught.value.__cause__)


# --- receipts -------------------------------------------------------------------------


def test_neither_the_first_load_after_a_compile_nor_the_second_of_another_file_reads_the_weights(
    tmp_path,
):
    model = compiled(tmp_path / "m", layers(16, 1024))
    binary = model.with_name("m_qnn.bin")
    size = binary.stat().st_size
    assert size > 64 * MIB
    read = []
    for _ in range(3):
        evict(binary)
        # Prepacking would copy the weights.
        epctx.InferenceSession(model, options(QNN, ep__prefer_latency=0)).close()
        read.append(resident(binary))
        if len(read) == 1:
            aged(binary)

    assert read[0] < size // 2, "the compile left a receipt"
    # The system may drop a page of a file that was read.
    assert read[1] > 0.99 * size, "the file has other times than the compile noted"
    assert read[2] < size // 2, "the load left a receipt"


def test_a_file_that_was_changed_while_it_was_checked_gets_no_receipt(
    tmp_path, receipts
):
    model, binary = of_ep(tmp_path / "m", Careless)
    shutil.rmtree(receipts)
    aged(binary)
    with suppress(InvalidGraph):
        answer(model, registry=registry_with(Careless))

    with pytest.raises(InvalidGraph, match=OTHER):
        answer(model, registry=registry_with(Reader))


@pytest.mark.parametrize(
    "form", ["a file", "a file of initializers", "a file as a link for the EP"]
)
def test_what_was_checked_once_is_not_read_again(large, tmp_path, form):
    more = {}
    if form == "a file":
        model, binary = put(large, tmp_path)
    elif form == "a file of initializers":
        model = compiled(tmp_path / "m", left_weight(), initializers="m.data")
        binary = model.with_name("m.data")
    else:
        model, binary = of_ep(tmp_path, OfFiles)
        more["registry"] = registry_with(OfFiles)
    decay = Decay(binary)
    answer(model, **more)

    decay.happen()

    answer(model, **more)
    answer(model, **more)
    for mode in ("lazy", "full"):
        strict = epctx.SessionOptions()
        strict.add_session_config_entry("ep.context_verify", mode)
        with pytest.raises(InvalidGraph, match=OTHER):
            answer(model, strict, **more)
    binary.touch()
    with pytest.raises(InvalidGraph, match=OTHER):
        answer(model, **more)


def test_a_receipt_holds_for_the_digest_that_was_expected_and_no_other(small, tmp_path):
    model, binary = put(small, tmp_path)
    aged(binary)
    answer(model)
    proto = onnx.load(model)
    entry = next(
        entry for entry in proto.metadata_props if entry.key == "epctx.manifest"
    )
    manifest = json.loads(entry.value)
    weight = next(s for s in manifest["payloads"][0]["segments"] if s[2:] == [1])
    weight[1] = "0" * 64
    entry.value = json.dumps(manifest)
    other = tmp_path / "other_ctx.onnx"
    onnx.save(proto, other)

    with pytest.raises(InvalidGraph, match=OTHER):
        epctx.InferenceSession(other)


def test_a_file_that_was_just_written_gets_no_receipt_as_its_times_would_not_show_another_write(
    small, tmp_path, receipts, settle_after
):
    seconds = settle_after(None)
    model, binary = put(small, tmp_path / "m")

    answer(model)
    assert not receipts.exists()
    os.utime(binary, (1_700_000_000, 1_700_000_000))
    answer(model)
    assert not receipts.exists(), "its ctime is as recent as before"

    aged(binary, seconds=seconds)
    answer(model)
    assert [path.stat().st_size for path in receipts.iterdir()] == [0]
    assert receipts.stat().st_mode & 0o777 == 0o700


def test_loads_whose_ep_gets_a_file_leave_no_receipts_of_states_that_are_gone(
    tmp_path, receipts
):
    """A link changes the state of a file: each load would leave two."""
    model, _ = of_ep(tmp_path / "m", OfFiles)

    for _ in range(3):
        answer(model, registry=registry_with(OfFiles))

    assert len(lies_in(receipts)) == 1


def test_a_file_is_not_read_again_although_its_ep_got_a_link_to_it_after_the_check(
    tmp_path, receipts
):
    model, binary = of_ep(tmp_path / "m", OfFiles)
    shutil.rmtree(receipts)
    decay = Decay(binary)

    class Slow(OfFiles):
        @hookimpl
        def load_context(self, nodes, reader):
            time.sleep(0.5)  # the check is done by then
            return super().load_context(nodes, reader)

    answer(model, registry=registry_with(Slow))
    decay.happen()

    answer(model, registry=registry_with(Slow))


@pytest.mark.parametrize("mode", ["head", "lazy", "full"])
def test_only_the_mode_that_uses_receipts_leaves_them(small, tmp_path, receipts, mode):
    model, binary = put(small, tmp_path / "m")
    aged(binary)
    checked = epctx.SessionOptions()
    checked.add_session_config_entry("ep.context_verify", mode)

    answer(model, checked)

    assert lies_in(receipts) == []


def lies_in(receipts):
    return sorted(path.name for path in receipts.iterdir()) if receipts.is_dir() else []


@pytest.mark.parametrize(
    "hostile", ["a file", "a link", "open to all", "open to a group", "another user's"]
)
def test_a_folder_that_cannot_be_trusted_is_not_used_and_receipts_are_kept_in_memory(
    large, tmp_path, receipts, hostile, caplog
):
    model, binary = put(large, tmp_path / "m")
    other_folder = tmp_path / "elsewhere"
    receipts.mkdir(mode=0o700)
    if hostile == "a file":
        receipts.rmdir()
        receipts.touch()
    elif hostile == "a link":
        receipts.rename(other_folder)
        receipts.symlink_to(other_folder)
    elif hostile == "another user's":
        if os.geteuid():
            pytest.skip("only root gives folders away")
        os.chown(receipts, 12345, -1)
    else:
        receipts.chmod(0o777 if hostile == "open to all" else 0o770)
    decay = Decay(binary)

    with caplog.at_level(logging.WARNING, "epctx"):
        answer(model)
        decay.happen()
        answer(model)

    assert lies_in(receipts) == []
    assert len(caplog.messages) == 1
    assert str(receipts) in caplog.messages[0]
    binary.touch()
    with pytest.raises(InvalidGraph, match=OTHER):
        answer(model)


def test_the_number_of_receipts_is_bounded_and_other_files_stay(tmp_path, receipts):
    tiny = with_answer(compiled(tmp_path / "tiny", layers(1, 64)))
    shutil.rmtree(receipts, ignore_errors=True)
    receipts.mkdir(mode=0o700)
    for number in range(4096):
        (receipts / f"{number:064x}").touch()
    (receipts / "notes.txt").touch()

    # The folder is listed for one receipt in 16, of those that begin with 0.
    for number in range(1000):
        model, binary = put(tiny, tmp_path / f"m{number}")
        aged(binary)
        answer(model)
        if len(lies_in(receipts)) < 4096:
            break

    left = lies_in(receipts)
    assert "notes.txt" in left
    assert 2000 < len(left) < 4000
    newest = [name for name in left if not name.startswith("0" * 50)]
    assert len(newest) == number + 2, "the newest stay"
