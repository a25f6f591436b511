"""`epctx cache export` and `import`: entries in one tar file."""

from __future__ import annotations

import errno
import os
import tarfile

import pytest
from cli.caches import _cache, _model  # noqa: F401 - fixtures


def test_entries_go_from_cache_to_cache_in_one_file(epctx, cache, model, tmp_path):
    file, other = tmp_path / "entries.tar", tmp_path / "other"

    out = epctx("cache", "export", file)
    into = epctx("cache", "import", file, "--cache-dir", other)

    assert (out.code, into.code) == (0, 0)
    assert out.out.startswith(f"{file}: 2 entries, ")
    assert into.out.startswith(f"{other}: 2 entries imported, ")
    there = epctx("cache", "lookup", model, "--ep", "QNN", "--cache-dir", other)
    assert there.code == 0
    assert there.out.startswith(str(other))


def test_an_entry_is_exported_by_the_first_digits_of_its_key(epctx, cache, tmp_path):
    key = cache["old"].parent.name

    said = epctx("cache", "export", tmp_path / "one.tar", key[:12], key, "--json")

    assert [entry["key"] for entry in said.json["entries"]] == [key]


def test_an_export_replaces_no_file_that_is_no_archive(epctx, cache, model, tmp_path):
    before = model.read_bytes()
    (tmp_path / "model.tar").write_bytes(before)

    wrong_ending = epctx("cache", "export", model)
    no_archive = epctx("cache", "export", tmp_path / "model.tar")

    assert (wrong_ending.code, no_archive.code) == (2, 2)
    assert "does not end in .tar" in wrong_ending.err
    assert "is not an archive of `epctx cache export`" in no_archive.err
    assert model.read_bytes() == (tmp_path / "model.tar").read_bytes() == before


def test_digits_of_an_entry_without_a_file_are_no_file(
    epctx, cache, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    digits = cache["old"].parent.name[:12]

    said = epctx("cache", "export", digits)

    assert said.code == 2
    assert f"epctx cache export FILE.tar {digits}" in said.err
    assert not (tmp_path / digits).exists()


def test_an_export_without_an_entry_writes_nothing_and_exits_with_1(
    epctx, cache, tmp_path
):
    file = tmp_path / "entries.tar"
    epctx("cache", "export", file)
    before = file.read_bytes()
    for path in cache.values():
        path.write_bytes(b"x")

    damaged = epctx("cache", "export", file)
    epctx("cache", "clear")
    empty = epctx("cache", "export", file)
    for_programs = epctx("cache", "export", tmp_path / "new.tar", "--json")

    assert (damaged.code, empty.code, for_programs.code) == (1, 1, 1)
    assert f"{file} is not written: no entry was exported." in damaged.out
    assert f"{file} is not written: the cache is empty." in empty.out
    assert (for_programs.json["ok"], for_programs.json["entries"]) == (False, [])
    assert file.read_bytes() == before
    assert not (tmp_path / "new.tar").exists()


@pytest.mark.parametrize(
    ("digits", "message"), [("xyz", "no entry has"), ("", "no entry has")]
)
def test_digits_of_no_entry_are_refused(epctx, cache, tmp_path, digits, message):
    said = epctx("cache", "export", tmp_path / "one.tar", digits)

    assert said.code == 2
    assert message in said.err
    assert not (tmp_path / "one.tar").exists()


def test_a_damaged_entry_is_left_out_of_an_export_which_exits_with_1(
    epctx, cache, tmp_path
):
    cache["old"].write_bytes(b"x")

    said = epctx("cache", "export", tmp_path / "some.tar")

    assert said.code == 1
    assert f"{cache['old'].parent.name[:12]} is left out: " in said.out
    assert f"{tmp_path / 'some.tar'}: 1 entry, " in said.out


def test_a_damaged_entry_is_left_out_of_an_import_which_exits_with_1(
    epctx, cache, tmp_path
):
    file, other = tmp_path / "entries.tar", tmp_path / "other"
    epctx("cache", "export", file)
    data = cache["old"].with_name("model_qnn.bin").read_bytes()
    file.write_bytes(file.read_bytes().replace(data, data[:-1] + b"?"))

    said = epctx("cache", "import", file, "--cache-dir", other, "--json")

    assert said.code == 1
    assert said.json["ok"] is False
    assert {e["key"]: e["fault"] is None for e in said.json["entries"]} == {
        cache["new"].parent.name: True, cache["old"].parent.name: False,
    }  # fmt: skip
    assert (
        len(epctx("cache", "ls", "--cache-dir", other, "--json").json["entries"]) == 1
    )


def test_an_import_says_of_an_archive_without_its_end_that_no_entry_was_refused(
    epctx, cache, tmp_path
):
    file, other = tmp_path / "entries.tar", tmp_path / "other"
    epctx("cache", "export", file)
    with tarfile.open(file) as tar:
        end = max(member.offset for member in tar)
    os.truncate(file, end)

    said = epctx("cache", "import", file, "--cache-dir", other)
    for_programs = epctx("cache", "import", file, "--cache-dir", other, "--json")

    first, second = said.out.splitlines()
    assert said.code == 1
    assert first == "entries.tar may have had more entries: its end is missing"
    assert second.startswith(f"{other}: 2 entries imported, ")
    assert second.endswith("; 0 existed, 0 refused")
    assert (for_programs.code, for_programs.json["ok"]) == (1, False)


@pytest.mark.parametrize("name", ["../evil3", "evil", "v1/secret", "/etc/evil"])
def test_an_import_says_of_a_member_of_no_entry_what_it_is(
    epctx, cache, tmp_path, name
):
    file, other = tmp_path / "entries.tar", tmp_path / "other"
    epctx("cache", "export", file)
    with tarfile.open(file, "a") as tar:
        tar.addfile(tarfile.TarInfo(name))

    said = epctx("cache", "import", file, "--cache-dir", other)

    first, second = said.out.splitlines()
    assert first == f"{name!r} is left out: it belongs to no entry"
    assert "2 entries imported, " in second
    assert second.endswith("; 0 existed, 1 refused")


def test_an_import_that_a_full_disk_ends_says_what_was_imported(
    epctx, cache, tmp_path, monkeypatch
):
    file, other = tmp_path / "entries.tar", tmp_path / "other"
    epctx("cache", "export", file)
    original, published = os.rename, []

    def full_after_one(*arguments, **keywords):
        if published:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        published.append(arguments)
        return original(*arguments, **keywords)

    monkeypatch.setattr(os, "rename", full_after_one)
    said = epctx("cache", "import", file, "--cache-dir", other)

    assert said.code == 2
    assert "No space left on device; 1 entry imported before." in said.err
    assert "[Errno" not in said.err
    listed = epctx("cache", "ls", "--cache-dir", other, "--json").json
    assert len(listed["entries"]) == 1


def test_an_import_keeps_the_limit(epctx, cache, tmp_path, monkeypatch):
    file, other = tmp_path / "entries.tar", tmp_path / "other"
    epctx("cache", "export", file)
    monkeypatch.setenv("EPCTX_CACHE_SIZE", "6K")

    said = epctx("cache", "import", file, "--cache-dir", other)

    assert said.code == 0
    assert "1 entry removed to keep the limit of 6.0 KiB" in said.out


@pytest.mark.parametrize("data", [None, b"no tar file"])
def test_a_file_that_is_no_archive_is_wrong_usage(epctx, tmp_path, data):
    file = tmp_path / "file.tar"
    if data is not None:
        file.write_bytes(data)

    said = epctx("cache", "import", file, "--cache-dir", tmp_path / "cache")

    assert said.code == 2
    assert str(file) in said.err


def test_an_archive_that_cannot_be_written_is_said(epctx, cache, tmp_path):
    said = epctx("cache", "export", tmp_path / "none" / "x.tar")

    assert said.code == 2
    assert said.err.endswith("cannot be written: No such file or directory.\n")
