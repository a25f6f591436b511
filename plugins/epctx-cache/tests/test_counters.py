"""Hits, misses and the time that hits saved: counted by many processes, and kept when
entries are removed.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from epctx_cache import cache_statistics
from epctx_cache.counters import keep_hits
from epctx_cache.store import clear, read_record
from support.sim_eps import QNN, with_eps
from support.small_models import chain, saved

import epctx_core as epctx

pytestmark = pytest.mark.internal

PROGRAM = Path(__file__).with_name("asking.py")


def statistics(cache):
    return cache_statistics(cache.folder)


def counts(cache):
    found = statistics(cache)
    return found.hits, found.misses


def log_of(cache):
    return cache.folder / "v1" / "counters.jsonl"


def test_a_cache_that_does_not_exist_has_no_use_and_is_not_made(cache):
    found = statistics(cache)

    assert (found.hits, found.misses, found.seconds_saved) == (0, 0, 0.0)
    assert found.by_eps == ()
    assert not cache.folder.exists()


def test_a_compile_is_a_miss_and_each_later_request_a_hit(cache, model):
    cache.session(model).close()
    assert counts(cache) == (0, 1)

    cache.session(model).close()
    cache.path(model)

    assert counts(cache) == (2, 1)


def test_a_hit_saves_the_seconds_that_its_entry_took(cache, model):
    for _ in range(4):
        folder = cache.path(model).parent

    seconds = read_record(folder).seconds
    assert statistics(cache).seconds_saved == pytest.approx(3 * seconds, abs=1e-3)


def test_use_is_counted_by_eps_in_their_order(cache, model):
    both = with_eps("QNN", "OpenVINO")
    for _ in range(2):
        cache.path(model, with_eps(QNN))
    for _ in range(3):
        cache.path(model, both)

    found = statistics(cache)

    assert [(usage.eps, usage.hits, usage.misses) for usage in found.by_eps] == [
        (("QNNExecutionProvider",), 1, 1),
        (("QNNExecutionProvider", "OpenVINOExecutionProvider"), 2, 1),
    ]
    stored = list(cache.store.entries())
    assert (found.entries, found.bytes) == (2, sum(entry.bytes for entry in stored))
    assert [usage.entries for usage in found.by_eps] == [1, 1]


def test_a_compile_that_fails_and_a_refused_one_are_not_counted(cache, model):
    options = with_eps(QNN)
    options.add_session_config_entry("session.disable_model_compile", "1")

    with pytest.raises(epctx.ModelRequiresCompilation):
        cache.session(model, options)

    assert counts(cache) == (0, 0)


def test_an_entry_that_cannot_be_loaded_is_a_miss_and_no_hit(cache, model):
    binary = cache.path(model).with_name("model_qnn.bin")
    data = bytearray(binary.read_bytes())
    data[len(data) // 2] ^= 0x20
    binary.write_bytes(data)

    cache.session(model).close()

    assert counts(cache) == (0, 2)


def test_hits_of_removed_entries_stay_counted(cache, model):
    for _ in range(3):
        cache.path(model)
    before = statistics(cache)

    clear(cache.store)

    after = statistics(cache)
    assert (after.hits, after.misses) == (2, 1)
    assert after.seconds_saved == pytest.approx(before.seconds_saved)
    assert (after.entries, after.bytes) == (0, 0)


def test_hits_that_were_logged_before_a_kill_are_not_counted_again(cache, model):
    for _ in range(3):
        folder = cache.path(model).parent
    record = read_record(folder)
    outgoing = cache.folder / "v1" / "staging" / "removed-0123456789abcdef"
    folder.rename(outgoing)
    # Then the process was killed.
    keep_hits(log_of(cache), outgoing, record.eps, record.seconds)

    cache.store.sweep()

    assert not outgoing.exists()
    assert counts(cache) == (2, 1)


def test_hits_of_an_entry_that_a_killed_process_moved_out_are_counted(cache, model):
    for _ in range(3):
        folder = cache.path(model).parent
    folder.rename(cache.folder / "v1" / "staging" / "removed-0123456789abcdef")

    cache.store.sweep()

    assert counts(cache) == (2, 1)


@pytest.mark.parametrize(
    "damage",
    [
        b"{",
        b"[]",
        b"null",
        b'{"removed": "x"}',
        b"\xff\x00",
        b'{"miss": 7}',
        b"[" * 9999,
        b'{"miss": "QNN"}',
        b'{"miss": [7]}',
        *(
            b'{"removed": "x", "eps": ["QNNExecutionProvider"], "hits": %s, '
            b'"seconds": %s}' % numbers
            for numbers in (
                (b"Infinity", b"1"),
                (b"NaN", b"1"),
                (b"-1", b"1"),
                (b"1.5", b"1"),
                (b'"1"', b"1"),
                (b"true", b"1"),
                (b"1" + b"0" * 400, b"1.0"),
                (b"1", b"Infinity"),
                (b"1", b"-1"),
                (b"1", b"1e308"),
                (b"1", b"NaN"),
                (b"1", b'"1"'),
            )
        ),
    ],
)
def test_a_damaged_line_of_the_log_costs_no_other_one(cache, model, damage):
    cache.path(model)
    log = log_of(cache)
    log.write_bytes(log.read_bytes() + damage)

    cache.path(model, with_eps("OpenVINO"))

    assert counts(cache) == (0, 2)


def test_an_entry_without_a_readable_record_is_counted_as_damaged(cache, model):
    cache.path(model)
    cache.path(model)
    (entry,) = cache.store.entries()
    (entry.folder / "entry.json").write_text("{")

    found = statistics(cache)

    assert (found.damaged, found.entries, found.hits) == (1, 1, 0)
    assert found.bytes > 0


def test_a_cache_that_can_only_be_read_has_hits_that_nobody_counts(
    cache, model, monkeypatch
):
    cache.path(model)
    original = Path.open

    def refuse(path, mode="r", *arguments, **keywords):
        if "a" in mode:
            raise PermissionError(path)
        return original(path, mode, *arguments, **keywords)

    monkeypatch.setattr(Path, "open", refuse)
    cache.session(model).close()

    assert counts(cache) == (0, 1)
    assert cache.warnings == []


def test_two_processes_lose_no_hit_while_entries_are_removed(cache, model, tmp_path):
    others = [
        saved(chain(["Relu", "Add"], seed=n), tmp_path / f"{n}.onnx") for n in range(6)
    ]
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(model), str(cache.folder), "40"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for other in others:
        for _ in range(3):
            cache.path(other)
        cache.store.remove(cache.key(other))
    said = [json.loads(process.communicate(timeout=300)[0]) for process in processes]

    compiles = sum(answer["compiles"] for answer in said)
    assert compiles == 1
    assert counts(cache) == (2 * 40 - 1 + 6 * 3, 1 + 6)


def test_thousands_of_entries_are_added_up(cache, model):
    cache.path(model)
    (entry,) = cache.store.entries()
    record = entry.record
    for number in range(2_000):
        key = f"{number:064x}"
        folder = cache.store.entry_folder(key)
        folder.mkdir(parents=True, mode=0o700)
        copy = dataclasses.replace(record, key=key, seconds=2.0)
        (folder / "entry.json").write_bytes(copy.dump())
        (folder / "hits").write_bytes(b"+" * 5)

    found = statistics(cache)

    assert (found.entries, found.hits) == (2_001, 10_000)
    assert found.seconds_saved == 20_000.0


def test_statistics_are_frozen_and_have_a_form_for_json(cache, model):
    for _ in range(2):
        cache.path(model)

    found = statistics(cache)

    assert json.loads(json.dumps(found.as_dict())) == {
        "cache": str(cache.folder),
        "hits": 1,
        "misses": 1,
        "seconds_saved": found.seconds_saved,
        "entries": 1,
        "bytes": found.bytes,
        "damaged": 0,
        "by_eps": [
            {
                "eps": ["QNNExecutionProvider"],
                "hits": 1,
                "misses": 1,
                "seconds_saved": found.seconds_saved,
                "entries": 1,
                "bytes": found.bytes,
            }
        ],
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.hits = 2


def test_a_file_where_the_cache_should_be_is_an_error_that_names_it(cache):
    cache.folder.write_text("")

    with pytest.raises(epctx.Fail, match="cannot be used: Not a directory") as caught:
        statistics(cache)

    assert caught.value.path == cache.folder


def test_a_cache_that_cannot_be_read_is_an_error_that_names_it(cache, model):
    cache.path(model)
    log_of(cache).unlink()
    log_of(cache).mkdir()

    with pytest.raises(epctx.Fail, match="cannot be used"):
        statistics(cache)
