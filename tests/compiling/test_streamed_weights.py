"""Large external weights through a compile: each byte hashed once and written once,
whatever goes wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.networks.catalog import run_onnxruntime
from support.routes import refused, with_qnn
from support.small_models import finished, saved, snapshot, tensor

import epctx_core as epctx

WIDTH = 1024
NBYTES = WIDTH * WIDTH * 4
SHA256 = hashlib.sha256
COUNTERS = Path("/proc/self/io")
COMPILE = """
import sys
import epctx_core as epctx
options = epctx.SessionOptions()
options.add_provider("QNN")
print("begun", flush=True)
epctx.ModelCompiler(options, sys.argv[1]).compile_to_file(sys.argv[2])
"""


def matmuls(path: Path, places: list[int]) -> Path:
    """Write a chain of matrix products whose weights lie at these places, counted in
    weights, of one file.
    """
    count = len(places)
    model = finished(
        [
            helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"], name=f"m{i}")
            for i in range(count)
        ],
        [tensor("v0", shape=(1, WIDTH))],
        [tensor(f"v{count}", shape=(1, WIDTH))],
    )
    for i, place in enumerate(places):
        weight = model.graph.initializer.add(
            name=f"w{i}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH]
        )
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", "weights.bin"),
            ("offset", place * NBYTES),
            ("length", NBYTES),
        ):
            weight.external_data.add(key=key, value=str(value))
    return saved(model, path)


def filled(path: Path, contents: list[int]) -> list[bytes]:
    """Write weights drawn from these seeds into a file; return each one's bytes."""
    weights = [
        (
            np.random.default_rng(seed).standard_normal((WIDTH, WIDTH), np.float32) / 32
        ).tobytes()
        for seed in contents
    ]
    path.write_bytes(b"".join(weights))
    return weights


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "network"
    made.mkdir()
    return made


@pytest.fixture
def hashed(monkeypatch):
    """Bytes of each update of a digest."""
    lengths = []

    class Counting:
        def __init__(self, data=b""):
            self._sha = SHA256(data)

        def __getattr__(self, name):
            return getattr(self._sha, name)

        def update(self, data):
            lengths.append(len(data))
            self._sha.update(data)

    monkeypatch.setattr(hashlib, "sha256", Counting)
    return lengths


def large(lengths):
    """Leave out what a compile digests besides weights and models: the manifest's
    pieces, keys, names.
    """
    assert sum(length for length in lengths if length < NBYTES // 4) < NBYTES // 16
    return [length for length in lengths if length >= NBYTES // 4]


def test_each_weight_is_hashed_once_and_equal_ones_are_stored_once(folder, hashed):
    weights = filled(folder / "weights.bin", [1, 2, 1, 3, 2])
    source = matmuls(folder / "m.onnx", [0, 1, 2, 3, 4, 0])

    epctx.ModelCompiler(with_qnn(), source).compile_to_file()

    # The model's own file, too. The first and the last initializer are one range of a
    # file, but two weights.
    assert hashed.count(source.stat().st_size) == 1
    assert sum(large(hashed)) == 6 * NBYTES
    binary = (folder / "m_qnn.bin").read_bytes()
    assert [binary.count(weight) for weight in weights] == [1] * 5
    assert len(binary) < 3 * NBYTES + 16_384


def test_no_weight_has_to_wait_for_the_digest_of_another(folder, monkeypatch):
    filled(folder / "weights.bin", list(range(4)))
    source = matmuls(folder / "m.onnx", list(range(4)))
    others, begun = set(), threading.Event()

    class Watched:
        def __init__(self, data=b""):
            self._sha = SHA256(data)

        def __getattr__(self, name):
            return getattr(self._sha, name)

        def update(self, data):
            if threading.current_thread() is not threading.main_thread():
                others.add(threading.current_thread().name)
                begun.set()
            elif len(data) >= NBYTES // 4:
                assert begun.wait(20), "the compile digests weights one after the other"
            self._sha.update(data)

    monkeypatch.setattr(hashlib, "sha256", Watched)

    epctx.ModelCompiler(with_qnn(), source).compile_to_file()

    assert others


@pytest.mark.parametrize("route", ["group", "compiler", "session"])
def test_a_share_group_hashes_a_file_of_weights_once_for_all_models(
    folder, hashed, route
):
    filled(folder / "weights.bin", [1, 2, 3])
    sources = [matmuls(folder / f"{n}.onnx", [n, 1 - n, 2]) for n in range(2)]

    if route == "group":
        with epctx.ShareGroup() as group:
            for source in sources:
                group.compile(source, with_qnn())
    else:
        for source in sources:
            options = with_qnn(
                ep__share_ep_contexts=1,
                ep__stop_share_ep_contexts=int(source == sources[-1]),
            )
            if route == "compiler":
                epctx.ModelCompiler(options, source).compile_to_file()
            else:
                options.add_session_config_entry("ep.context_enable", "1")
                epctx.InferenceSession(source, options).close()

    (size,) = {source.stat().st_size for source in sources}
    assert hashed.count(size) == len(sources)
    assert sum(large(hashed)) == 3 * NBYTES


def test_the_compiled_network_computes_the_same(folder):
    filled(folder / "weights.bin", [1, 2, 1, 3])
    source = matmuls(folder / "m.onnx", [0, 1, 2, 3])
    inputs = {"v0": np.random.default_rng(0).standard_normal((1, WIDTH), np.float32)}
    (expected,) = run_onnxruntime(source, inputs)

    epctx.ModelCompiler(with_qnn(), source).compile_to_file()

    (folder / "weights.bin").unlink()
    with epctx.InferenceSession(folder / "m_ctx.onnx") as session:
        np.testing.assert_allclose(
            session.run(None, inputs)[0], expected, rtol=1e-4, atol=1e-5
        )


def test_two_compiles_give_the_same_bytes_whichever_thread_was_first(folder):
    filled(folder / "weights.bin", [1, 2, 1, 3, 2, 4, 5, 6])
    source = matmuls(folder / "m.onnx", list(range(8)))
    found = set()

    for _ in range(4):
        epctx.ModelCompiler(with_qnn(), source).compile_to_file()
        found.add(
            ((folder / "m_ctx.onnx").read_bytes(), (folder / "m_qnn.bin").read_bytes())
        )

    assert len(found) == 1


@pytest.mark.skipif(not COUNTERS.exists(), reason="bytes are counted on Linux only")
def test_no_weight_is_read_into_memory_and_each_is_written_once(folder):
    filled(folder / "weights.bin", list(range(8)))
    source = matmuls(folder / "m.onnx", list(range(8)))
    epctx.ModelCompiler(with_qnn(), source).compile_to_file(
        folder / "before_ctx.onnx"
    )  # imports are read, too
    before = counted()

    epctx.ModelCompiler(with_qnn(), source).compile_to_file()

    after = counted()
    assert after["wchar"] - before["wchar"] < 8 * NBYTES + (1 << 20)
    # Where the file system takes no writes past its cache, the kernel reads for its
    # copy.
    assert after["rchar"] - before["rchar"] < 8 * NBYTES + (1 << 20)


def counted() -> dict[str, int]:
    return {
        key: int(value)
        for key, value in (
            line.split(": ") for line in COUNTERS.read_text().splitlines()
        )
    }


def test_a_disk_that_takes_no_more_in_the_middle_of_a_weight_is_named_and_no_plugin_is_blamed(
    folder,
):
    filled(folder / "weights.bin", [1, 2, 3, 4])
    source = matmuls(folder / "m.onnx", [0, 1, 2, 3])
    before = {name: len(content) for name, content in snapshot(folder).items()}
    threads = set(threading.enumerate())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (NBYTES + NBYTES // 2, hard))
    try:
        with pytest.raises(
            epctx.EpctxError, match="failed while writing a file: File too large"
        ) as caught:
            epctx.ModelCompiler(with_qnn(), source).compile_to_file()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert type(caught.value) is epctx.errors.Fail
    assert {name: len(content) for name, content in snapshot(folder).items()} == before
    assert [
        thread
        for thread in threading.enumerate()
        if thread not in threads and thread.name.startswith("epctx-")
    ] == []


def test_weights_that_are_written_to_meanwhile_are_noticed(folder):
    filled(folder / "weights.bin", [1, 2, 3, 4])
    source = matmuls(folder / "m.onnx", [0, 1, 2, 3])

    def disturb(stage, _done, _total):
        if stage == "partition":
            os.utime(folder / "weights.bin", ns=(1, 1))

    with refused(
        epctx.InvalidGraph, "was written to while it was in use", folder=folder
    ):
        epctx.ModelCompiler(with_qnn(), source, progress=disturb).compile_to_file()


@pytest.mark.usefixtures("interruptible")
def test_control_c_ends_a_compile_at_once_and_leaves_nothing_behind(folder):
    count = 256
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(count * NBYTES)  # 1 GiB without a byte on the disk
    source = matmuls(folder / "m.onnx", list(range(count)))
    command = [sys.executable, "-c", COMPILE, str(source), str(folder / "m_ctx.onnx")]

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "begun\n"
        wait_for_staging(folder)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=30)

    assert child.returncode == -signal.SIGINT
    assert said.splitlines()[-1] == "KeyboardInterrupt"
    assert sorted(path.name for path in folder.iterdir()) == ["m.onnx", "weights.bin"]


def wait_for_staging(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while not list(folder.glob(".epctx-*/new/*.bin")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_manifest_has_the_digests_of_what_lies_in_the_file(folder):
    filled(folder / "weights.bin", [1, 2, 1])
    source = matmuls(folder / "m.onnx", [0, 1, 2])
    epctx.ModelCompiler(with_qnn(), source).compile_to_file()
    text = next(
        p.value
        for p in onnx.load(folder / "m_ctx.onnx").metadata_props
        if p.key == "epctx.manifest"
    )
    binary, place = (folder / "m_qnn.bin").read_bytes(), 0

    (payload,) = json.loads(text)["payloads"]

    for length, digest, *_ in payload["segments"]:
        assert hashlib.sha256(binary[place : place + length]).hexdigest() == digest
        place += length
    assert place == len(binary) == payload["bytes"]
