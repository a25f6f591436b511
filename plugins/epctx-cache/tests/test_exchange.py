"""Entries in a tar file: the same bytes from the same entries, and nothing of a hostile
or damaged file in the cache.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from end_to_end.sim_eps import QNN, with_eps
from end_to_end.small_models import chain, example, saved
from epctx_cache import exchange
from epctx_cache.exchange import export_entries, import_entries
from epctx_cache.key import key_of
from epctx_cache.store import RECORD, EntryFile, read_record, verify

import epctx_core as epctx

LIMIT = 1 << 30


def ignore(_stage, _done, _total):
    pass


def exported(cache, file, keys=None):
    return export_entries(cache.store, file, list(keys or cache.keys), ignore)


def imported(cache, file, limit=LIMIT):
    return list(import_entries(cache.store, file, limit, ignore))


@pytest.fixture
def models(tmp_path):
    return [
        saved(chain(["Relu", "Add"], seed=seed), tmp_path / f"{seed}.onnx")
        for seed in range(3)
    ]


@pytest.fixture
def other(cache, tmp_path, caplog):
    """An empty cache."""
    return type(cache)(tmp_path / "other", caplog)


@pytest.fixture
def archive(cache, models, tmp_path):
    """A tar file of three entries."""
    for model in models:
        cache.path(model)
    exported(cache, tmp_path / "entries.tar")
    return tmp_path / "entries.tar"


def members_of(file):
    """Return header and bytes of each member."""
    with tarfile.open(file) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]


def written(file, members):
    """Write a tar file of (header, bytes) and return its path."""
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar:
        for member, data in members:
            tar.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return file


def header(name, size=0, **fields):
    member = tarfile.TarInfo(name)
    member.size = size
    for field, value in fields.items():
        setattr(member, field, value)
    return member


def test_what_one_cache_exports_another_one_has_hits_of(archive, cache, other, models):
    with cache.session(models[0]) as session:
        expected = session.run(None, {"x": example()})[0]
    compiles = cache.compiles

    results = imported(other, archive)

    assert {result.key for result in results} == cache.keys == other.keys
    assert [(result.fault, result.existed) for result in results] == [(None, False)] * 3
    with other.session(models[0]) as session:
        assert np.array_equal(session.run(None, {"x": example()})[0], expected)
    assert other.compiles == compiles
    assert other.store.statistics().hits == 1
    assert [fault for _, fault in verify(other.store)] == ["", "", ""]


def test_an_entry_with_a_file_of_weights_arrives_whole(
    cache, other, with_weights, tmp_path
):
    source = with_weights()
    entry = cache.path(source, epctx.SessionOptions()).parent
    file = tmp_path / "entries.tar"

    exported(cache, file)
    (result,) = imported(other, file)

    assert result.fault is None
    arrived = other.store.entry_folder(entry.name)
    for name in [path.path for path in read_record(entry).files]:
        assert (arrived / name).read_bytes() == (entry / name).read_bytes()
    assert (arrived / "model.weights").exists()


def test_the_same_entries_give_the_same_bytes(archive, cache, models, tmp_path):
    cache.path(models[0])  # a hit changes no byte of them
    again = tmp_path / "again.tar"

    exported(cache, again, sorted(cache.keys, reverse=True))

    assert again.read_bytes() == archive.read_bytes()
    for member, _ in members_of(archive):
        assert (member.mtime, member.uid, member.gid, member.uname) == (0, 0, 0, "")


def test_an_import_may_be_exported_again_with_the_same_bytes(archive, other, tmp_path):
    imported(other, archive)

    exported(other, tmp_path / "again.tar")

    assert (tmp_path / "again.tar").read_bytes() == archive.read_bytes()


def test_entries_that_exist_are_left_as_they_are(archive, other):
    imported(other, archive)

    results = imported(other, archive)

    assert [(result.fault, result.existed) for result in results] == [(None, True)] * 3


def test_a_damaged_entry_is_not_exported_and_stops_no_other_one(
    archive, cache, tmp_path
):
    (first, *rest) = sorted(cache.keys)
    binary = cache.store.entry_folder(first) / "model_qnn.bin"
    binary.write_bytes(binary.read_bytes()[:-1] + b"?")

    results = exported(cache, tmp_path / "again.tar")

    assert [bool(result.fault) for result in results] == [True, False, False]
    index = json.loads(members_of(tmp_path / "again.tar")[-1][1])
    assert index["entries"] == rest


def test_an_archive_is_replaced_by_a_newer_one(archive, cache, tmp_path):
    (first, *_) = sorted(cache.keys)

    exported(cache, archive, [first])

    assert json.loads(members_of(archive)[-1][1])["entries"] == [first]


def other_tar(archive):
    members = [(header("readme.txt", 2), b"hi"), (header("index.json", 2), b"{}")]
    written(archive, members)


@pytest.mark.parametrize(
    "make",
    [
        other_tar,
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(bytes(10240)),
        lambda file: file.write_bytes(b"a model"),
        lambda file: file.write_bytes(file.read_bytes()[:2048]),
        lambda file: (file.unlink(), file.mkdir()),
        lambda file: (file.unlink(), os.mkfifo(file)),
        lambda file: (
            file.rename(file.with_name("model")).write_bytes(b"a model"),
            file.symlink_to("model"),
        ),
        lambda file: (file.unlink(), file.symlink_to("nowhere")),
    ],
    ids=[
        "another tar file",
        "an empty file",
        "a tar file of nothing",
        "a model",
        "an archive without its end",
        "a folder",
        "a pipe",
        "a link to a model",
        "a link to nothing",
    ],
)
def test_what_is_no_whole_archive_is_not_replaced(archive, cache, tmp_path, make):
    make(archive)
    before = {path.name: path.lstat() for path in tmp_path.iterdir()}

    with pytest.raises(epctx.Fail, match="is not an archive of `epctx cache export`"):
        exported(cache, archive)

    after = {path.name: path.lstat() for path in tmp_path.iterdir()}
    assert {n: (s.st_ino, s.st_size) for n, s in after.items()} == {
        n: (s.st_ino, s.st_size) for n, s in before.items()
    }


def test_an_export_that_fails_leaves_the_older_file(
    archive, cache, monkeypatch, tmp_path
):
    before = archive.read_bytes()

    def refuse(*_arguments, **_keywords):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(tarfile.TarFile, "addfile", refuse)
    with pytest.raises(OSError, match="No space left"):
        exported(cache, archive)

    assert archive.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", [RECORD, "model_ctx.onnx", "model_qnn.bin"])
def test_a_flipped_bit_anywhere_refuses_its_entry_alone(archive, other, tmp_path, name):
    members = members_of(archive)
    number = next(n for n, (m, _) in enumerate(members) if m.name.endswith(name))
    member, data = members[number]
    key = member.name.partition("/")[0]
    size = len(data)

    for place in sorted({0, size - 1, *range(5, size, max(size // 9, 1))}):
        changed = bytearray(data)
        changed[place] ^= 0x20
        members[number] = (member, bytes(changed))
        results = imported(other, written(tmp_path / "bad.tar", members))

        assert {r.key for r in results if r.fault} == {key}
        assert len(other.keys) == 2
        assert key not in other.keys
        assert not list((other.folder / "v1" / "staging").iterdir())


def test_a_flipped_bit_in_a_file_of_weights_refuses_its_entry(
    cache, other, with_weights, tmp_path
):
    cache.path(with_weights(), epctx.SessionOptions())
    exported(cache, tmp_path / "entries.tar")
    members = members_of(tmp_path / "entries.tar")
    number = next(n for n, (m, _) in enumerate(members) if "model.weights" in m.name)
    member, data = members[number]

    for place in (0, len(data) // 2, len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        members[number] = (member, bytes(changed))
        (result,) = imported(other, written(tmp_path / "bad.tar", members))

        assert "model.weights" in result.fault
    assert other.keys == set()


def key_in(archive):
    return members_of(archive)[0][0].name.partition("/")[0]


HOSTILE = {
    "an absolute path": lambda key: header("/etc/evil", 4),
    "a way out": lambda key: header(f"{key}/../../evil", 4),
    "a way out at the start": lambda key: header("../evil", 4),
    "a link": lambda key: header(
        f"{key}/evil", type=tarfile.SYMTYPE, linkname="/etc/passwd"
    ),
    "a hard link": lambda key: header(
        f"{key}/evil", type=tarfile.LNKTYPE, linkname=f"{key}/entry.json"
    ),
    "a device": lambda key: header(f"{key}/evil", type=tarfile.CHRTYPE),
    "a pipe": lambda key: header(f"{key}/evil", type=tarfile.FIFOTYPE),
    "a folder": lambda key: header(f"{key}/evil", type=tarfile.DIRTYPE),
    "the record again": lambda key: header(f"{key}/{RECORD}", 4),
    "a file that no record names": lambda key: header(f"{key}/evil", 4),
    "the file that counts hits": lambda key: header(f"{key}/hits", 4),
    "a backslash": lambda key: header(f"{key}/..\\evil", 4),
    "a line break": lambda key: header(f"{key}/a\nb", 4),
    "an empty name": lambda key: header(f"{key}//evil", 4),
    "a file of no entry": lambda key: header("evil", 4),
    "a file of the cache": lambda key: header("v1/secret", 4),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_member_is_refused_and_written_nowhere(
    archive, other, tmp_path, hostile
):
    key = key_in(archive)
    members = members_of(archive)
    member = hostile(key)
    file = written(tmp_path / "evil.tar", [*members, (member, b"evil"[: member.size])])
    before = {path for path in tmp_path.rglob("*") if other.folder not in path.parents}

    results = imported(other, file)

    faults = [result for result in results if result.fault]
    assert len(faults) == 1
    concerned = member.name.partition("/")[0] == key
    assert (key in other.keys) is not concerned
    assert len(other.keys) == 2 + (not concerned)
    after = {path for path in tmp_path.rglob("*") if other.folder not in path.parents}
    assert after - before == {other.folder}
    stored = [path for path in other.folder.rglob("*") if path.is_file()]
    assert all(path.read_bytes() != b"evil" for path in stored)


def test_a_sparse_member_is_refused(archive, other, tmp_path):
    members = members_of(archive)
    member = header(f"{key_in(archive)}/evil", type=tarfile.GNUTYPE_SPARSE)
    data = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    data[483:495] = b"%011o\x00" % (1 << 32)  # four GiB of nothing
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\x00 " % sum(data)
    with written(tmp_path / "evil.tar", members[:-1]).open("r+b") as file:
        file.seek(sum(512 + -(-len(d) // 512) * 512 for _, d in members[:-1]))
        file.write(bytes(data))
        file.write(bytes(1024))
        file.truncate()

    results = imported(other, tmp_path / "evil.tar")

    assert any("not a regular file" in (result.fault or "") for result in results)
    assert key_in(archive) not in other.keys


def test_a_header_that_claims_gigabytes_is_not_read(archive, other, tmp_path):
    first = header("x", 1 << 33, type=tarfile.XHDTYPE).tobuf(tarfile.GNU_FORMAT)
    file = tmp_path / "evil.tar"
    file.write_bytes(first)
    os.truncate(file, 1 << 34)

    with pytest.raises(epctx.InvalidArgument, match="header is too large"):
        imported(other, file)


def test_too_many_members_are_refused_before_anything_is_imported(
    archive, other, monkeypatch
):
    monkeypatch.setattr(exchange, "MAX_MEMBERS", 9)

    with pytest.raises(epctx.InvalidArgument, match="more than 9 members"):
        imported(other, archive)

    assert not other.folder.exists()


def test_an_entry_larger_than_the_limit_is_refused(archive, other):
    results = imported(other, archive, limit=100)

    assert ["the limit of the cache is 100" in r.fault for r in results] == [True] * 3
    assert other.keys == set()


def test_a_file_that_was_cut_off_gives_its_whole_entries_and_says_so(
    archive, cache, other, tmp_path
):
    whole = archive.read_bytes()
    cut = tmp_path / "cut.tar"
    found = set()

    for length in range(1024, len(whole) - 10240, 1536):
        cut.write_bytes(whole[:length])
        results = imported(other, cut)

        assert any(result.fault for result in results)
        assert all(r.key in other.keys for r in results if not r.fault)
        found.add(len(other.keys))

    assert found >= {0, 1, 2}
    assert [fault for _, fault in verify(other.store) if fault] == []


def test_flipped_bits_in_headers_never_end_in_an_untyped_error(
    archive, cache, other, tmp_path
):
    whole = archive.read_bytes()
    file = tmp_path / "bad.tar"

    for place in range(0, 512, 3):
        changed = bytearray(whole)
        changed[place] ^= 0x55
        file.write_bytes(changed)
        try:
            results = imported(other, file)
        except epctx.InvalidArgument:
            continue
        assert any(result.fault for result in results), place

    assert other.keys <= cache.keys


def test_a_record_of_another_key_is_refused(archive, other, tmp_path):
    key = key_in(archive)
    wrong = "0" * 64
    members = members_of(archive)
    for member, _ in members[:-1]:
        if member.name.startswith(key):
            member.name = member.name.replace(key, wrong)
            member.pax_headers = {}

    results = imported(other, written(tmp_path / "evil.tar", members))

    assert {result.key for result in results if result.fault} == {wrong, key}
    assert other.keys.isdisjoint({wrong, key})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 7),
        ("created", "now"),
        ("seconds", -1.0),
        ("seconds", 1e308),
        ("seconds", float("nan")),
        ("created", 1e15),
        ("partitions", None),
        ("partitions", 1.5),
        ("partitions", 1 << 70),
        ("assignments", {"a": "b"}),
        ("assignments", {"a": 1.0}),
        ("ingredients", {"eps": [7]}),
        ("ingredients", {"eps": "x"}),
        ("ingredients", {}),
    ],
)
def test_a_record_with_fields_of_another_form_is_refused(
    archive, other, cache, tmp_path, field, value
):
    record = read_record(cache.store.entry_folder(key_in(archive)))
    bad = dataclasses.replace(record, **{field: value})
    bad = dataclasses.replace(bad, key=key_of(bad.ingredients))

    results = imported(other, repacked(cache, record.key, bad, tmp_path / "evil.tar"))

    assert any("fields of another form" in (result.fault or "") for result in results)
    assert other.keys == set()


def repacked(cache, key, record, file, **more):
    """Write a tar file of an entry with another record, and with more files."""
    folder = cache.store.entry_folder(key)
    data = {
        f.path: more.get(f.path) or (folder / f.path).read_bytes() for f in record.files
    }
    named = {RECORD: record.dump(), **data}
    members = [
        (header(f"{record.key}/{name}", len(data)), data)
        for name, data in named.items()
    ]
    return written(file, members)


def test_a_file_that_the_model_does_not_name_is_refused(
    archive, other, cache, tmp_path
):
    key = key_in(archive)
    record = read_record(cache.store.entry_folder(key))
    evil = EntryFile(
        path="evil.so", bytes=4, digest=hashlib.sha256(b"evil").hexdigest()
    )
    bad = dataclasses.replace(record, files=(evil, *record.files))
    more = {"evil.so": b"evil"}

    (*_, result) = imported(
        other, repacked(cache, key, bad, tmp_path / "evil.tar", **more)
    )

    assert result.fault == "its model does not name 'evil.so'"
    assert other.keys == set()


@pytest.mark.parametrize("digest", ["nonsense", "0" * 64, ""])
def test_a_record_with_another_digest_of_a_binary_is_refused(
    archive, other, cache, tmp_path, digest
):
    key = key_in(archive)
    record = read_record(cache.store.entry_folder(key))
    binary, model = record.files
    bad = dataclasses.replace(
        record, files=(dataclasses.replace(binary, digest=digest), model)
    )

    (*_, result) = imported(other, repacked(cache, key, bad, tmp_path / "evil.tar"))

    assert "another digest" in result.fault or "another form" in result.fault
    assert other.keys == set()


def test_entries_of_all_kinds_are_imported(cache, other, model, with_weights, tmp_path):
    embedded = with_eps(QNN)
    embedded.add_session_config_entry("ep.context_embed_mode", "1")
    named = with_eps(QNN)
    named.add_session_config_entry(
        "ep.context_model_external_initializers_file_name", "rest.bin"
    )
    for options in (
        with_eps(QNN, "OpenVINO", "VitisAI"), with_eps("VitisAI"), embedded, named,
        epctx.SessionOptions(),
    ):  # fmt: skip
        cache.path(model, options)
        cache.path(with_weights(), options)

    exported(cache, tmp_path / "entries.tar")
    results = imported(other, tmp_path / "entries.tar")

    assert [result.fault for result in results if result.fault] == []
    assert len(other.keys) == 10


@pytest.mark.parametrize("data", [b"", b"no tar file", b"\0" * 10240, b"\x1f\x8b" * 99])
def test_what_is_no_archive_is_said_to_be_none(other, tmp_path, data):
    file = tmp_path / "file"
    file.write_bytes(data)

    with pytest.raises(epctx.InvalidArgument, match="is not an uncompressed tar file"):
        imported(other, file)

    assert not other.folder.exists()


def test_a_compressed_archive_is_refused(archive, other, tmp_path):
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(archive.read_bytes()))

    with pytest.raises(epctx.InvalidArgument, match="uncompressed"):
        imported(other, tmp_path / "x.tar.gz")


def test_hundreds_of_entries_go_there_and_back(cache, other, models, tmp_path):
    folder = cache.path(models[0]).parent
    record = read_record(folder)
    for number in range(300):
        parts = {**record.ingredients, "target": f"machine {number}"}
        copy = dataclasses.replace(record, key=key_of(parts), ingredients=parts)
        target = cache.store.entry_folder(copy.key)
        shutil.copytree(folder, target)
        (target / RECORD).write_bytes(copy.dump())

    exported(cache, tmp_path / "entries.tar")
    results = imported(other, tmp_path / "entries.tar")

    assert len(results) == 301
    assert not any(result.fault for result in results)
    assert other.keys == cache.keys


def test_secret_options_and_the_secret_are_not_in_an_archive(cache, models, tmp_path):
    cache.path(models[0], with_eps(QNN))
    secret = cache.store.secret()

    exported(cache, tmp_path / "entries.tar")

    assert secret not in (tmp_path / "entries.tar").read_bytes()


def test_two_processes_that_import_one_file_publish_each_entry_once(
    archive, cache, other
):
    command = [sys.executable, "-m", "epctx_core", "cache", "import", str(archive)]
    processes = [
        subprocess.Popen(
            [*command, "--cache-dir", str(other.folder), "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [json.loads(process.communicate(timeout=300)[0]) for process in processes]

    entries = [entry for answer in said for entry in answer["entries"]]
    assert [entry["fault"] for entry in entries] == [None] * 6
    assert sum(not entry["existed"] for entry in entries) == 3
    assert other.keys == cache.keys


@pytest.mark.parametrize("size", [-(1 << 40), -1024, 1 << 62, (1 << 63) + 7])
def test_a_size_that_points_outside_the_file_ends_the_archive(
    archive, other, tmp_path, size
):
    data = bytearray(archive.read_bytes())
    start = data.index(b"/model_qnn.bin") // 512 * 512
    data[start + 124 : start + 136] = bytes([0xFF if size < 0 else 0x80]) + (
        size % (1 << 88)
    ).to_bytes(11)
    data[start + 148 : start + 156] = b" " * 8
    total = sum(data[start : start + 512])
    data[start + 148 : start + 156] = b"%06o\x00 " % total
    (tmp_path / "evil.tar").write_bytes(data)

    try:
        results = imported(other, tmp_path / "evil.tar")
    except epctx.InvalidArgument as error:
        assert "more than 100,000 members" in str(error)
    else:
        assert any(result.fault for result in results)
    assert other.keys == set()
