"""Reports of `epctx cache` about entries with records that somebody else wrote: nothing
in them forges a line, and long values are cut.
"""

from __future__ import annotations

import dataclasses
import time

import pytest
from epctx_cache.store import read_record
from support.caches import _cache, _model  # noqa: F401 - fixtures
from support.small_models import chain, saved

pytestmark = pytest.mark.internal


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


def test_why_shows_times_of_change_as_dates(run_command, cache, model, change):
    parts = read_record(cache["new"].parent).ingredients
    states = {**parts["distributions"], "acme": "0.1.0, edited 1795782162890475656/14"}
    for name in cache:
        change(name, ingredients={**parts, "distributions": states, "engine": "x"})

    said = run_command("cache", "why", model, "--ep", "QNN", "-p", "QNN.htp_arch=75")

    date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1795782162))
    assert f"entry  0.1.0, edited {date}, 14 files" in lines_of(said)


def test_why_cuts_long_values_where_they_differ(run_command, cache, model, change):
    prefix, long = "ep.context_node_name_prefix", "x" * 120
    parts = read_record(cache["new"].parent).ingredients
    session = {**parts["session"], prefix: f"{long}_entry"}
    for name in cache:
        change(name, ingredients={**parts, "session": session, "z" * 500: "y" * 500})

    said = run_command(
        "cache", "why", model, "--ep", "QNN", "-c", f"{prefix}={long}_now"
    )

    _, *lines = said.out.splitlines()
    assert max(map(len, lines)) < 120
    assert {f"now    …{'x' * 19}_now", f"entry  …{'x' * 19}_entry"} <= {*lines_of(said)}
    assert f"entry  {'y' * 100}…" in lines_of(said)


def test_no_name_in_an_entry_forges_a_line_of_a_report(
    run_command, cache, model, change, tmp_path
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

    said = [run_command("cache", *command) for command in commands]

    lines = [line for each in said for line in each.out.splitlines()]
    assert not [line for line in lines if line.startswith("FORGED")]
    assert [line for line in lines if "FORGED" in line]
    assert all(line.isprintable() for line in lines)
