"""A cache that machines share: two caches with folders of their own are two
machines, and the storage between them is a folder or memory.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
import threading
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path

import fsspec
import numpy as np
import pytest
from epctx_cache import cache_statistics, shared
from epctx_cache.store import parse_record
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.sim_eps import OPENVINO, QNN, VITISAI, with_eps

import epctx_core as epctx
from epctx_core import InferenceSession
from epctx_core.errors import Fail, InvalidArgument, ModelLoadCanceled

pytestmark = pytest.mark.internal

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def forgiven(monkeypatch):
    """Storages that failed in other tests are asked again."""
    monkeypatch.setattr(shared, "_failed", {})


@pytest.fixture(params=["file", "memory"])
def address(request, tmp_path):
    """An address where nothing is yet."""
    if request.param == "file":
        return f"file://{tmp_path}/shared"
    MemoryFileSystem.store.clear()
    return "memory://shared"


@pytest.fixture
def storage(tmp_path):
    """A folder that machines share."""
    return tmp_path / "shared"


class Broken(MemoryFileSystem):
    """Storage that fails, or hangs, at whatever is asked of it."""

    protocol = "broken"
    asked = 0
    hangs = threading.Event()

    def _open(self, *_, **__):
        Broken.asked += 1
        if Broken.hangs.is_set():
            time.sleep(600)
        raise ConnectionError("no route to host")


class Dripping(MemoryFileSystem):
    """Storage that gives a byte of a blob at a time."""

    protocol = "dripping"

    def _open(self, path, mode="rb", **options):
        file = super()._open(path, mode, **options)
        if "/blobs/" in path:
            read = file.read
            file.read = lambda size=-1: (time.sleep(0.01), read(min(size, 1)))[1]
        return file


@contextmanager
def files_of_at_most(size):
    """Let this process write no file beyond a size, as on a full disk."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def broken():
    fsspec.register_implementation("broken", Broken, clobber=True)
    Broken.asked = 0
    Broken.hangs.clear()
    Broken.clear_instance_cache()
    return Broken


def files_of(folder):
    """Return the bytes of an entry's files."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in {"used", "hits", "pushed"}
    }


def newer():
    """Return options for another target than the others."""
    options = epctx.SessionOptions()
    options.add_provider(QNN, {"htp_arch": "75"})
    return options


class Machines:
    """Machines with caches of their own that know one model."""

    def __init__(self, folder, model, caplog):
        self.folder, self.model, self.caplog = folder, model, caplog

    def path(self, machine, address, options=None, **arguments):
        return epctx.compile_cached(
            arguments.pop("model", self.model),
            options or with_eps(QNN),
            self.folder / machine,
            shared_cache=address,
            **arguments,
        )

    def entry(self, machine, address, **arguments):
        return files_of(self.path(machine, address, **arguments).parent)

    def said(self, beginning):
        return [
            record.getMessage()
            for record in self.caplog.records
            if record.getMessage().startswith(beginning)
        ]

    @property
    def compiles(self):
        return len(self.said("compiled "))

    @property
    def warnings(self):
        return [r.getMessage() for r in self.caplog.records if r.levelname == "WARNING"]


@pytest.fixture
def machines(tmp_path, model, caplog):
    caplog.set_level("INFO", logger="epctx.cache")
    return Machines(tmp_path / "machines", model, caplog)


def test_what_one_machine_compiled_no_other_compiles(machines, address):
    first = machines.entry("a", address)
    second = machines.entry("b", address)

    assert machines.compiles == 1
    assert first == second
    assert not machines.warnings
    with InferenceSession(machines.path("b", address)) as session:
        assert session.run(None, {"x": X})[0].shape == X.shape


def test_the_name_of_a_model_steers_no_log(machines, address, model, tmp_path):
    named = tmp_path / "m\u202e\x1b[2J.onnx"
    named.write_bytes(model.read_bytes())

    for machine in ("a", "b", "b"):
        with epctx.load_or_compile(
            named, with_eps(QNN), machines.folder / machine, shared_cache=address
        ):
            pass

    told = machines.said("")
    assert any(line.startswith("pushed m\\u202e\\x1b[2J.onnx") for line in told)
    assert [line for line in told if not line.isprintable()] == []


def test_an_entry_that_was_pulled_is_a_hit_and_asks_nobody_again(machines, address):
    machines.path("a", address)
    machines.path("b", address)
    machines.path("b", address)

    assert len(machines.said("pulled ")) == 1
    statistics = cache_statistics(machines.folder / "b")
    assert (statistics.hits, statistics.misses) == (2, 0)


def test_weights_in_files_travel_too(machines, address, with_weights):
    model = with_weights()

    first = machines.entry("a", address, model=model)
    shutil.rmtree(machines.folder / "a")
    second = machines.entry("b", address, model=model)

    assert machines.compiles == 1
    assert first == second
    assert sum(map(len, second.values())) > 64 << 10


def test_a_session_comes_from_the_shared_cache_where_no_compile_is_allowed(
    machines, address
):
    machines.path("a", address)
    options = with_eps(QNN)
    options.add_session_config_entry("session.disable_model_compile", "1")

    with epctx.load_or_compile(
        machines.model, options, machines.folder / "b", shared_cache=address
    ) as session:
        session.run(None, {"x": X})

    assert machines.compiles == 1


def test_the_environment_names_the_shared_cache(machines, storage, monkeypatch):
    monkeypatch.setenv("EPCTX_CACHE_SHARED", str(storage))
    machines.path("a", None)
    monkeypatch.setenv("EPCTX_CACHE_PUSH", "0")
    machines.path("b", None)
    machines.path("c", "")

    assert len(machines.said("pulled ")) == 1
    assert machines.compiles == 2


def test_a_machine_that_may_not_push_leaves_nothing(machines, storage):
    machines.path("a", str(storage), shared_push=False)

    assert not storage.exists()
    assert not machines.warnings


def test_progress_counts_the_bytes_of_a_transfer(
    machines, storage, with_weights, monkeypatch
):
    monkeypatch.setattr(shared, "_PAUSE", 0.0001)
    model = with_weights()
    seen = []
    for machine in ("a", "b"):
        machines.path(
            machine, str(storage), model=model, progress=lambda *args: seen.append(args)
        )

    for stage in ("push", "pull"):
        steps = [(done, total) for found, done, total in seen if found == stage]
        assert steps
        assert steps == sorted(steps)
        assert all(0 <= done <= total for done, total in steps)


def test_keys_with_secrets_are_not_shared(machines, storage):
    """No other machine has such a key: each cache hides them by bytes of its own."""
    options = with_eps(QNN)
    options.add_session_config_entry("vendor.token", "a secret")

    machines.path("a", str(storage), options=options)

    assert not storage.exists()
    assert "has secret options: its entry is not shared" in machines.caplog.text


def test_an_ep_with_a_secret_option_that_nobody_set_is_shared(machines, storage):
    for machine in ("a", "b"):
        machines.path(machine, str(storage), options=with_eps(VITISAI))

    assert machines.compiles == 1


@pytest.mark.parametrize("wrong", [5, b"file:///x"])
def test_an_address_is_a_text(machines, wrong):
    with pytest.raises(InvalidArgument, match="shared_cache is"):
        machines.path("a", wrong)


# -- storages that fail
# --------------------------------------------------------------------------------------


def test_a_storage_that_fails_costs_one_warning_and_is_left_alone(machines, broken):
    address = "broken://x"
    for machine in ("a", "b", "c"):
        machines.path(machine, address)

    assert machines.compiles == 3
    (warning,) = machines.warnings
    assert "no route to host" in warning
    assert "left alone for 60 seconds" in warning
    assert broken.asked == 1


def test_a_storage_that_failed_is_asked_again_later(machines, broken, monkeypatch):
    monkeypatch.setattr(shared, "LEFT_ALONE", 0)
    machines.path("a", "broken://x")

    # For the entry, and for its first blob.
    assert broken.asked == 2


def test_an_entry_that_the_storage_lost_is_put_there_again(machines, storage):
    """By a machine that may push and uses it, once a day."""
    entry = machines.path("a", str(storage)).parent
    shutil.rmtree(storage)

    machines.path("a", str(storage))
    assert not storage.exists()

    yesterday = time.time() - 100_000
    os.utime(entry / "pushed", (yesterday, yesterday))
    machines.path("a", str(storage))

    machines.path("b", str(storage))
    assert machines.compiles == 1


def test_a_local_address_has_a_whole_path(machines):
    """`file://mnt` would be a folder in that of each process."""
    with pytest.raises(InvalidArgument, match="no whole path") as raised:
        machines.path("a", "file://mnt/team")

    assert "file:///mnt" in raised.value.hint


def test_a_folder_of_a_user_that_there_is_not_is_refused(machines):
    with pytest.raises(InvalidArgument, match="a user that is not known"):
        machines.path("a", "~nobody-of-this-name/team")


@pytest.mark.parametrize("typo", ["s3//bucket/team", "team", "s3:/bucket/team", "./t"])
def test_a_mistyped_address_does_not_become_a_folder(
    machines, typo, tmp_path, monkeypatch
):
    """Each process would have a shared cache in its own folder."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidArgument, match="nor a whole path") as raised:
        machines.path("a", typo)

    assert "s3://bucket/folder" in raised.value.hint
    assert not list(tmp_path.glob("**/entries/*/*.json"))


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are read in /proc")
def test_a_push_that_is_canceled_keeps_no_entry_locked(machines, broken):
    machines.path("a", None)
    broken.hangs.set()
    options = with_eps(QNN)
    threading.Timer(0.5, options.set_load_cancellation_flag, [True]).start()

    with pytest.raises(ModelLoadCanceled):
        machines.path("a", "broken://x", options=options)

    opened = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir()
              if path.is_symlink()]  # fmt: skip
    assert not [path for path in opened if path.startswith(str(machines.folder))]


def test_a_storage_that_hangs_is_given_up(machines, broken, monkeypatch):
    monkeypatch.setattr(shared, "STALLED_AFTER", 0.3)
    broken.hangs.set()

    machines.path("a", "broken://x")

    assert machines.compiles == 1
    assert "it transferred 0 bytes in 0.3 seconds" in machines.warnings[0]


def test_a_storage_that_drips_is_given_up(machines, monkeypatch):
    """Each byte is progress, and a load would wait for days."""
    MemoryFileSystem.store.clear()
    fsspec.register_implementation("dripping", Dripping, clobber=True)
    machines.path("a", "dripping://shared")
    monkeypatch.setattr(shared, "STALLED_AFTER", 0.5)

    machines.path("b", "dripping://shared")

    assert machines.compiles == 2
    (warning,) = machines.warnings
    assert re.search(r"it transferred \d+ bytes in 0.5 seconds", warning)


def test_the_user_of_an_address_is_in_no_log(machines, broken):
    machines.path("a", "broken://me:a-password@host/x")

    assert "broken://***@host/x" in machines.warnings[0]
    assert "a-password" not in machines.caplog.text


def test_nothing_is_left_of_a_push_that_fails(machines, storage, monkeypatch):
    opened = []
    open_file = LocalFileSystem._open

    def open_full(self, path, mode="rb", **options):
        """Open a file of a disk that takes no more than the beginning of it."""
        file = open_file(self, path, mode, **options)
        if "w" in mode:
            opened.append(path)
            write = file.write

            def fail(data):
                write(data[:10])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            file.write = fail
        return file

    monkeypatch.setattr(LocalFileSystem, "_open", open_full)

    machines.path("a", str(storage))

    assert opened[0].startswith(str(storage))
    assert "No space left" in machines.warnings[0]
    assert not [path for path in storage.rglob("*") if path.is_file()]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX")
def test_no_storage_is_blamed_for_a_folder_of_this_machine(
    machines, storage, with_weights
):
    model = with_weights()
    machines.path("a", str(storage), model=model)
    machines.path("b", None)

    with files_of_at_most(10_000), pytest.raises(Fail, match=r"the cache in .* cannot"):
        machines.path("b", str(storage), model=model)

    assert not machines.warnings
    machines.path("b", str(storage), model=model)
    assert len(machines.said("pulled ")) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX")
def test_a_link_in_a_shared_folder_is_replaced_and_not_followed(
    machines, storage, tmp_path
):
    machines.path("a", str(storage))
    mine = tmp_path / "mine.txt"
    mine.write_text("precious")
    for path in (blobs_of(storage)[0], entry_of(storage)):
        path.unlink()
        path.symlink_to(mine)

    machines.path("b", str(storage))
    machines.path("c", str(storage))

    assert mine.read_text() == "precious"
    assert machines.compiles == 2
    assert not [path for path in storage.rglob("*") if path.is_symlink()]


def test_a_wait_for_a_storage_can_be_canceled(machines, broken):
    broken.hangs.set()
    options = with_eps(QNN)
    threading.Timer(0.5, options.set_load_cancellation_flag, [True]).start()

    with pytest.raises(ModelLoadCanceled):
        machines.path("a", "broken://x", options=options)


def test_a_storage_that_can_only_be_read_has_hits(machines, storage, tmp_path):
    machines.path("a", str(storage))
    archive = tmp_path / "shared.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(storage.rglob("*")):
            packed.write(path, path.relative_to(storage))
    address = f"zip://::file://{archive}"

    machines.path("b", address)
    assert machines.compiles == 1
    assert not machines.warnings

    machines.path("b", address, options=newer())
    assert machines.compiles == 2
    assert "cannot be written in the shared cache" in machines.warnings[0]


@pytest.mark.parametrize(
    ("address", "said"),
    [("s3://bucket/x", "Install s3fs"), ("nowhere://x", "nowhere")],
)
def test_an_address_that_cannot_be_used_is_said_in_a_warning(machines, address, said):
    machines.path("a", address)

    assert machines.compiles == 1
    assert said in machines.warnings[0]


# -- storages that lie
# --------------------------------------------------------------------------------------


def blobs_of(storage):
    """Return the paths of all blobs, the largest first."""
    found = [path for path in storage.glob("v1/blobs/*/*") if path.is_file()]
    return sorted(found, key=lambda path: (-path.stat().st_size, path.name))


def entry_of(storage):
    """Return the path of the one entry."""
    (path,) = storage.glob("v1/entries/*/*")
    return path


def swap_blobs(storage):
    first, second, *_ = blobs_of(storage)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def truncate_blob(storage):
    os.truncate(blobs_of(storage)[0], 100)


def extend_blob(storage):
    with blobs_of(storage)[0].open("ab") as file:
        file.write(b"more")


def flip_blob(storage):
    path = blobs_of(storage)[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def remove_blob(storage):
    blobs_of(storage)[0].unlink()


def reorder_digests(storage):
    path = entry_of(storage)
    entry = json.loads(path.read_bytes())
    entry["blobs"].reverse()
    path.write_text(json.dumps(entry))


def leave_out_digest(storage):
    path = entry_of(storage)
    entry = json.loads(path.read_bytes())
    entry["blobs"].pop()
    path.write_text(json.dumps(entry))


def damage_entry(storage):
    entry_of(storage).write_bytes(b"{")


def nest_entry(storage):
    entry_of(storage).write_bytes(b"[" * 100_000)


HOSTILE = [
    swap_blobs, truncate_blob, extend_blob, flip_blob, remove_blob,
    reorder_digests, leave_out_digest, damage_entry, nest_entry,
]  # fmt: skip


@pytest.mark.parametrize("harm", HOSTILE, ids=lambda harm: harm.__name__)
def test_what_is_not_what_was_put_there_is_refused_compiled_and_put_right(
    machines, storage, harm
):
    first = machines.entry("a", str(storage))
    harm(storage)

    second = machines.entry("b", str(storage))
    third = machines.entry("c", str(storage))

    assert machines.compiles == 2
    (warning,) = machines.warnings
    assert "is refused" in warning
    assert len(machines.said("pulled ")) == 1
    contents = [
        {path: data for path, data in entry.items() if path.name != "entry.json"}
        for entry in (first, second, third)
    ]
    assert contents[0] == contents[1] == contents[2]


def test_an_entry_of_another_key_is_refused(machines, storage):
    """Replayed: all its digests are right, and it is the answer to another question."""
    machines.path("a", str(storage))
    wrong = entry_of(storage).read_bytes()
    shutil.rmtree(storage)
    other = newer()
    machines.path("a", str(storage), options=other)
    entry_of(storage).write_bytes(wrong)

    machines.path("b", str(storage), options=other)

    assert machines.compiles == 3
    assert "its record is damaged" in machines.warnings[0]


def test_no_record_names_a_file_outside(machines, storage, tmp_path):
    machines.path("a", str(storage))
    path = entry_of(storage)
    entry = json.loads(path.read_bytes())
    wrong = (
        "../../out", "/out", f"{tmp_path}/out", "a\\b", "", "hits", "Pulled", "x" * 400,
        "/".join(["x" * 200] * 30), "\ud800",
    )  # fmt: skip
    for number, name in enumerate(wrong):
        record = json.loads(parse_record(entry["record"].encode()).dump())
        record["files"][0]["path"] = name
        entry["record"] = resign(record)
        path.write_text(json.dumps(entry))

        machines.path(f"b{number}", str(storage), shared_push=False)

        assert "is no name of a file in an entry" in machines.warnings[-1]
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.rglob("out"))


@pytest.mark.parametrize(
    "names", [("a", "a"), ("a", "A"), ("a/b", "a"), ("\xe9", "e\u0301")]
)
def test_no_record_names_a_file_twice(machines, storage, names):
    """Also not for a file system that does not tell two names apart."""
    machines.path("a", str(storage))
    path = entry_of(storage)
    entry = json.loads(path.read_bytes())
    record = json.loads(parse_record(entry["record"].encode()).dump())
    for file, name in zip(record["files"], names, strict=True):
        file["path"] = name
    entry["record"] = resign(record)
    path.write_text(json.dumps(entry))

    machines.path("b", str(storage), shared_push=False)

    assert "its record names a file twice" in machines.warnings[-1]


@pytest.mark.parametrize(
    "other", [newer, lambda: with_eps(OPENVINO)], ids=["other target", "other EP"]
)
def test_an_entry_that_its_ep_refuses_is_compiled_and_replaced(
    machines, storage, other
):
    """All digests and the key are right, and the files are those of other options."""
    machines.path("a", str(storage), options=other())
    strange = json.loads(entry_of(storage).read_bytes())
    strange_record = json.loads(strange["record"])
    shutil.rmtree(storage / "v1" / "entries")
    machines.path("a2", str(storage))
    own = json.loads(entry_of(storage).read_bytes())
    record = json.loads(own["record"])
    record["files"] = strange_record["files"]
    swapped = {**own, "blobs": strange["blobs"], "record": resign(record)}
    entry_of(storage).write_text(json.dumps(swapped))

    for machine in ("b", "c"):
        with epctx.load_or_compile(
            machines.model,
            with_eps(QNN),
            machines.folder / machine,
            shared_cache=str(storage),
        ) as session:
            assert session.run(None, {"x": X})[0].shape == X.shape

    assert machines.compiles == 3
    (warning,) = machines.warnings
    assert "cannot be loaded and is removed" in warning


def resign(record):
    """Return a record as an attacker writes it, with the digest that it should have."""
    record.pop("record")
    fields = json.dumps(record, sort_keys=True).encode()
    return json.dumps({**record, "record": hashlib.sha256(fields).hexdigest()})


def test_an_entry_beyond_the_limit_of_the_cache_is_not_pulled(
    machines, storage, with_weights
):
    model = with_weights()
    machines.path("a", str(storage), model=model)

    machines.path("b", str(storage), model=model, cache_size=1000)

    assert machines.compiles == 2
    assert "the limit of the cache is 1,000" in machines.warnings[0]


@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_whatever_a_storage_gives_a_machine_has_the_right_entry(
    machines, storage, data
):
    sound = machines.entry("a", str(storage))
    path = data.draw(st.sampled_from([entry_of(storage), *blobs_of(storage)]))
    kept = path.read_bytes()
    position = data.draw(st.integers(0, len(kept) - 1))
    piece = data.draw(st.binary(max_size=8))
    path.write_bytes(kept[:position] + piece + kept[position + len(piece) :])
    try:
        found = machines.entry("b", str(storage), shared_push=False)
    finally:
        path.write_bytes(kept)
        shutil.rmtree(machines.folder / "b", ignore_errors=True)
        shared._failed.clear()

    for entry in (sound, found):
        entry.pop(Path("entry.json"), None)
    assert found == sound
