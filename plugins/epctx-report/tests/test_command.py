"""`epctx report` and `epctx explain --html`."""

from __future__ import annotations

import json
import re
from importlib import resources

import jsonschema
import pytest


def read_schema():
    """Return the JSON Schema of the command."""
    file = resources.files("epctx_report") / "schemas" / "report.schema.json"
    return json.loads(file.read_text())


def test_the_command_writes_a_page_and_says_what_it_shows(epctx, folder, tmp_path):
    page = tmp_path / "page.html"

    said = epctx("report", folder / "bert.onnx", "--ep", "OpenVINO", "-o", page)

    assert said.code == 0
    assert "bert.onnx: 171 nodes, 3 of them folded" in said.out
    assert "IsNaN on the CPU between partitions, 4 times" in said.out
    assert f"wrote {page}" in said.out
    assert page.read_text().startswith("<!doctype html>")


def test_its_json_is_as_the_schema_says(epctx, folder, tmp_path):
    page = tmp_path / "page.html"

    said = epctx(
        "report", folder / "bert_ctx.onnx", folder / "bert.onnx", "-o", page, "--json"
    )

    jsonschema.validate(said.json, read_schema())
    assert said.json["bytes"] == page.stat().st_size
    assert [model["nodes"] for model in said.json["models"]] == [9, 171]
    assert said.json["differences"] > 0


def test_the_table_of_a_context_model_has_the_shares_of_its_source(
    epctx, folder, tmp_path
):
    page = tmp_path / "page.html"

    source = epctx("report", folder / "bert.onnx", "--ep", "OpenVINO", "-o", page)
    compiled = epctx("report", folder / "bert_ctx.onnx", "-o", page)

    heads = re.compile(r"partitions  (share of .*)")
    rows = re.compile(r"(\w+)ExecutionProvider +([\d]+) +([\d]+) +([\d.%]+)")
    assert heads.findall(source.out) == ["share of nodes"]
    assert rows.findall(source.out) == [
        ("OpenVINO", "164", "5", "97.6%"),
        ("CPU", "4", "0", "2.4%"),
    ]
    assert heads.findall(compiled.out) == ["share of source nodes"]
    assert rows.findall(compiled.out) == [
        ("OpenVINO", "5", "5", "97.6%"),
        ("CPU", "4", "0", "2.4%"),
    ]


def test_without_a_name_the_page_is_named_after_the_model(
    epctx, folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    epctx("report", folder / "bert.onnx")
    epctx("report", folder)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bert.html",
        f"{folder.name}.html",
    ]


@pytest.mark.parametrize("output", ["bert.onnx", "page", "."])
def test_no_model_is_replaced_by_a_page(epctx, folder, output):
    before = (folder / "bert.onnx").read_bytes()

    said = epctx("report", folder / "bert.onnx", "-o", folder / output)

    assert said.code == 2
    assert "is not the name of a file that ends in .html" in said.err
    assert (folder / "bert.onnx").read_bytes() == before


def test_explain_writes_the_same_page_beside_its_tables(epctx, folder, tmp_path):
    model = folder / "bert.onnx"

    said = epctx("explain", model, "--ep", "OpenVINO", "--html", tmp_path / "a.html")
    epctx("report", model, "--ep", "OpenVINO", "-o", tmp_path / "b.html")

    assert f"wrote {tmp_path / 'a.html'}" in said.out
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_a_missing_model_is_an_error_of_usage_and_writes_nothing(epctx, tmp_path):
    said = epctx("report", tmp_path / "none.onnx", "-o", tmp_path / "page.html")

    assert said.code == 2
    assert "there is no model file" in said.err
    assert list(tmp_path.iterdir()) == []
