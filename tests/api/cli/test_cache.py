"""`epctx cache`: what is kept, whether it is sound, and making room."""

from __future__ import annotations

import dataclasses
import errno
import os
import tarfile
import time
from contextlib import contextmanager

import pytest
from end_to_end.small_models import chain, saved
from epctx_cache.store import read_record
from epctx_cli.command import byte_size

from epctx_core import SessionOptions, compile_cached


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache with two entries, one used a day after the other; gives their context
    models by name.
    """
    folder = tmp_path / "cache"
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(folder))
    options = SessionOptions()
    options.add_provider("QNN")
    paths = {}
    for days, name in enumerate(("new", "old")):
        model = saved(chain(["Relu", "Add"], seed=days), tmp_path / f"{name}.onnx")
        paths[name] = compile_cached(model, options)
        moment = time.time() - days * 24 * 3600 - 5
        os.utime(paths[name].parent / "used", (moment, moment))
    return paths


def test_an_empty_cache_is_no_error(epctx, tmp_path):
    said = epctx("cache", "ls", "--cache-dir", tmp_path / "none")

    assert said.code == 0
    assert said.out == f"{tmp_path / 'none'}: 0 entries, 0 bytes\n"
    assert not (tmp_path / "none").exists()


def test_entries_are_listed_the_last_used_first(epctx, cache):
    said = epctx("cache", "ls")

    lines = said.out.splitlines()
    assert said.code == 0
    assert lines[0].split() == ["key", "model", "EPs", "size", "last", "use"]
    assert lines[1].split()[:3] == [
        cache["new"].parent.name[:12],
        "new.onnx",
        "QNNExecutionProvider",
    ]
    assert lines[2].split()[:3] == [
        cache["old"].parent.name[:12],
        "old.onnx",
        "QNNExecutionProvider",
    ]
    assert [
        line.endswith(end)
        for line, end in zip(lines[1:3], ("just now", "1 day ago"), strict=True)
    ]
    assert "2 entries" in lines[-1]


def test_the_list_for_programs_has_whole_keys(epctx, cache):
    said = epctx("cache", "ls", "--json")

    new, old = said.json["entries"]
    assert new["key"] == cache["new"].parent.name
    assert (old["model"], old["eps"], old["partitions"], old["sound"]) == (
        "old.onnx", ["QNNExecutionProvider"], 1, True,
    )  # fmt: skip
    assert said.json["bytes"] == new["bytes"] + old["bytes"]


def test_a_damaged_entry_is_listed_as_such(epctx, cache):
    (cache["old"].parent / "entry.json").write_text("{")

    assert "(damaged)" in epctx("cache", "ls").out
    assert [e["sound"] for e in epctx("cache", "ls", "--json").json["entries"]] == [
        True,
        False,
    ]


def test_verify_says_that_all_is_well(epctx, cache):
    said = epctx("cache", "verify")

    assert said.code == 0
    assert said.out.endswith("2 entries sound, 0 damaged\n")


def test_verify_drops_what_is_damaged_and_exits_with_1(epctx, cache):
    binary = cache["old"].with_name("model_qnn.bin")
    binary.write_bytes(binary.read_bytes()[:-1] + b"?")

    said = epctx("cache", "verify", "--json")

    assert said.code == 1
    assert said.json["ok"] is False
    assert {e["key"]: e["fault"] is None for e in said.json["entries"]} == {
        cache["new"].parent.name: True, cache["old"].parent.name: False,
    }  # fmt: skip
    assert not cache["old"].parent.exists()
    assert epctx("cache", "verify").code == 0


def test_verify_says_what_is_damaged_in_a_cache_that_can_only_be_read(
    epctx, cache, monkeypatch
):
    binary = cache["old"].with_name("model_qnn.bin")
    binary.write_bytes(binary.read_bytes()[:-1] + b"?")

    def refused(*_arguments, **_keywords):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "rename", refused)
    said = epctx("cache", "verify")

    assert said.code == 1
    assert f"{cache['old'].parent.name[:12]} is damaged: " in said.out
    assert "it cannot be removed: Read-only file system" in said.out
    assert "1 entry sound, 1 damaged" in said.out


def test_gc_removes_what_was_used_longest_ago(epctx, cache):
    said = epctx("cache", "gc", "--size", "6K", "--json")

    assert said.code == 0
    assert said.json["removed"] == [cache["old"].parent.name]
    assert said.json["kept"] == 1
    assert said.json["bytes"] <= 6 << 10
    assert cache["new"].exists()


@pytest.mark.parametrize(
    "command",
    [
        ("lookup", "old.onnx", "--ep", "QNN"),
        ("why", "old.onnx", "--ep", "QNN"),
        ("verify",),
        ("export", "all.tar"),
        ("ls",),
        ("stats",),
    ],
    ids=lambda command: command[0],
)
def test_a_command_that_only_looks_at_an_entry_is_no_use_of_it(
    epctx, cache, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)

    assert epctx("cache", *command).code == 0

    removed = epctx("cache", "gc", "--size", "6K", "--json").json["removed"]
    assert removed == [cache["old"].parent.name]


def test_gc_takes_its_limit_from_the_environment(epctx, cache, monkeypatch):
    assert epctx("cache", "gc", "--json").json["removed"] == []
    monkeypatch.setenv("EPCTX_CACHE_SIZE", "0")

    assert len(epctx("cache", "gc", "--json").json["removed"]) == 2


def test_clear_removes_all(epctx, cache):
    said = epctx("cache", "clear")

    assert said.code == 0
    assert "2 entries removed" in said.out
    assert "0 left" in said.out
    assert epctx("cache", "ls", "--json").json["entries"] == []


@pytest.mark.parametrize(
    "wrong", [("gc", "--size", "many"), ("ls", "--size", "1"), ("drop",), ()]
)
def test_wrong_usage_exits_with_2(epctx, wrong):
    assert epctx("cache", *wrong).code == 2


def test_a_cache_that_cannot_be_written_is_said_in_one_block(epctx, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "cache" / "v1" / "staging").mkdir(parents=True)
    (tmp_path / "cache" / "v1" / "staging" / ("0" * 64)).mkdir()
    (tmp_path / "cache" / "v1" / "locks").write_text("in the way")

    said = epctx("cache", "clear", "--cache-dir", tmp_path / "cache")

    assert said.code == 2
    assert said.err.startswith("error: the cache in ")


COMMANDS = (
    ("ls",), ("stats",), ("lookup", "new.onnx", "--ep", "QNN"),
    ("why", "new.onnx", "--ep", "QNN"), ("export", "x.tar"), ("import", "entries.tar"),
    ("verify",), ("gc",), ("clear",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: folder.write_text(""), errno.ENOTDIR),
        (
            lambda folder: (folder.mkdir(), (folder / "v1").write_text("")),
            errno.ENOTDIR,
        ),
        (lambda folder: folder.symlink_to(folder.name), errno.ELOOP),
    ],
    ids=["a file", "a folder with a file", "a link to itself"],
)
def test_what_is_no_cache_is_an_error_that_says_what_to_do(
    epctx, cache, tmp_path, monkeypatch, make, why
):
    monkeypatch.chdir(tmp_path)
    epctx("cache", "export", "entries.tar")
    folder = tmp_path / "other"
    make(folder)

    said = {c[0]: epctx("cache", *c, "--cache-dir", folder) for c in COMMANDS}

    message = f"the cache in {str(folder)!r} cannot be used: {os.strerror(why)}."
    hint = "Set --cache-dir or EPCTX_CACHE_DIR to a folder that you can read and write."
    assert {name: each.err for name, each in said.items()} == dict.fromkeys(
        said, f"error: {message}\n  {hint}\n"
    )
    assert {(each.code, each.out) for each in said.values()} == {(2, "")}


def test_a_cache_that_this_user_cannot_read_is_an_error_that_says_so(
    epctx, cache, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    epctx("cache", "export", "entries.tar")
    folder = tmp_path / "other"
    (folder / "v1").mkdir(parents=True)
    folder.chmod(0o600)  # its names can be read, its files cannot

    with as_somebody_else(tmp_path):
        said = {c[0]: epctx("cache", *c, "--cache-dir", folder) for c in COMMANDS}

    assert {name: each.code for name, each in said.items()} == dict.fromkeys(said, 2)
    words = f"the cache in {str(folder)!r} cannot be used: Permission denied."
    assert {name for name, each in said.items() if words not in each.err} == set()


@contextmanager
def as_somebody_else(folder):
    """Run the block as a user who is not root, to whom a folder belongs."""
    if os.geteuid() != 0:
        yield
        return
    nobody = 65534
    above = [path for path in folder.parents if path.stat().st_uid == 0]
    modes = {path: path.stat().st_mode for path in above}
    for path in (folder, *folder.iterdir()):
        os.chown(path, nobody, nobody)
    for path in above:
        path.chmod(modes[path] | 0o011)
    os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(0)
        for path, mode in modes.items():
            path.chmod(mode)


def test_who_compiles_is_listed(epctx, cache, tmp_path):
    answers = []

    def list_meanwhile(stage, _done, _total):
        if stage == "compile" and not answers:
            answers.extend((epctx("cache", "ls"), epctx("cache", "ls", "--json")))

    options = SessionOptions()
    options.add_provider("QNN")
    compile_cached(
        saved(chain(["Relu", "Add"], seed=7), tmp_path / "slow.onnx"),
        options,
        progress=list_meanwhile,
    )

    said, for_programs = answers
    assert f"compiling: process {os.getpid()} on " in said.out
    assert "which compiles slow.onnx since" in said.out
    (holder,) = for_programs.json["compiling"]
    assert "which compiles slow.onnx since" in holder
    assert epctx("cache", "ls", "--json").json["compiling"] == []


@pytest.fixture
def model(tmp_path, cache):
    """The model of one of the entries."""
    return tmp_path / "new.onnx"


def test_stats_of_an_empty_cache_are_no_error(epctx, tmp_path):
    said = epctx("cache", "stats", "--cache-dir", tmp_path / "none")

    assert said.code == 0
    assert said.out == (
        f"{tmp_path / 'none'}: 0 hits, 0 misses, 0.0 s saved; 0 entries, 0 bytes\n"
    )
    assert not (tmp_path / "none").exists()


def test_stats_show_hits_and_misses_of_each_ep(epctx, cache, model):
    options = SessionOptions()
    options.add_provider("QNN")
    for _ in range(3):
        compile_cached(model, options)
    options = SessionOptions()
    options.add_provider("OpenVINO")
    compile_cached(model, options)

    lines = epctx("cache", "stats").out.splitlines()

    assert lines[0].split() == [
        "EPs", "hits", "misses", "time", "saved", "entries", "size",
    ]  # fmt: skip
    assert lines[1].split()[:3] == ["OpenVINOExecutionProvider", "0", "1"]
    assert lines[2].split()[:3] == ["QNNExecutionProvider", "3", "2"]
    assert "3 hits, 3 misses, " in lines[-1]
    assert "3 entries, " in lines[-1]


def test_stats_for_programs_have_numbers(epctx, cache, model):
    options = SessionOptions()
    options.add_provider("QNN")
    compile_cached(model, options)

    found = epctx("cache", "stats", "--json").json

    assert (found["schema"], found["hits"], found["misses"]) == (1, 1, 2)
    assert found["seconds_saved"] > 0
    assert found["by_eps"] == [
        {
            key: found[key]
            for key in ("hits", "misses", "seconds_saved", "entries", "bytes")
        }
        | {"eps": ["QNNExecutionProvider"]}
    ]


def test_stats_say_which_entries_are_not_counted(epctx, cache):
    (cache["old"].parent / "entry.json").write_text("{")

    said = epctx("cache", "stats")

    assert said.code == 0
    assert "1 entry cannot be read" in said.out


def test_rows_of_stats_add_up_to_the_totals_with_damaged_entries(epctx, cache):
    (cache["old"].parent / "entry.json").write_text("{")
    found = epctx("cache", "stats", "--json").json

    _, qnn, damaged, _, total, *_ = epctx("cache", "stats").out.splitlines()

    assert damaged.split()[:3] == ["(damaged)", "0", "0"]
    assert (qnn.split()[-3], damaged.split()[-3]) == ("1", "1")
    size = found["bytes"] - found["by_eps"][0]["bytes"]
    assert damaged.endswith(f" {byte_size(size)}")
    assert "2 entries, " in total


def test_lookup_prints_the_path_of_a_hit(epctx, cache, model):
    said = epctx("cache", "lookup", model, "--ep", "QNN")

    assert said.code == 0
    assert said.out == f"{cache['new']}\n"


def test_lookup_of_a_miss_exits_with_1_and_compiles_nothing(epctx, cache, model):
    said = epctx("cache", "lookup", model, "--ep", "QNN", "-p", "QNN.htp_arch=75")

    assert said.code == 1
    assert "epctx cache why" in said.out
    assert len(epctx("cache", "ls", "--json").json["entries"]) == 2


def test_lookup_in_a_cache_that_does_not_exist_makes_none(epctx, model, tmp_path):
    folder = tmp_path / "none"

    said = epctx("cache", "lookup", model, "--ep", "QNN", "--cache-dir", folder)

    assert said.code == 1
    assert not folder.exists()


@pytest.mark.parametrize("command", ["lookup", "why"])
def test_nothing_is_written_into_a_folder_that_is_no_cache_yet(
    epctx, model, tmp_path, command
):
    folder = tmp_path / "mine"
    folder.mkdir()

    said = epctx(
        "cache", command, model, "--ep", "QNN", "-c", "acme.entry=1",
        "--cache-dir", folder,
    )  # fmt: skip

    assert said.code in {0, 1}
    assert list(folder.iterdir()) == []


def test_lookup_for_programs_has_path_and_key(epctx, cache, model):
    hit = epctx("cache", "lookup", model, "--ep", "QNN", "--json")
    miss = epctx("cache", "lookup", model, "--ep", "OpenVINO", "--json")

    assert (hit.json["hit"], hit.json["path"]) == (True, str(cache["new"]))
    assert hit.json["key"] == cache["new"].parent.name
    assert (miss.code, miss.json["hit"], miss.json["path"]) == (1, False, None)


def test_lookup_of_a_damaged_entry_is_a_miss_that_says_so(epctx, cache, model):
    cache["new"].write_bytes(b"x")

    said = epctx("cache", "lookup", model, "--ep", "QNN")

    assert said.code == 1
    assert "is damaged: model_ctx.onnx has another length" in said.out


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: (path.parent / "entry.json").unlink(), "it has no record"),
        (
            lambda path: (path.parent / "entry.json").write_text("{"),
            "its record is damaged",
        ),
        (flip, "model_ctx.onnx has another digest"),
    ],
    ids=["no record", "a damaged record", "a damaged model"],
)
def test_why_and_lookup_say_alike_what_is_damaged_and_what_to_do(
    epctx, cache, model, damage, words
):
    key = cache["new"].parent.name
    damage(cache["new"])
    arguments = (model, "--ep", "QNN")

    said = [epctx("cache", command, *arguments).out for command in ("lookup", "why")]
    found = [
        epctx("cache", command, *arguments, "--json").json
        for command in ("lookup", "why")
    ]

    assert said[0] == said[1]
    assert said[0].startswith(f"The entry of this key, {key[:12]}, is damaged: {words}")
    assert said[0].endswith(
        "The next load compiles it again; `epctx cache verify` removes it.\n"
    )
    assert [(each["hit"], each["key"]) for each in found] == [(False, key)] * 2
    assert found[0]["fault"] == found[1]["fault"]
    assert words in found[1]["fault"]
    assert found[1]["nearest"] is None


@pytest.mark.parametrize("damage", [flip, lambda path: path.unlink()])
def test_a_damaged_entry_is_compiled_by_the_next_load_and_removed_by_verify(
    epctx, cache, model, damage
):
    damage(cache["new"])
    damage(cache["old"])
    options = SessionOptions()
    options.add_provider("QNN")

    compile_cached(model, options)
    verified = epctx("cache", "verify", "--json").json["entries"]

    assert {each["key"]: each["fault"] is None for each in verified} == {
        cache["new"].parent.name: True, cache["old"].parent.name: False,
    }  # fmt: skip
    assert not cache["old"].parent.exists()


def test_why_in_an_empty_cache_says_that_it_is_empty(epctx, model, tmp_path):
    folder = tmp_path / "none"

    said = epctx("cache", "why", model, "--ep", "QNN", "--cache-dir", folder)

    assert said.out == f"{model} is not in {folder}: the cache is empty.\n"


@pytest.fixture
def change(cache):
    """Write another record of an entry, whose key stays; gives its new record."""

    def write(name, **fields):
        folder = cache[name].parent
        record = dataclasses.replace(read_record(folder), **fields)
        (folder / "entry.json").write_bytes(record.dump())
        return record

    return write


def lines_of(said):
    return [line.strip() for line in said.out.splitlines()]


def test_why_shows_times_of_change_as_dates(epctx, cache, model, change):
    parts = read_record(cache["new"].parent).ingredients
    states = {**parts["distributions"], "acme": "0.1.0, edited 1795782162890475656/14"}
    for name in cache:
        change(name, ingredients={**parts, "distributions": states, "engine": "x"})

    said = epctx("cache", "why", model, "--ep", "QNN", "-p", "QNN.htp_arch=75")

    date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1795782162))
    assert f"entry  0.1.0, edited {date}, 14 files" in lines_of(said)


def test_why_cuts_long_values_where_they_differ(epctx, cache, model, change):
    prefix, long = "ep.context_node_name_prefix", "x" * 120
    parts = read_record(cache["new"].parent).ingredients
    session = {**parts["session"], prefix: f"{long}_entry"}
    for name in cache:
        change(name, ingredients={**parts, "session": session, "z" * 500: "y" * 500})

    said = epctx("cache", "why", model, "--ep", "QNN", "-c", f"{prefix}={long}_now")

    _, *lines = said.out.splitlines()
    assert max(map(len, lines)) < 120
    assert {f"now    …{'x' * 19}_now", f"entry  …{'x' * 19}_entry"} <= {*lines_of(said)}
    assert f"entry  {'y' * 100}…" in lines_of(said)


def test_no_name_in_an_entry_forges_a_line_of_a_report(
    epctx, cache, model, change, tmp_path
):
    forged = "\x1b[31mred\nFORGED line\r\u200b"
    parts = read_record(cache["new"].parent).ingredients
    eps = [{**parts["eps"][0], "ep": forged}]
    file = tmp_path / "entries.tar"
    for name in cache:
        change(
            name,
            model=forged,
            ingredients={**parts, "eps": eps, "engine": forged, forged: forged},
        )
    other = saved(chain(["Relu", "Add"], seed=7), tmp_path / "other.onnx")
    commands = [
        ("ls",), ("stats",), ("why", other, "--ep", "QNN"), ("export", file),
        ("import", file), ("verify",), ("gc",),
    ]  # fmt: skip

    said = [epctx("cache", *command) for command in commands]

    lines = [line for each in said for line in each.out.splitlines()]
    assert not [line for line in lines if line.startswith("FORGED")]
    assert [line for line in lines if "FORGED" in line]
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("command", ["lookup", "why"])
def test_a_model_that_is_not_there_is_said(epctx, cache, command):
    said = epctx("cache", command, "none.onnx", "--ep", "QNN")

    assert said.code == 2
    assert said.err == "error: there is no model file 'none.onnx'.\n"


@pytest.mark.parametrize("command", ["lookup", "why"])
def test_a_context_model_has_no_entry(epctx, cache, command):
    said = epctx("cache", command, cache["new"], "--ep", "QNN")

    assert said.code == 2
    assert "is a context model already" in said.err


def test_why_names_the_nearest_entry_and_what_differs(epctx, cache, model):
    said = epctx("cache", "why", model, "--ep", "QNN", "-p", "QNN.htp_arch=75")

    assert said.code == 0
    assert f"Nearest entry: {cache['new'].parent.name[:12]}, new.onnx" in said.out
    assert "Its key differs in 2 parts:" in said.out
    assert (
        "  option htp_arch of QNNExecutionProvider\n    now    75\n    entry  73\n"
    ) in said.out


def test_why_of_a_hit_says_that_the_model_is_there(epctx, cache, model):
    said = epctx("cache", "why", model, "--ep", "QNN")

    assert said.out.endswith(f"entry {cache['new'].parent.name[:12]}.\n")


def test_why_for_programs_has_both_values(epctx, cache, model):
    found = epctx(
        "cache", "why", model, "--ep", "QNN", "-c", "ep.partition_min_nodes=2", "--json"
    ).json

    assert (found["schema"], found["hit"], found["entries"]) == (1, False, 2)
    assert found["nearest"]["key"] == cache["new"].parent.name
    assert found["nearest"]["differences"] == [
        {
            "part": "session option ep.partition_min_nodes",
            "now": "2",
            "entry": "1",
        }
    ]


def test_why_says_which_entries_are_not_compared(epctx, cache, model):
    (cache["new"].parent / "entry.json").write_text("{}")
    (cache["old"].parent / "entry.json").write_text("{}")

    said = epctx("cache", "why", model, "--ep", "QNN", "-p", "QNN.htp_arch=75")

    assert said.code == 0
    assert "no entry is comparable" in said.out
    assert "2 entries are not compared: damaged, or of an earlier version" in said.out


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
