"""The cache on disk: what is kept, found again, and never found."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from epctx_sim_sdk.session import SimSession

pytestmark = pytest.mark.internal


@pytest.fixture
def compiled_partitions(monkeypatch):
    """The partitions that the simulated compiler really compiled."""
    seen = []
    compile_one = SimSession._convert

    def watched(self, partition):
        seen.append(partition)
        return compile_one(self, partition)

    monkeypatch.setattr(SimSession, "_convert", watched)
    return seen


def entries(folder):
    return sorted(
        path.relative_to(folder) for path in folder.rglob("*") if path.is_file()
    )


def test_without_cache_dir_nothing_is_kept(bench, tmp_path):
    bench.compile(bench.two_partitions())

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "net_ctx.onnx",
        "net_vitisai.bin",
    ]


def test_a_second_compile_takes_what_the_first_kept_and_writes_the_same(
    bench, tmp_path, compiled_partitions
):
    cache = tmp_path / "cache"
    bench.compile(bench.two_partitions(channels=64), cache_dir=str(cache))
    first, count = bench.binary().read_bytes(), len(compiled_partitions)

    bench.compile(bench.two_partitions(channels=64), cache_dir=str(cache))

    assert count == 2
    assert len(compiled_partitions) == 2
    assert bench.binary().read_bytes() == first
    assert len(entries(cache)) == 2
    assert {path.parts[0] for path in entries(cache)} == {"model-net"}


def test_cached_partitions_run_in_a_session(bench, tmp_path, compiled_partitions):
    model = bench.two_partitions(channels=64)
    onnx.save(model, tmp_path / "net.onnx")
    options = {"cache_dir": str(tmp_path / "cache"), "cache_key": "mine"}

    first, second = (
        bench.run(tmp_path / "net.onnx", bench.x_for(model), **options)[0]
        for _ in range(2)
    )

    assert np.array_equal(first, second)
    assert len(compiled_partitions) == 2
    assert {path.parts[0] for path in entries(tmp_path / "cache")} == {"mine"}


@pytest.mark.parametrize(
    "change",
    [
        {"runtime_vaip_version": "sim-1.7.1"},
        {"runtime_xcompiler_version": "sim-2.52.0"},
        {"runtime_xrt_version": "sim-1.8.1"},
        {"target": "X1"},
    ],
    ids=str,
)
def test_another_version_never_meets_an_old_entry(
    bench, tmp_path, compiled_partitions, change
):
    options = {"cache_dir": str(tmp_path / "cache"), "cache_key": "mine"}
    bench.compile(bench.two_partitions(), **options)

    bench.compile(bench.two_partitions(), **options, **change)

    assert len(compiled_partitions) == 4


def test_a_changed_model_under_the_same_key_is_compiled(
    bench, tmp_path, compiled_partitions
):
    options = {"cache_dir": str(tmp_path / "cache"), "cache_key": "mine"}
    bench.compile(bench.two_partitions(seed=1), **options)

    bench.compile(bench.two_partitions(seed=2), **options)

    assert len(compiled_partitions) == 4


def damaged(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        damaged,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"junk"),
    ],
)
def test_a_damaged_entry_is_compiled_again_and_replaced(
    bench, tmp_path, compiled_partitions, damage, caplog
):
    options = {"cache_dir": str(tmp_path / "cache")}
    bench.compile(bench.two_partitions(channels=64), **options)
    expected = bench.binary().read_bytes()
    for path in (tmp_path / "cache").rglob("*.sim"):
        damage(path)

    with caplog.at_level(logging.WARNING, "epctx"):
        bench.compile(bench.two_partitions(channels=64), **options)
    bench.compile(bench.two_partitions(channels=64), **options)

    assert len(compiled_partitions) == 4
    assert bench.binary().read_bytes() == expected
    assert "the cache entry" in caplog.text


def test_a_folder_that_cannot_be_written_is_reported_and_the_compile_succeeds(
    bench, tmp_path, caplog
):
    (tmp_path / "cache").write_text("a file")

    with caplog.at_level(logging.WARNING, "epctx"):
        path, report = bench.compile(
            bench.two_partitions(), cache_dir=str(tmp_path / "cache")
        )

    assert len(report.partitions) == 2
    assert path.exists()
    assert "nothing is kept in cache_dir" in caplog.text


def test_loading_writes_nothing_into_the_cache(bench, tmp_path):
    path, _ = bench.compile(bench.two_partitions())

    bench.run(
        path, bench.x_for(bench.two_partitions()), cache_dir=str(tmp_path / "cache")
    )

    assert not (tmp_path / "cache").exists()


def test_with_a_key_the_cache_is_encrypted_too(bench, tmp_path, compiled_partitions):
    options = {"cache_dir": str(tmp_path / "cache"), "encryption_key": bench.key}

    for _ in range(2):
        bench.compile(bench.two_partitions(), **options)

    assert len(compiled_partitions) == 2
    for path in entries(tmp_path / "cache"):
        assert b"EPCTXSIM" not in (tmp_path / "cache" / path).read_bytes()


def test_entries_of_another_key_or_of_none_are_not_used(
    bench, tmp_path, compiled_partitions
):
    cache = str(tmp_path / "cache")

    for key in (bench.key, "ab" * 32, ""):
        bench.compile(bench.two_partitions(), cache_dir=cache, encryption_key=key)

    assert len(compiled_partitions) == 6


def test_the_name_of_a_model_never_leads_out_of_the_cache(bench, tmp_path):
    model = bench.two_partitions()
    bench.compile(model, name="..net", cache_dir=str(tmp_path / "cache"))

    (folder,) = (tmp_path / "cache").iterdir()
    assert folder.name == "model-..net"
    assert folder.parent == tmp_path / "cache"
