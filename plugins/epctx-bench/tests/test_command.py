"""`epctx bench`: tables, sentences, JSON and exit codes."""

from __future__ import annotations

import jsonschema
import pytest
from epctx_bench import read_schema
from epctx_bench.sentences import describe_column, describe_speed
from epctx_bench.tables import make_tables
from epctx_bench.units import format_bytes, format_seconds

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
    assert any(line.startswith("QNN loads in ") for line in lines)
    assert "Simulated: QNNExecutionProvider computes on this CPU" in said.out


def test_a_context_model_finds_its_eps_and_is_not_compiled(epctx, folder):
    said = epctx("bench", folder / "fixed_ctx.onnx", *QUICK, "--check", "--json")

    jsonschema.validate(said.json, read_schema())
    (column,) = said.json["columns"]
    assert said.code == 0
    assert column["name"] == "fixed_ctx context model"
    assert column["simulated"] == ["QNNExecutionProvider"]
    assert "compile" not in column["rows"]
    assert column["check"] is None
    assert any("no session of the original model" in note for note in column["notes"])
    assert said.json["settings"]["turns"] == 1


def test_markdown_has_a_line_for_each_row(report):
    (table,) = make_tables(report.columns)

    lines = table.to_markdown().splitlines()

    assert lines[:2] == ["|  | QNN | onnxruntime |", "| --- | ---: | ---: |"]
    assert lines[2].startswith("| compile | ")
    assert len(lines) == 2 + len(table.rows)


@pytest.mark.parametrize(
    "wrong",
    [
        ("--turns", "0"),
        ("--threads", "1,x"),
        ("--ep", "CPU", "--markdown", "--json"),
        ("--ep", "CPU", "-c", "no_value"),
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


def test_no_line_of_a_table_is_longer_than_the_width(report):
    tables = make_tables(report.columns, width=50)

    assert len(tables) > 1
    for table in tables:
        widths = [
            max(map(len, column))
            for column in zip(table.header, *table.rows, strict=True)
        ]
        assert 2 + sum(widths) + 2 * (len(widths) - 1) <= 50
    headings = [heading for table in tables for heading in table.header[1:]]
    assert headings == ["QNN", "onnxruntime"]


def test_a_sentence_compares_with_the_compile_and_with_onnxruntime(columns):
    column = columns["open QNN"]

    sentence = describe_column(column, columns["open onnxruntime"])

    assert sentence.startswith("QNN loads in ")
    assert "it compiles" in sentence
    assert "onnxruntime creates its session" in sentence
    assert "onnxruntime" not in describe_column(column, None)


@pytest.mark.parametrize(
    ("others", "own", "words"),
    [
        ((10.0, 20.0, 30.0), (1.0, 2.0, 3.0), "10 times faster than"),
        ((1.0, 1.0), (4.0, 4.0), "4 times slower than"),
        ((1.0, 2.0), (1.0, 2.0), "as fast as"),
    ],
)
def test_a_speed_is_the_median_ratio_of_pairs(others, own, words):
    assert describe_speed(others, own) == words


def test_units_are_those_that_people_read():
    assert [format_seconds(s) for s in (12.34, 0.01234, 1.2e-5, 3e-9)] == [
        "12.3 s", "12.3 ms", "12.0 us", "0.00 us",
    ]  # fmt: skip
    assert [format_bytes(n) for n in (0, 512, 1536, 3 << 20)] == [
        "0 bytes", "512 bytes", "1.50 KiB", "3.00 MiB",
    ]  # fmt: skip
