"""The page of a batch: its cells, links and sums, hostile names, and its size."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from epctx_batch import BatchResult, TaskError, TaskResult, run_batch
from epctx_batch.page import assemble, write_page
from epctx_cli.command import ExitCode
from support.cli_fixtures import hide_package
from support.folders import REAL

pytestmark = pytest.mark.internal

CONV = REAL / "conv.onnx"
FLEET = """
[batch]
cache_dir = "cache"
workers = 2

[[model]]
path = "*.onnx"

[[target]]
name = "phone"
eps = ["QNN"]
"""
HOSTILE = [
    "</style><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<!--",
    "&lt;b&gt;",
    "right\u202eto left",
    "two\nlines and a NUL\u0000",
    "\ud800 alone",
    "long" * 25_000,
]
VOID = {"meta", "link", "input"}


class Reader(HTMLParser):
    """Elements, links and rows of a page, whose elements must all be closed."""

    def __init__(self):
        super().__init__()
        self.tags = set()
        self.attributes = set()
        self.links = []
        self.rows = []
        self.marked = []
        self.words = ""
        self.open = []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)
        if tag == "a":
            self.links.append(dict(attrs)["href"])
        if tag == "tr":
            self.rows.append([])
            self.marked.append(("class", "bad") in attrs)
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.words += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def read(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def make_result(model, target, message=None, number=0):
    return TaskResult(
        id=f"model-{target[:20].encode().hex() if number else 'x'}-{number:08x}",
        model=model,
        target=target,
        state="done" if message is None else "failed",
        was_cached=False,
        seconds=1.25,
        nodes={"QNNExecutionProvider": 2, "CPUExecutionProvider": 3},
        output=None if message else "model_ctx.onnx",
        bytes=2048,
        error=message and TaskError(code="EP_FAIL", message=message, hint=""),
        versions={},
    )


def make_batch(folder, tasks):
    return BatchResult(
        fleet=str(folder / "fleet.toml"), output=str(folder), ok=False, tasks=tasks
    )


@pytest.fixture
def folder(tmp_path):
    """A folder with a good model, a bad one, and a fleet of one target."""
    shutil.copy(CONV, tmp_path / "one.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path


def test_the_page_has_a_row_for_each_model_and_links_to_pages_and_logs(folder):
    result = run_batch(folder / "fleet.toml", html=True)

    page = Path(result.page)
    reader = read(page.read_text("utf-8"))
    assert page == folder / "fleet-results" / "index.html"
    head, bad, one = reader.rows
    assert head == ["model", "phone"]
    assert bad[0] == "bad.onnx"
    assert bad[1].startswith("failed: INVALID_PROTOBUF")
    assert "is not an ONNX model" in bad[1]
    assert one[0] == "one.onnx"
    assert re.fullmatch(r"1\d+\.\d KiB, \d+\.\d\d s", one[1])
    assert reader.marked == [False, True, False]
    assert [link.partition("/")[2] for link in reader.links] == [
        "log.txt",
        "report.html",
    ]
    assert all((page.parent / link).is_file() for link in reader.links)
    sums = "2 tasks: 1 done, of which 0 were in the cache; 1 failed; "
    assert sums in reader.words


def test_a_batch_that_goes_on_says_what_was_in_the_cache(folder):
    run_batch(folder / "fleet.toml")

    result = run_batch(folder / "fleet.toml", html=True)

    reader = read(Path(result.page).read_text("utf-8"))
    assert reader.rows[2][1].endswith("KiB, from the cache")
    assert "1 done, of which 1 were in the cache" in reader.words


def test_without_the_option_there_is_no_page_and_none_of_an_earlier_run(folder):
    run_batch(folder / "fleet.toml", html=True)

    result = run_batch(folder / "fleet.toml")

    assert result.page is None
    assert list((folder / "fleet-results").glob("*/report.html")) == []


def test_a_page_that_cannot_be_made_fails_no_task_and_its_log_says_why(
    folder, monkeypatch
):
    """Here in the processes of tasks, such as on workers without epctx-report."""
    site = folder / "site"
    site.mkdir()
    hide_package("epctx_report", site)
    run_batch(folder / "fleet.toml", html=True)
    monkeypatch.syspath_prepend(site)

    result = run_batch(folder / "fleet.toml", html=True)

    own = Path(result.tasks[1].output).parent
    assert result.tasks[1].state == "done"
    assert "its report page was not made" in (own / "log.txt").read_text()
    links = read(Path(result.page).read_text("utf-8")).links
    assert links == [f"{task.id}/log.txt" for task in result.tasks]


def test_a_page_that_ends_the_process_of_its_task_fails_no_task(folder, monkeypatch):
    """As a large one may, where memory is short."""
    run_batch(folder / "fleet.toml", html=True)
    package = folder / "site" / "epctx_report"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "report.py").write_text("import os\n\nos._exit(9)\n")
    monkeypatch.syspath_prepend(package.parent)

    result = run_batch(folder / "fleet.toml", html=True)

    bad, one = result.tasks
    assert bad.state == "failed"
    assert one.state == "done"
    assert not Path(one.output).with_name("report.html").exists()


def test_without_epctx_report_nothing_is_compiled(epctx, folder, monkeypatch, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    hide_package("epctx_report", site)
    monkeypatch.chdir(folder)
    for name in [name for name in sys.modules if name.startswith("epctx_report")]:
        monkeypatch.delitem(sys.modules, name)

    said = epctx("batch", "fleet.toml", "--html", path=[site])

    assert said.code == ExitCode.PLUGIN
    assert "epctx batch --html needs the package epctx-report" in said.err
    assert "pip install" in said.err
    assert not (folder / "fleet-results").exists()


def test_the_command_says_where_the_page_is(epctx, folder, monkeypatch):
    monkeypatch.chdir(folder)

    said = epctx("batch", "fleet.toml", "--html", "--json")
    plain = epctx("batch", "fleet.toml", "--html")

    assert said.json["page"] == str(folder / "fleet-results" / "index.html")
    assert f"wrote {said.json['page']} (" in plain.out


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_of_a_model_or_an_error_becomes_markup(tmp_path, text):
    harmless = "".join(assemble(make_batch(tmp_path, [make_result("m", "t", "e")])))
    tasks = [make_result(text, text, text)]

    page = write_page(make_batch(tmp_path, tasks)).read_text("utf-8")

    reader, expected = read(page), read(harmless)
    assert (reader.tags, reader.attributes) == (expected.tags, expected.attributes)
    assert not re.search("[\u202e\u0000]", page)
    assert len(page) < 10_000
    if len(text) < 100 and text.isprintable():
        assert reader.rows[1][0] == text
        assert text in reader.rows[1][1]


def test_the_page_requests_nothing_and_has_no_script(tmp_path):
    page = "".join(assemble(make_batch(tmp_path, [make_result("m", "t")])))

    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; ")
    assert "unsafe" not in policy
    assert "script" not in read(page).tags
    assert "url(" not in style
    assert "@import" not in style


def test_a_model_without_a_result_for_a_target_has_an_empty_cell(tmp_path):
    tasks = [make_result("a", "phone"), make_result("b", "laptop", number=1)]

    reader = read("".join(assemble(make_batch(tmp_path, tasks))))

    assert [row[0] for row in reader.rows] == ["model", "a", "b"]
    assert [row[2] for row in reader.rows[:2]] == ["laptop", "-"]
    assert reader.rows[1][1] == "2 + 3 CPU2.0 KiB, 1.25 s"


def test_the_page_is_linear_in_tasks(tmp_path):
    def measure(models):
        tasks = [
            make_result(f"models/{m}.onnx", f"target {t}", number=m * 20 + t + 1)
            for m in range(models)
            for t in range(20)
        ]
        return len("".join(assemble(make_batch(tmp_path, tasks))))

    small, large = measure(20), measure(40)

    assert large < 2 * small
