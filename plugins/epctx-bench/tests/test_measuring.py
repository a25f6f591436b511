"""Reports of real measurements of small models."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import jsonschema
import numpy as np
import onnx
import pytest
from epctx_bench import BenchSettings, bench, child, judge, load_report, read_schema
from epctx_bench.children import Request
from epctx_bench.columns import Column, scan_columns

from epctx_core.errors import Fail, InvalidArgument, NoSuchFile

pytestmark = pytest.mark.internal

OURS = "open QNN"
PEER = "open onnxruntime"
QUICK = BenchSettings(turns=1, runs=1, onnxruntime=False)


def test_each_ep_is_a_column_beside_onnxruntime(report):
    assert [column.name for column in report.columns] == [OURS, PEER]
    assert [column.peer for column in report.columns] == [PEER, None]
    assert all(column.error is None for column in report.columns)


def test_every_row_has_a_sample_for_each_turn(columns):
    for column in columns.values():
        assert {len(row.samples) for row in column.rows.values()} == {2}
        assert all(sample > 0 for row in column.rows.values() for sample in row.samples)


def test_open_dimensions_get_the_same_lengths_in_every_column(tmp_path):
    """The model runs at no other lengths: those made up are 1."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "net (float[N, width] x) => (float[N, 6] y)"
        "<float[1, 6] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, int64[2] s = {-1, 6}>"
        "{ a = Reshape(x, s)  y = Add(a, w) }"
    )
    onnx.save(model, tmp_path / "net.onnx")
    settings = replace(QUICK, onnxruntime=True, free_dimensions={"width": 3, "N": 2})

    report = bench(tmp_path / "net.onnx", eps=["QNN", "CPU"], settings=settings)

    assert [column.error for column in report.columns] == [None] * 3
    jsonschema.validate(report.as_dict(), read_schema())
    assert report.as_dict()["settings"]["free_dimensions"] == {"width": 3, "N": 2}


def test_only_what_compiles_has_the_row_compile(columns):
    compiling = columns[OURS].rows["compile"]

    assert compiling.facts["bytes_written"] > 0
    assert compiling.facts["cpu_seconds"] > 0
    assert compiling.facts["peak_bytes"] > 1 << 20
    assert "compile" not in columns[PEER].rows


def test_the_first_result_comes_after_the_load(columns):
    for column in columns.values():
        rows = column.rows
        for loaded, first in zip(
            rows["load_warm"].samples, rows["first_result"].samples, strict=True
        ):
            assert first > loaded


def test_a_start_of_the_whole_process_has_its_processor_time_beside_it(columns):
    for column in columns.values():
        row = column.rows["first_result_from_start"]
        assert row.unit == "s"
        assert row.facts["cpu_seconds"] > 0


def test_runs_have_a_row_for_each_number_of_threads_and_batch_size(columns):
    runs = {
        name: (row.facts["threads"], row.facts["batch"])
        for name, row in columns[PEER].rows.items()
        if name.startswith("run")
    }

    assert runs == {
        "run": (1, 1),
        "run_threads_2_batch_1": (2, 1),
        "run_threads_1_batch_4": (1, 4),
        "run_threads_2_batch_4": (2, 4),
    }


def test_percentiles_rise(columns):
    for name, row in columns[OURS].rows.items():
        if name.startswith("run"):
            facts = row.facts
            assert 0 < facts["p50"] <= facts["p90"] <= facts["p99"]


def test_the_throughput_counts_each_result_of_a_batch(tmp_path, monkeypatch):
    """Ten runs that take a second together."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "net (float[N, 6] x) => (float[N, 6] y) { y = Relu(x) }"
    )
    onnx.save(model, tmp_path / "net.onnx")
    monkeypatch.setattr(child, "_run_steadily", lambda *_: ([0.1] * 10, 1.0))
    settings = BenchSettings(batch_sizes=(1, 4))

    used = child.use_model(
        Request(
            task="use",
            engine="epctx",
            model=str(tmp_path / "net.onnx"),
            settings=settings,
        )
    )

    rows = used["rows"]
    runs = [row for name, row in rows.items() if name.startswith("run")]
    found = {run["batch"]: run["throughput"] for run in runs}
    assert found == {1: 10, 4: 40}


def test_an_ep_that_takes_no_node_does_not_count_as_simulated(columns):
    assert columns[OURS].notes[0].startswith("no EP took a node")
    assert columns[OURS].simulated == columns[PEER].simulated == []


def test_the_report_says_on_which_machine_and_with_which_versions(report):
    machine = report.machine

    assert machine["cores"] >= 1
    assert {"epctx-core", "epctx-sim-qnn", "onnx", "onnxruntime"} <= set(
        machine["versions"]
    )


def test_the_report_says_whether_the_machine_was_busy(report):
    noise = report.as_dict()["noise"]

    assert noise["busy"] == report.noise.busy
    assert 0 <= noise["share"] <= 1
    assert noise["reason"].startswith("The machine was ")


def test_a_saved_report_is_judged_against_a_new_one(report, tmp_path):
    report.save(tmp_path / "report.json")

    judgement = judge(load_report(tmp_path / "report.json"), report.as_dict())

    assert {row.peer for row in judgement.rows} == {PEER}
    assert not judgement.failed


def test_the_json_fits_its_schema(report):
    written = json.loads(json.dumps(report.as_dict()))

    jsonschema.validate(written, read_schema())


@pytest.mark.parametrize(
    "damage",
    [
        lambda report: report.pop("machine"),
        lambda report: report.pop("noise"),
        lambda report: report["noise"].pop("busy"),
        lambda report: report["columns"][0].pop("peer"),
        lambda report: report["columns"][0]["rows"]["run"].pop("p99"),
        lambda report: report["columns"][0]["rows"]["compile"].pop("peak_bytes"),
        lambda report: report["columns"][0]["rows"]["load_warm"].update(samples=None),
    ],
)
def test_the_schema_refuses_an_incomplete_report(report, damage):
    written = json.loads(json.dumps(report.as_dict()))
    damage(written)

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written, read_schema())


def test_a_column_that_fails_does_not_end_the_others(folder):
    report = bench(
        folder / "fixed.onnx",
        eps=["QNN", ("VitisAI", "OpenVINO")],
        provider_options={"QNN": {"no_such_option": "1"}},
        settings=QUICK,
    )

    broken, sound = report.columns
    assert "no_such_option" in broken.error
    assert broken.error.startswith(
        "compiling fixed.onnx with epctx failed: its process"
    )
    assert "Traceback" not in broken.error
    assert broken.rows == {}
    assert (sound.name, sound.error) == ("fixed VitisAI+OpenVINO", None)
    assert sound.rows["run"].samples
    jsonschema.validate(report.as_dict(), read_schema())


@pytest.fixture(scope="module")
def limited(folder):
    """The column of the CPU EP, at a time limit and a batch size that the model
    fixes.
    """
    settings = BenchSettings(
        turns=50,
        runs=1,
        time_limit=0,
        batch_sizes=(1, 8),
        onnxruntime=False,
    )
    (column,) = bench(folder / "fixed.onnx", eps=["CPU"], settings=settings).columns
    return column


def test_the_cpu_ep_runs_the_model_without_a_compile(limited):
    assert limited.error is None
    assert "compile" not in limited.rows
    assert limited.rows["memory"].unit == "bytes"


def test_batch_sizes_of_a_fixed_model_are_left_out_with_a_note(limited):
    assert [name for name in limited.rows if name.startswith("run")] == ["run"]
    assert any("fixes its first dimension" in note for note in limited.notes)


def test_no_turn_begins_after_the_time_limit(limited):
    assert len(limited.rows["run"].samples) == 1
    assert "ended after turn 1 of 50 by the time limit" in limited.notes


def test_each_combination_of_option_values_is_a_column(folder):
    columns = scan_columns(
        Column(model=folder / "open.onnx"),
        ["QNN", ("VitisAI", "QNN")],
        {"QNN": {"a": ["1", "2"], "b": "3"}, "VitisAI": {"c": ["4", "5"]}},
    )

    assert [column.heading for column in columns] == [
        "QNN 1", "QNN 2",
        "VitisAI+QNN 4 1", "VitisAI+QNN 4 2", "VitisAI+QNN 5 1", "VitisAI+QNN 5 2",
    ]  # fmt: skip
    assert columns[-1].options == {"VitisAI": {"c": "5"}, "QNN": {"a": "2", "b": "3"}}


def test_a_process_that_takes_too_long_fails_its_column(folder):
    settings = BenchSettings(turns=1, runs=1, onnxruntime=False, child_timeout=0.01)
    (column,) = bench(folder / "fixed.onnx", eps=["CPU"], settings=settings).columns

    assert "did not end within 0.01 seconds" in column.error


def test_nothing_is_measured_where_the_environment_prevents_byte_code(
    folder, monkeypatch
):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    with pytest.raises(Fail, match="keeps no byte code") as raised:
        bench(folder / "fixed.onnx", eps=["CPU"], settings=QUICK)

    assert "Unset PYTHONDONTWRITEBYTECODE" in raised.value.hint


def test_nothing_is_measured_where_the_interpreter_keeps_no_byte_code(
    folder, monkeypatch
):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    with pytest.raises(Fail, match="keeps no byte code"):
        bench(folder / "fixed.onnx", eps=["CPU"], settings=QUICK)


def test_a_missing_model_is_said_before_anything_is_measured(tmp_path):
    with pytest.raises(NoSuchFile, match="there is no model"):
        bench(tmp_path / "none.onnx")


def test_options_of_an_ep_without_a_column_are_refused(folder):
    with pytest.raises(InvalidArgument, match="options of QNN"):
        bench(
            folder / "fixed.onnx",
            eps=["VitisAI"],
            provider_options={"QNN": {"htp_arch": "73"}},
        )


@pytest.mark.parametrize(
    "wrong",
    [{"turns": 0}, {"threads": ()}, {"batch_sizes": (0,)}, {"time_limit": np.nan}],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        BenchSettings(**wrong)
