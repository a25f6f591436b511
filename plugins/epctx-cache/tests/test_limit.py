"""The size limit: who goes first, who stays, and that nobody who uses an entry is
disturbed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from epctx_cache.settings import DEFAULT_SIZE, cache_settings, parse_size
from epctx_cache.store import INDEX_KEPT, clear, collect
from support.small_models import chain, example, saved

import epctx_core as epctx

pytestmark = pytest.mark.internal


def used(cache, key, ago):
    stamp = cache.store.entry_folder(key) / "used"
    moment = time.time() - ago
    os.utime(stamp, (moment, moment))


@pytest.fixture
def models(tmp_path):
    return [
        saved(chain(["Relu", "Add"], seed=seed), tmp_path / f"{seed}.onnx")
        for seed in range(4)
    ]


@pytest.fixture
def keys(cache, models):
    """Three entries; the second was used longest ago, the first last."""
    found = [cache.key(model) for model in models[:3]]
    for key, ago in zip(found, (100, 300, 200), strict=True):
        used(cache, key, ago)
    return found


def size_of(cache):
    return {entry.key: entry.bytes for entry in cache.store.entries()}


def test_what_was_used_longest_ago_goes_first(cache, keys):
    total = sum(size_of(cache).values())

    collected = collect(cache.store, total - 1)

    assert collected.removed == [keys[1]]
    assert cache.keys == {keys[0], keys[2]}
    assert collected.bytes == sum(size_of(cache).values())


def test_nothing_goes_while_everything_fits(cache, keys):
    collected = collect(cache.store, sum(size_of(cache).values()))

    assert collected.removed == []
    assert cache.keys == set(keys)


def test_a_compile_makes_room_and_keeps_what_it_made(cache, keys, models):
    newest = cache.key(models[3], cache_size=0)

    assert cache.keys == {newest}


def test_a_hit_makes_no_room_and_counts_as_a_use(cache, keys, models):
    cache.path(models[1], cache_size=0)

    assert cache.keys == set(keys)
    collect(cache.store, max(size_of(cache).values()))
    assert cache.keys == {keys[1]}


def test_a_use_is_stamped_once_a_minute(cache, keys, models):
    stamp = cache.store.entry_folder(keys[0]) / "used"
    used(cache, keys[0], 30)
    before = stamp.stat().st_mtime_ns

    cache.path(models[0])
    assert stamp.stat().st_mtime_ns == before
    used(cache, keys[0], 90)
    cache.path(models[0])

    assert time.time() - stamp.stat().st_mtime < 60


def test_an_entry_that_is_being_loaded_stays(cache, keys):
    with cache.store.open(keys[1]):
        assert collect(cache.store, 0).removed == [keys[2], keys[0]]
        assert cache.keys == {keys[1]}

    assert collect(cache.store, 0).removed == [keys[1]]


def test_a_session_outlives_its_entry(cache, models):
    x = example()
    with cache.session(models[0]) as session:
        before = session.run(None, {"x": x})[0]
        clear(cache.store)

        assert cache.keys == set()
        assert np.array_equal(session.run(None, {"x": x})[0], before)


def test_what_killed_processes_left_is_swept(cache, keys):
    staging = cache.folder / "v1" / "staging"
    (staging / "removed-0123").mkdir()
    (staging / "removed-0123" / "half").write_bytes(b"x")
    (staging / ("0" * 64)).mkdir()
    (cache.folder / "v1" / "locks" / ("0" * 64)).write_text("{}")

    collect(cache.store, 1 << 30)

    assert list(staging.iterdir()) == []
    assert list((cache.folder / "v1" / "locks").iterdir()) == []
    assert cache.keys == set(keys)


def test_two_processes_may_sweep_the_same_leftovers(cache, keys, monkeypatch):
    outgoing = cache.folder / "v1" / "staging" / "removed-0123"
    outgoing.mkdir()
    for number in range(3):
        (outgoing / str(number)).write_bytes(b"x")
    original, others = os.unlink, []

    def another_was_faster(path, **keywords):
        if not others and Path(path).parent == outgoing:
            others.append(path)
            original(path)
        original(path, **keywords)

    monkeypatch.setattr(os, "unlink", another_was_faster)

    collect(cache.store, 1 << 30)

    assert len(others) == 1
    assert not outgoing.exists()


def test_the_index_forgets_what_was_not_asked_for_in_a_season(
    cache, models, none_too_new
):
    for model in models[:2]:
        cache.path(model)
    records = sorted((cache.folder / "v1" / "index").rglob("*.json"))
    long_ago = time.time() - INDEX_KEPT - 1
    os.utime(records[0], (long_ago, long_ago))

    collect(cache.store, 1 << 30)

    assert [record.exists() for record in records] == [False, True]


def test_clear_leaves_no_entry_and_nothing_in_the_index(
    cache, keys, models, none_too_new
):
    cache.path(models[0])

    collected = clear(cache.store)

    assert set(collected.removed) == set(keys)
    assert (collected.kept, collected.bytes) == (0, 0)
    assert list((cache.folder / "v1" / "index").rglob("*.json")) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("2K", 2048),
        ("512M", 512 << 20),
        ("10 GiB", 10 << 30),
        ("1t", 1 << 40),
    ],
)
def test_a_size_is_read_as_people_write_it(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5G", "many", "1X", "9" * 30])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(epctx.InvalidArgument, match="is not a size"):
        parse_size(text)


def test_arguments_win_over_the_environment_and_that_over_defaults(tmp_path):
    said = {
        "EPCTX_CACHE_DIR": str(tmp_path / "a"),
        "EPCTX_CACHE_SIZE": "1M",
        "EPCTX_CACHE_TRUST_STAT": "0",
    }

    default = cache_settings(environment={"HOME": "/home/user"})
    environment = cache_settings(environment=said)
    arguments = cache_settings(tmp_path / "b", 7, True, environment=said)

    assert (default.folder.as_posix(), default.size, default.trust_stat) == (
        "/home/user/.cache/epctx", DEFAULT_SIZE, True,
    )  # fmt: skip
    assert (environment.folder, environment.size, environment.trust_stat) == (
        tmp_path / "a",
        1 << 20,
        False,
    )
    assert (arguments.folder, arguments.size, arguments.trust_stat) == (
        tmp_path / "b",
        7,
        True,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": -1},
        {"size": True},
        {"size": "1G"},
        {"trust_stat": "no"},
        {"folder": b"x"},
    ],
)
def test_settings_that_are_none_are_refused(wrong):
    with pytest.raises(epctx.InvalidArgument):
        cache_settings(**wrong)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("EPCTX_CACHE_TRUST_STAT", "yes"), ("EPCTX_CACHE_SIZE", "abc")],
)
def test_a_wrong_value_in_the_environment_is_named(monkeypatch, model, variable, value):
    monkeypatch.setenv(variable, value)

    with pytest.raises(epctx.InvalidArgument, match=f"{variable} is '{value}'"):
        epctx.load_or_compile(model)


def test_the_environment_says_where_the_cache_is(monkeypatch, model, tmp_path):
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "named"))

    assert epctx.compile_cached(model).is_relative_to(tmp_path / "named")


def test_a_link_among_what_was_removed_is_removed_and_not_what_it_leads_to(
    cache, model, tmp_path
):
    """Others may be able to write into a cache's folder."""
    cache.path(model)
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "precious").touch()
    link = cache.folder / "v1" / "staging" / "removed-0123456789abcdef"
    link.symlink_to(tmp_path / "private")

    cache.store.sweep()

    assert not link.is_symlink()
    assert (tmp_path / "private" / "precious").exists()
