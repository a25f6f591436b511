"""The file that holds a page, without a browser."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from importlib import resources

import pytest
from browser.samples import HOSTILE, chain_page, hostile_page, small_page
from epctx_report import page
from epctx_report.page import assemble


def test_same_data_gives_the_same_bytes():
    assert assemble(small_page()) == assemble(small_page())


def test_page_holds_its_data_unchanged():
    text = assemble(hostile_page())
    packed = re.search(r'id="data">([^<]*)</script>', text)[1]
    assert json.loads(gzip.decompress(base64.b64decode(packed))) == hostile_page()


def test_policy_allows_exactly_the_blocks_of_the_page():
    text = assemble(small_page())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    blocks = re.findall(r"<(script|style)>(.*?)</\1>", text, re.DOTALL)
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()}'"
        for _, block in blocks
    }
    assert [kind for kind, _ in blocks] == ["style", "script", "script"]
    assert set(re.findall(r"'sha256-[^']*'", policy)) == hashes
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy


@pytest.mark.parametrize("title", HOSTILE, ids=range(len(HOSTILE)))
def test_title_is_text_whatever_the_model_is_called(title):
    text = assemble(small_page() | {"title": title})
    written = re.search(r"<title>(.*?)</title>", text, re.DOTALL)[1]
    assert not re.search("[<>\u202e\u0000\n]", written)
    assert len(written) < 1500
    text.encode("utf-8")


def test_page_of_100000_nodes_is_below_2_mb():
    assert len(assemble(chain_page())) < 2_000_000


def test_dagre_is_the_file_whose_digest_is_recorded():
    folder = resources.files("epctx_report") / "assets" / "dagre"
    recorded = (folder / "SHA256").read_text().split()[0]
    code = (folder / "dagre.min.js").read_bytes()
    assert hashlib.sha256(code).hexdigest() == recorded


def test_every_script_of_the_package_is_inlined():
    folder = resources.files("epctx_report") / "assets"
    found = {entry.name for entry in folder.iterdir() if entry.name.endswith(".js")}
    assert found == set(page.SCRIPTS)


def test_scripts_never_make_markup_of_text():
    folder = resources.files("epctx_report") / "assets"
    for name in page.SCRIPTS:
        code = (folder / name).read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|</",
            code,
        ), name
