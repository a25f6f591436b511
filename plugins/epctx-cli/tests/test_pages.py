"""`epctx docs`: the pages of the documentation, where epctx runs."""

from __future__ import annotations

import re

import pytest
from epctx_cli import pages
from support.cli_fixtures import on_a_terminal
from support.folders import ROOT

pytestmark = pytest.mark.internal


def test_the_list_names_each_page_for_users_with_its_title_and_more_on_request(epctx):
    listed = epctx("docs")
    in_full = epctx("docs", "-v")

    assert (listed.code, in_full.code) == (0, 0)
    assert re.search(r"^  errors +Errors$", listed.out, re.MULTILINE)
    assert re.search(
        r"^  errors +Errors\. Every error .* is an `epctx.EpctxError`\.$",
        in_full.out,
        re.MULTILINE,
    )
    assert "architecture" not in listed.out


def test_the_list_has_the_parts_and_the_order_of_the_site(epctx):
    blocks = epctx("docs").out.split("\n\n")
    parts = {
        block.splitlines()[0]: [line.split()[0] for line in block.splitlines()[1:]]
        for block in blocks
    }

    assert parts["Start"][:2] == ["install", "first-context-model"]
    assert parts["Start"][2:] == ["from-onnxruntime", "questions"]
    assert [*parts][1:8] == [
        "Start",
        "How-to: Applications",
        "How-to: Models",
        "How-to: EPs",
        "Reference: Hooks of EPs",
        "Reference",
        "Explanation",
    ]


def test_only_the_front_page_is_in_no_part():
    of_no_part = [page.name for page in pages.read_pages().values() if not page.part]

    assert of_no_part == ["index"]


def test_a_word_prints_the_page_that_has_it_in_its_title_or_lists_those(epctx):
    one = epctx("docs", "ctrl-c")
    several = epctx("docs", "cach", "--json")

    assert one.out.startswith("# Processes, forks and Ctrl-C\n")
    names = [page["name"] for page in several.json["pages"]]
    assert names == ["cache", "shared-cache"]
    assert "text" not in several.json


def test_a_word_that_no_title_has_is_looked_for_in_headings(epctx):
    names = [page["name"] for page in epctx("docs", "progress", "--json").json["pages"]]

    assert "commands" in names
    assert "serving" in names


@pytest.mark.parametrize("word", ["docker", "gpu", "fallback", "driver", "quantised"])
def test_a_word_that_no_heading_has_is_looked_for_in_the_text(epctx, word):
    said = epctx("docs", word, "--json")

    assert said.code == 0
    assert said.json["pages"]


def test_every_page_of_the_repository_is_listed_but_those_about_work_on_epctx(epctx):
    listed = {page["name"] for page in epctx("docs", "--json").json["pages"]}
    written = [path.stem for path in (ROOT / "docs").rglob("*.md")]

    assert len(written) == len(set(written))
    assert set(written) - listed == {
        "api",
        "architecture",
        "architecture-changes",
        "architecture-stages",
        "benchmarks",
        "benchmarks-loads",
        "benchmarks-runs",
        "blocks",
        "conformance-results",
        "conformance-suites",
        "fuzzing",
        "onnx-faults",
        "plugin-api",
        "programs-of-others",
        "stress",
        "zoo",
    }
    assert listed < set(written)


def test_a_page_is_printed_as_markdown_without_what_only_tests_read(epctx):
    shown = epctx("docs", "options").out

    assert shown.startswith("# Session options\n")
    assert "| `ep.context_enable` |" in shown
    assert "<!--" not in epctx("docs", "real-hardware").out


def test_each_page_has_a_title_and_a_sentence_in_one_line(epctx):
    for page in epctx("docs", "--json").json["pages"]:
        assert re.fullmatch(r"[^\n`#]+", page["title"].replace("`", "")), page
        assert re.fullmatch(r"[A-Z`e].{15,}\.", page["summary"]), page
        assert "](" not in page["summary"], page


def test_links_to_pages_become_words_and_the_pages_are_named_at_the_end(epctx):
    shown = epctx("docs", "errors").out

    assert "See session options.\n" in shown
    seen = shown.splitlines()[-1]
    assert seen.startswith("See also: ")
    assert "`epctx docs options`" in seen
    assert "](" not in shown


def test_links_to_other_hosts_stay(epctx):
    _, shown = on_a_terminal("docs", "profiles")

    assert "[Perfetto](https://ui.perfetto.dev)" in epctx("docs", "profiles").out
    assert "https://ui.perfetto.dev" in shown


def test_nothing_points_to_a_site_that_is_not_published(epctx):
    said = [epctx("docs"), epctx("docs", "errors"), epctx()]

    assert all("http" not in each.out for each in said)
    assert "address" not in epctx("docs", "errors", "--json").json["pages"][0]
    assert "`epctx docs` lists the pages of the documentation." in said[-1].out


def test_an_unknown_page_is_refused(epctx):
    done = epctx("docs", "erorrs")

    assert done.code == 2
    assert "there is no page 'erorrs'. Did you mean 'errors'?" in done.err
    assert "`epctx docs` lists the pages." in done.err


def test_an_installation_without_pages_says_so(epctx, monkeypatch, tmp_path):
    monkeypatch.setattr(pages, "FOLDERS", (tmp_path / "none",))

    done = epctx("docs")

    assert done.code == 2
    assert "this installation of epctx-cli has no pages" in done.err
    assert "pip install --force-reinstall epctx-cli" in done.err


def test_a_terminal_gets_a_page_laid_out_in_its_width():
    code, shown = on_a_terminal("docs", "errors", width=60)

    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]
    assert code == 0
    assert max(map(len, lines)) <= 60
    assert "## `PluginError`" not in shown
    assert any(line.strip() == "PluginError" for line in lines)


def test_no_colour_and_dumb_terminals_are_honoured():
    _, plain = on_a_terminal("docs", "errors", NO_COLOR="1")
    _, dumb = on_a_terminal("docs", "errors", TERM="dumb")
    _, ascii_only = on_a_terminal("docs", "errors", PYTHONIOENCODING="ascii")

    assert "\x1b[" not in plain
    assert "\x1b" not in dumb
    assert "## `PluginError`" in ascii_only


def test_the_list_keeps_the_names_whole_on_a_narrow_terminal():
    _, shown = on_a_terminal("docs", width=60)

    assert "differences-from-onnxruntime" in shown
