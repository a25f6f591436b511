"""`epctx cache`: what is kept, whether it is sound, and making room."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager

import pytest
from support.caches import _cache, _model  # noqa: F401 - fixtures
from support.small_models import chain, saved

from epctx_core import SessionOptions, compile_cached


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


@pytest.mark.parametrize("removed", ["export", "import"])
def test_a_command_for_archives_is_wrong_usage_that_names_the_shared_cache(
    epctx, tmp_path, removed
):
    said = epctx("cache", removed, tmp_path / "entries.tar")

    assert said.code == 2
    assert f"there is no command 'cache {removed}' any more." in said.err
    assert "set EPCTX_CACHE_SHARED. See `epctx docs shared-cache`." in said.err
    assert list(tmp_path.glob("*.tar")) == []


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
    ("why", "new.onnx", "--ep", "QNN"), ("verify",), ("gc",), ("clear",),
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


def test_stats_of_an_empty_cache_are_no_error(epctx, tmp_path):
    said = epctx("cache", "stats", "--cache-dir", tmp_path / "none")

    assert said.code == 0
    assert said.out == (
        f"{tmp_path / 'none'}: 0 hits, 0 misses, 0.0 s saved against compiling again; "
        "0 entries, 0 bytes\n"
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
        "EPs", "hits", "misses", "compile", "time", "saved", "entries", "size",
    ]  # fmt: skip
    assert lines[1].split()[:3] == ["OpenVINOExecutionProvider", "0", "1"]
    assert lines[2].split()[:3] == ["QNNExecutionProvider", "3", "2"]
    assert "3 hits, 3 misses, " in lines[-1]
    assert " s saved against compiling again; " in lines[-1]
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
    listed = {
        line.split()[1]: line.split()
        for line in epctx("cache", "ls").out.splitlines()[1:3]
    }

    _, qnn, damaged, _, total, *_ = epctx("cache", "stats").out.splitlines()

    _, number, unit = damaged.split()[-3:]
    assert damaged.split()[:3] == ["(damaged)", "0", "0"]
    assert (qnn.split()[-3], damaged.split()[-3]) == ("1", "1")
    assert [number, unit] == listed["(damaged)"][3:5]
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


@pytest.mark.parametrize("command", ["lookup", "why"])
def test_a_miss_says_whether_the_shared_cache_has_the_entry(
    epctx, model, tmp_path, monkeypatch, command
):
    shared = tmp_path / "shared"
    options = SessionOptions()
    options.add_provider("QNN")
    compile_cached(model, options, tmp_path / "another", shared_cache=str(shared))
    monkeypatch.setenv("EPCTX_CACHE_SHARED", str(shared))
    arguments = ("cache", command, model, "--cache-dir", tmp_path / "mine", "--ep")

    there = epctx(*arguments, "QNN")
    nowhere = epctx(*arguments, "OpenVINO")

    assert f", but in the shared cache {shared}, from where the next load" in there.out
    assert f", nor in the shared cache {shared}." in nowhere.out
    assert epctx(*arguments, "QNN", "--json").json["shared"] is True
    assert epctx(*arguments, "OpenVINO", "--json").json["shared"] is False


def test_a_shared_cache_that_cannot_be_asked_is_warned_of(
    epctx, model, tmp_path, monkeypatch
):
    monkeypatch.setenv("EPCTX_CACHE_SHARED", "nosuchprotocol://bucket")

    said = epctx(
        "cache", "lookup", model, "--ep", "QNN", "--cache-dir", tmp_path / "mine"
    )

    assert said.code == 1
    assert "warning: entry " in said.err
    assert "cannot be looked for in the shared cache nosuchprotocol://bucket" in (
        said.err
    )
    assert "nor in" not in said.out


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

    assert said.out == f"{model} is not in {folder} (the cache is empty).\n"


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
