"""Reports: what they say is what explanations, verifications and profiles say."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from end_to_end.sim_eps import CPU, OPENVINO, QNN, VITISAI, with_eps
from epctx_report import make_report

from epctx_core import explain_model, verify_model
from epctx_core.errors import InvalidArgument, NoSuchFile

REAL = Path(__file__).parents[3] / "tests" / "real"


def column(raw):
    """Return the values of a column of differences."""
    return list(itertools.accumulate(raw["d"]))


def describe(*arguments, **options):
    """Return the first model of a report."""
    return make_report(*arguments, **options).data["models"][0]


def data_of(page):
    """Return what a page holds, decoded as a browser does."""
    packed = re.search(r'id="data">([^<]*)<', page)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.mark.parametrize("eps", [(QNN,), (OPENVINO,), (VITISAI, OPENVINO), ()])
def test_a_plain_model_is_cut_as_it_is_explained(folder, eps):
    explanation = explain_model(folder / "bert.onnx", with_eps(*eps))

    model = describe(folder / "bert.onnx", sess_options=with_eps(*eps))

    takers = {ep["name"]: (ep["nodes"], ep["partitions"]) for ep in model["eps"]}
    nodes = Counter(node.ep for node in explanation.nodes)
    partitions = {
        ep: len({n.partition for n in explanation.nodes if n.ep == ep and n.partition is not None})
        for ep in nodes
    }  # fmt: skip
    assert takers == {ep: (nodes[ep], partitions.get(ep, 0)) for ep in (*eps, *nodes)}
    assert model["nodes"]["name"] == [node.name for node in explanation.nodes]
    refused = Counter(
        (ep, reason) for node in explanation.nodes for ep, reason in node.refusals
    )
    found = {
        (each["ep"], each["reason"]): len(column(each["nodes"]))
        for each in model["refusals"]
    }
    assert found == refused
    assert model["verdict"] is None


def test_a_context_model_shows_its_payload_and_what_verify_finds(folder):
    model = describe(folder / "bert_ctx.onnx")

    expected = verify_model(folder / "bert_ctx.onnx")
    assert expected.ok
    assert model["verdict"] == "ok"
    assert [finding["code"] for finding in model["findings"]] == [
        finding.code for finding in expected.findings
    ]
    (binary,) = folder.glob("*.bin")
    (file,) = [each for each in model["files"] if each["name"] == binary.name]
    assert file["bytes"] == binary.stat().st_size
    assert file["holds"] == "payload shared by 5 EPContext nodes"
    assert {payload["state"] for payload in model["payloads"]} == {
        "digests right, looked into by epctx-sim-openvino 0.1.0"
    }
    assert sum(model["boxes"]["context"]) == 5
    assert model["eps"][0]["simulated"]


def test_a_damaged_payload_is_shown_and_does_not_stop_the_report(folder, tmp_path):
    for file in folder.glob("bert_*"):
        shutil.copy(file, tmp_path)
    (binary,) = tmp_path.glob("*.bin")
    binary.write_bytes(binary.read_bytes()[:-1])

    model = describe(tmp_path / "bert_ctx.onnx")

    assert model["verdict"] == "not ok"
    assert model["findings"][0]["severity"] == "error"


def test_operators_on_the_cpu_between_partitions_are_worth_a_look(folder):
    model = describe(folder / "bert.onnx", sess_options=with_eps(OPENVINO))

    titles = [advice["title"] for advice in model["advice"]]
    assert titles == [
        "IsNaN on the CPU between partitions, 4 times",
        "From OpenVINO to CPU: 4 values, 64.0 KiB a run",
        "From CPU to OpenVINO: 4 values, 16.0 KiB a run",
        "OpenVINO leaves 4 nodes to the CPU",
    ]
    operators = [model["nodes"]["ops"][op] for op in model["nodes"]["op"]]
    islands = [operators[node] for node in column(model["advice"][0]["nodes"])]
    assert islands == ["IsNaN"] * 4


def test_a_profile_gives_the_mean_time_of_each_partition(folder):
    model = describe(folder / "bert_ctx.onnx", trace=folder / "profile.json")

    events = json.loads((folder / "profile.json").read_text())
    steps = [event for event in events if event.get("cat") == "step"]
    timings = model["timings"]
    assert len(timings["partitions"]) == len(model["boxes"]["ep"])
    total = sum(each["seconds"] for each in timings["partitions"])
    assert total == pytest.approx(sum(step["dur"] for step in steps) * 1e-6 / 2)
    assert timings["notes"] == ["The times of a run are the means of 2 runs."]
    names = [row["name"] for row in timings["rows"]]
    assert {"read", "load", "run"} <= {*names}
    counts = {each["operator"]: each["count"] for each in timings["operators"]}
    assert counts == {"com.microsoft::EPContext": 5, "IsNaN": 4}


def test_a_profile_of_another_model_is_said_to_be_one(folder, tmp_path):
    events = json.loads((folder / "profile.json").read_text())
    for event in events:
        if event.get("cat") == "step":
            event["args"]["nodes"] = [1000]
    (tmp_path / "other.json").write_text(json.dumps(events))

    model = describe(folder / "bert_ctx.onnx", trace=tmp_path / "other.json")

    assert (
        "18 steps of other.json are of no node of this model"
        in (model["timings"]["notes"][-1])
    )


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '[{"ph": "X"}]', "[" * 100_000, '{"columns": [{}]}', "\0", "5"],
)
@pytest.mark.parametrize("option", ["trace", "bench"])
def test_another_file_is_no_profile_and_no_benchmark(folder, tmp_path, option, text):
    file = tmp_path / "file.json"
    file.write_text(text)

    with pytest.raises(InvalidArgument, match=r"file\.json"):
        make_report(folder / "bert.onnx", **{option: file})


def test_a_benchmark_gives_medians_of_its_columns(folder, tmp_path):
    row = {"unit": "s", "samples": [3.0, 1.0, 2.0]}
    memory = {"unit": "bytes", "samples": [1]}
    column_ = {
        "name": "bert QNN",
        "model": "anywhere/bert.onnx",
        "rows": {"load_cold": row, "memory": memory},
    }
    other = {**column_, "model": "other.onnx"}
    saved = {
        "noise": {"busy": True, "reason": "Too busy."},
        "columns": [column_, other],
    }
    (tmp_path / "bench.json").write_text(json.dumps(saved))

    timings = describe(folder / "bert.onnx", bench=tmp_path / "bench.json")["timings"]

    assert timings["rows"] == [{"name": "load cold", "seconds": 2.0, "of": "bert QNN"}]
    assert timings["notes"] == ["Too busy."]


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0])
def test_times_that_are_no_times_are_refused(folder, tmp_path, seconds):
    rows = {"run": {"unit": "s", "samples": [seconds]}}
    column_ = {"name": "bert", "model": "bert.onnx", "rows": rows}
    (tmp_path / "bench.json").write_text(json.dumps({"columns": [column_]}))
    event = {"ph": "X", "cat": "stage", "name": "read", "dur": seconds, "args": {}}
    (tmp_path / "trace.json").write_text(json.dumps([event]))

    for option in ("bench", "trace"):
        with pytest.raises(InvalidArgument, match=option):
            make_report(folder / "bert.onnx", **{option: tmp_path / f"{option}.json"})


def test_a_folder_is_shown_in_the_order_of_its_configuration(folder, tmp_path):
    names = ["a", "b", "c"]
    for name in names:
        shutil.copy(REAL / "conv.onnx", tmp_path / f"{name}.onnx")
    config = {
        "model": {
            "encoder": {"filename": "c.onnx"},
            "decoder": [{"filename": "a.onnx"}],
        }
    }
    (tmp_path / "genai_config.json").write_text(json.dumps(config))

    report = make_report(tmp_path)

    assert [model["name"] for model in report.data["models"]] == [
        "c.onnx",
        "a.onnx",
        "b.onnx",
    ]
    with pytest.raises(InvalidArgument, match="is a folder"):
        make_report(tmp_path, folder / "bert.onnx")


def test_a_folder_without_a_model_says_so(tmp_path):
    with pytest.raises(NoSuchFile, match=r"no \.onnx file"):
        make_report(tmp_path)


def test_vendors_own_files_are_shown_with_their_nodes():
    report = make_report(REAL)

    found = {
        model["name"]: [payload["source"] for payload in model["payloads"]]
        for model in report.data["models"]
        if model["payloads"]
    }
    assert found == {
        "ov_ctx0.onnx": [OPENVINO],
        "qnn_ctx0.onnx": [QNN],
        "qnn_ctx1.onnx": [QNN],
        "share1_ctx.onnx": [QNN],
        "share2_ctx.onnx": [QNN],
    }


def test_two_models_are_shown_with_their_differences():
    report = make_report(REAL / "share1_ctx.onnx", REAL / "share2_ctx.onnx")

    differences = report.data["differences"]
    assert differences["first"] == "share1_ctx.onnx"
    assert {row["part"] for row in differences["rows"]} >= {"node"}
    assert len(report.data["models"]) == 2


def test_a_page_holds_the_report_and_is_the_same_each_time(folder, tmp_path):
    report = make_report(folder / "bert.onnx", sess_options=with_eps(OPENVINO))

    path = report.write(tmp_path / "page.html")

    page = path.read_text()
    assert data_of(page) == json.loads(json.dumps(report.data))
    assert (
        page
        == make_report(folder / "bert.onnx", sess_options=with_eps(OPENVINO)).html()
    )
    assert str(folder) not in page


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(folder):
    report = make_report(folder / "bert.onnx")

    shown = report._repr_html_()

    assert shown.startswith("<iframe srcdoc=")
    assert 'sandbox="allow-scripts"' in shown
    assert shown.count("<") == 2


def test_an_explanation_is_not_made_again(folder):
    explanation = explain_model(folder / "bert.onnx", with_eps(OPENVINO))

    model = describe(folder / "bert.onnx", explanation=explanation)

    assert [ep["name"] for ep in model["eps"]] == [OPENVINO, CPU]
