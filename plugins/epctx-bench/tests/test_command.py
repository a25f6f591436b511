"""`epctx bench`: tables, sentences, JSON and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import jsonschema
import pytest
from epctx_bench import BenchSettings, Row, bench, read_schema
from epctx_bench.sentences import describe_column
from epctx_bench.tables import make_table
from epctx_bench.units import format_bytes, format_seconds

pytestmark = pytest.mark.internal

QUICK = ("--turns", 1, "--runs", 1, "--no-onnxruntime")


def test_a_failed_column_is_said_beside_the_table_and_exits_with_1(epctx, folder):
    said = epctx(
        "bench", folder / "fixed_ctx.onnx", "--ep", "QNN", "--ep", "VitisAI", *QUICK
    )

    lines = said.out.splitlines()
    assert said.code == 1
    assert "error: fixed_ctx VitisAI failed: running fixed_ctx.onnx" in said.err
    header = next(line for line in lines if line.split() == ["QNN"])
    rows = lines[lines.index(header) + 1 :]
    assert rows[0].split()[:2] == ["load,", "cold"]
    assert "Simulated: QNNExecutionProvider computes on this CPU" in said.out


def test_a_context_model_finds_its_eps_and_is_not_compiled(epctx, folder):
    said = epctx("bench", folder / "fixed_ctx.onnx", *QUICK, "--json")

    jsonschema.validate(said.json, read_schema())
    (column,) = said.json["columns"]
    assert said.code == 0
    assert column["name"] == "fixed_ctx context model"
    assert column["simulated"] == ["QNNExecutionProvider"]
    assert "compile" not in column["rows"]
    assert column["check"] is None
    assert said.json["settings"]["turns"] == 1


def test_a_length_of_an_open_dimension_is_an_option(epctx, folder):
    said = epctx(
        "bench", folder / "open.onnx", "--ep", "QNN", "--free-dimension", "N=5", *QUICK,
        "--json",
    )  # fmt: skip

    assert said.code == 0
    assert said.json["settings"]["free_dimensions"] == {"N": 5}
    (column,) = said.json["columns"]
    assert "batch" not in column["rows"]["run"]


def test_markdown_has_a_line_for_each_row(report):
    table = make_table(report.columns)

    lines = table.to_markdown().splitlines()

    assert lines[:2] == [f"### {table.title}", ""]
    assert lines[2:4] == ["|  | QNN | onnxruntime |", "| --- | ---: | ---: |"]
    assert lines[4].startswith("| compile | ")
    assert len(lines) == 4 + len(table.rows)


def test_a_start_with_imports_is_beside_the_first_result_without_them(report):
    text = str(report)

    labels = [row[0] for row in make_table(report.columns).rows]
    index = labels.index("first result")
    assert labels[index + 1 : index + 3] == ["from process start", "  CPU time"]
    assert "without imports except from process start." in text


@pytest.mark.parametrize(
    "wrong",
    [
        ("--turns", "0"),
        ("--threads", "1,x"),
        ("--ep", "CPU", "-c", "no_value"),
        ("--ep", "CPU", "--free-dimension", "N"),
        ("--ep", "CPU", "--free-dimension", "N=1", "--free-dimension", "N=2"),
        ("--ep", "CPU", "-p", "QNN.htp_arch=73"),
        ("--time-limit", "-1"),
    ],
)
def test_wrong_usage_exits_with_2(epctx, folder, wrong):
    assert epctx("bench", folder / "fixed.onnx", *wrong).code == 2


def test_an_ep_that_is_not_installed_is_named(epctx, folder):
    said = epctx("bench", folder / "fixed.onnx", "--ep", "QNN+Unheard")

    assert said.code != 0
    assert "Unheard" in said.err


def test_sentences_compare_with_the_compile_and_with_onnxruntime(columns):
    column = columns["open QNN"]

    sentences = describe_column(column, columns["open onnxruntime"])

    assert len(sentences) == 5
    assert all(sentence.startswith("QNN ") for sentence in sentences)
    assert "than it compiles" in sentences[0]
    assert "onnxruntime creates its session" in sentences[1]
    assert "has its first result, without imports, " in sentences[2]
    assert "has its first result, from process start with imports, " in sentences[3]
    assert len(describe_column(column)) == 1


def test_a_sentence_has_the_ratio_of_pairs_with_its_margin(columns):
    loads = Row(unit="s", samples=[1.0, 1.01, 0.99, 1.0, 1.02])
    peers = Row(unit="s", samples=[12.3] * 5)
    ours = replace(columns["open QNN"], rows={"load_warm": loads})
    peer = replace(columns["open onnxruntime"], rows={"load_warm": peers})

    assert describe_column(ours, peer) == [
        "QNN loads 12.3 ± 0.2 times faster than onnxruntime creates its session."
    ]


def test_help_imports_neither_numpy_nor_onnx():
    code = (
        "import sys\n"
        "from epctx_cli.entry import run\n"
        "code = run(['bench', '--help'])\n"
        "assert not {'numpy', 'onnx', 'scipy', 'psutil'} & set(sys.modules)\n"
        "sys.exit(code)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert "--fail-above SLOWDOWN" in done.stdout


@pytest.fixture(scope="module")
def saved(folder):
    """A file with a report of three turns of the CPU EP beside onnxruntime."""
    path = folder / "saved" / "report.json"
    settings = BenchSettings(turns=3, runs=3)
    bench(folder / "fixed.onnx", eps=["CPU"], settings=settings).save(path)
    return path


AGAIN = ("--ep", "CPU", "--turns", 3, "--runs", 3)


def test_a_row_that_became_slower_exits_with_1(epctx, folder, saved, tmp_path):
    earlier = json.loads(saved.read_text())
    (ours,) = (c for c in earlier["columns"] if c["name"] == "fixed CPU")
    row = ours["rows"]["first_result"]
    # More than waiting for processors explains.
    row["samples"] = [sample / 1_000_000 for sample in row["samples"]]
    faster = tmp_path / "faster.json"
    faster.write_text(json.dumps(earlier))

    said = epctx("bench", folder / "fixed.onnx", *AGAIN, "--against", faster, "--json")

    jsonschema.validate(said.json, read_schema())
    rows = {row["row"]: row for row in said.json["judgement"]["rows"]}
    assert rows["first_result"]["verdict"] == "slower"
    assert rows["first_result"]["peer"] == "fixed onnxruntime"
    assert said.json["judgement"]["failed"]
    assert said.code == 1


def test_a_report_is_saved_and_compared_with_in_one_call(epctx, folder, tmp_path):
    path = tmp_path / "new" / "report.json"
    one = (*AGAIN[:2], "--turns", 1, "--runs", 1)
    assert epctx("bench", folder / "fixed.onnx", *one, "--save", path).code == 0

    said = epctx(
        "bench", folder / "fixed.onnx", *one,
        "--against", path, "--fail-above", "12.5%", "--save", path,
    )  # fmt: skip

    jsonschema.validate(json.loads(path.read_text()), read_schema())
    text = " ".join(said.out.splitlines())
    assert said.code == 0
    assert "UNDECIDED, which is not passed. 5 rows compared: 5 too noisy." in text
    assert text.rstrip().endswith(
        "A row fails if it is slower by more than 12.5% and that is significant at "
        "0.01."
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--against=none.json"], "does not exist"),
        (["--fail-above=5%"], "nothing to compare with"),
        (["--save=."], "is a folder, not a file"),
        (["--save={saved}/report.json"], "is not a folder"),
        (["--against={saved}", "--fail-above=much"], "not a slowdown between"),
        (["--against={saved}", "--fail-above=-5%"], "not a slowdown between"),
        (["--against={saved}", "--fail-above=5"], "not a slowdown between"),
        (["--against={saved}", "--no-onnxruntime"], "leave out --no-onnxruntime"),
        (["--against={alone}"], "and a report has none"),
    ],
)
def test_a_gate_that_cannot_work_is_refused_before_anything_is_measured(
    epctx, saved, folder, tmp_path, wrong, words
):
    alone = json.loads(saved.read_text())
    for column in alone["columns"]:
        column["peer"] = None
    (tmp_path / "alone.json").write_text(json.dumps(alone))
    # A broken model would fail first if anything was measured.
    broken = folder / "broken.onnx"
    broken.write_bytes(b"no model")

    paths = {"saved": saved, "alone": tmp_path / "alone.json"}
    options = [part.format(**paths) for part in wrong]
    said = epctx("bench", broken, "--ep", "CPU", *options)

    assert said.code == 2
    assert words in " ".join(said.err.split())


def test_units_are_those_that_people_read():
    assert [format_seconds(s) for s in (12.34, 0.01234, 1.2e-5, 3e-9)] == [
        "12.3 s", "12.3 ms", "12.0 us", "0.00 us",
    ]  # fmt: skip
    assert [format_bytes(n) for n in (0, 512, 1536, 3 << 20)] == [
        "0 bytes", "512 bytes", "1.50 KiB", "3.00 MiB",
    ]  # fmt: skip


def test_text_of_a_report_has_its_tables_in_markdown_and_its_sentences(report):
    first, *others = report.columns
    first = replace(first, simulated=("QNNExecutionProvider",))
    report = replace(report, columns=(first, *others))
    text = str(report)

    assert make_table(report.columns).to_markdown() in text
    assert "open.onnx, 2 turns\n\n| " in text
    assert text.startswith(report.machine["cpu"])
    assert "Simulated: QNNExecutionProvider; these times are not those of" in text


def test_html_of_a_report_has_its_tables_with_names_escaped(report):
    table = make_table(report.columns)
    hostile = replace(report, machine={**report.machine, "cpu": "<script>"})

    page = hostile._repr_html_()

    assert page.count("<tr>") == 1 + len(table.rows)
    assert "<th>QNN</th>" in page
    assert "<script>" not in page
    assert page.startswith("<p>&lt;script&gt;")
