"""`epctx cache`: what is kept, whether it is sound, and making room."""

from __future__ import annotations

import errno
import os
import time

import pytest
from end_to_end.small_models import chain, saved

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
    assert "it cannot be removed: [Errno 30]" in said.out
    assert "1 entry sound, 1 damaged" in said.out


def test_gc_removes_what_was_used_longest_ago(epctx, cache):
    said = epctx("cache", "gc", "--size", "6K", "--json")

    assert said.code == 0
    assert said.json["removed"] == [cache["old"].parent.name]
    assert said.json["kept"] == 1
    assert said.json["bytes"] <= 6 << 10
    assert cache["new"].exists()


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
