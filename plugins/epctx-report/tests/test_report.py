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

import numpy as np
import onnx
import pytest
from epctx_bench import Profile
from epctx_report import Measurements, make_report
from support.folders import REAL
from support.sim_eps import CPU, OPENVINO, QNN, VITISAI, with_eps
from support.strange_files import STRANGE
from support.taker import Taker, options_with, registry_with

from epctx_core import (
    GraphOptimizationLevel,
    InferenceSession,
    explain_model,
    verify_model,
)
from epctx_core.errors import InvalidArgument, InvalidProtobuf, NoSuchFile

REASON = "IsNaN is not an operator that OpenVINO takes"


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
        (ep, reason.removeprefix(f"{node.operator}: "))
        for node in explanation.nodes
        for ep, reason in node.refusals
    )
    assert len(model["refusals"]) == len(refused)
    for each in model["refusals"]:
        (number,) = (
            number
            for (ep, reason), number in refused.items()
            if ep == each["ep"] and each["reason"].endswith(reason)
        )
        assert number == len(column(each["nodes"]))
    assert model["verdict"] is None


def test_operators_that_are_refused_for_one_reason_share_a_group(tmp_path):
    onnx.save(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]> open (float[batch, 3] x) => '
            "(float[batch, 3] y) { a = Relu(x) b = Exp(a) y = Relu(b) }"
        ),
        tmp_path / "open.onnx",
    )

    model = describe(tmp_path / "open.onnx", sess_options=with_eps(QNN))

    (group,) = model["refusals"]
    assert group["reason"].startswith("Relu, Exp: ")
    assert column(group["nodes"]) == [0, 1, 2]


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
        "digests right, checked by epctx-sim-openvino 0.1.0"
    }
    assert sum(model["boxes"]["context"]) == 5
    assert model["eps"][0]["simulated"]


def shares_of(model):
    return {ep["name"]: ep["share"] for ep in model["eps"]}


def forget_source_nodes(folder, to):
    """Copy the context model as another tool would have written it."""
    for file in folder.glob("bert_*"):
        shutil.copy(file, to)
    model = onnx.load(to / "bert_ctx.onnx")
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.save(model, to / "bert_ctx.onnx")
    return to / "bert_ctx.onnx"


def test_shares_of_a_context_model_are_those_of_its_source(folder):
    source = describe(folder / "bert.onnx", sess_options=with_eps(OPENVINO))
    compiled = describe(folder / "bert_ctx.onnx")

    assert (source["share_of"], compiled["share_of"]) == ("nodes", "source nodes")
    assert shares_of(source) == {OPENVINO: 164 / 168, CPU: 4 / 168}
    assert shares_of(compiled) == shares_of(source)


def test_shares_are_of_bytes_where_no_node_says_how_many_it_replaced(folder, tmp_path):
    (binary,) = folder.glob("*.bin")

    model = describe(forget_source_nodes(folder, tmp_path))

    left = sum(model["nodes"]["weight_bytes"])
    payload = binary.stat().st_size
    assert model["share_of"] == "bytes"
    assert shares_of(model) == {
        OPENVINO: payload / (payload + left),
        CPU: left / (payload + left),
    }


def test_without_nodes_and_bytes_there_are_no_shares(folder, tmp_path):
    path = forget_source_nodes(folder, tmp_path)
    (binary,) = tmp_path.glob("*.bin")
    binary.unlink()

    model = describe(path)

    assert model["share_of"] is None
    assert set(shares_of(model).values()) == {None}


@pytest.mark.parametrize("text", ["-1", "0", "many", "1e9", "9" * 30, "\u0661"])
def test_a_number_of_replaced_nodes_may_be_any_text(folder, tmp_path, text):
    path = forget_source_nodes(folder, tmp_path)
    model = onnx.load(path)
    for node in model.graph.node:
        node.metadata_props.add(key="epctx.source_nodes", value=text)
    onnx.save(model, path)

    assert describe(path)["share_of"] == "bytes"


def test_nodes_inside_subgraphs_are_counted_and_the_sessions_apart(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(
        onnx.parser.parse_model(
            """
            <ir_version: 8, opset_import: ["" : 17]>
            g (float[2,3] x, bool c) => (float[2,3] y) {
              a = Relu(x)
              y = If(c) <
                then_branch = t () => (float[2,3] u) { o = Abs(a)  u = Hardmax(o) },
                else_branch = e () => (float[2,3] v) { v = Hardmax(a) }>
            }
            """
        ),
        path,
    )

    explanation = explain_model(
        path, options_with(Taker), registry=registry_with(Taker)
    )

    report = make_report(path, explanation=explanation)

    (summary,) = report.summary()
    takers = {ep.name: (ep.nodes, ep.share) for ep in summary.eps}
    assert takers == {Taker.name: (2, 0.4), CPU: (2, 0.4), "session": (1, 0.2)}
    assert (summary.nodes, summary.inside_nodes, summary.folded_nodes) == (5, 3, 0)


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
        f"OpenVINO leaves 4 nodes to the CPU: {REASON}",
    ]
    operators = [model["nodes"]["ops"][op] for op in model["nodes"]["op"]]
    islands = [operators[node] for node in column(model["advice"][0]["nodes"])]
    assert islands == ["IsNaN"] * 4


def write(path, text):
    """Write a model given by its graph in ONNX's text form."""
    head = '<ir_version: 8, opset_import: ["" : 17]> '
    onnx.save(onnx.parser.parse_model(head + text), path)
    return path


# OpenVINO's simulated EP takes no IsNaN.
OPEN = """g (float[N, 4] x, float[2, 4] k) => (float[N, 4] y, float[2, 4] z) {
    a = Relu(x)  n = IsNaN(a)  y = Where(n, a, x)
    b = Relu(k)  m = IsNaN(b)  z = Where(m, b, k)
}"""


@pytest.mark.parametrize(
    ("text", "titles", "island", "example"),
    [
        (
            OPEN,
            [
                "From OpenVINO to CPU: 2 values, at least 32 bytes a run",
                "From CPU to OpenVINO: 2 values, at least 8 bytes a run",
            ],
            "at least 40 bytes, and 2 values of open size,",
            "The largest of known size",
        ),
        (
            OPEN.replace("[2, 4]", "[M, 4]"),
            [
                "From OpenVINO to CPU: 2 values, of open sizes",
                "From CPU to OpenVINO: 2 values, of open sizes",
            ],
            "4 values of open size",
            "One",
        ),
        (
            OPEN.replace("[N", "[2"),
            [
                "From OpenVINO to CPU: 2 values, 64 bytes a run",
                "From CPU to OpenVINO: 2 values, 16 bytes a run",
            ],
            "in all 80 bytes",
            "The largest",
        ),
    ],
)
def test_what_is_worth_a_look_counts_values_of_open_size(
    tmp_path, text, titles, island, example
):
    path = write(tmp_path / "m.onnx", text)

    model = describe(path, sess_options=with_eps(OPENVINO))

    first, *copies = model["advice"][:3]
    assert [advice["title"] for advice in copies] == titles
    assert f"A run takes {island} to the CPU or back." in first["text"]
    assert f"{example} is '" in copies[0]["text"]


def test_one_operator_between_partitions_is_said_to_be_there_once(tmp_path):
    path = write(
        tmp_path / "m.onnx",
        "g (float[2] x) => (float[2] y) { a = Relu(x)  n = IsNaN(a)  y = Where(n, a, x) }",
    )

    (advice, *_) = describe(path, sess_options=with_eps(OPENVINO))["advice"]

    assert advice["title"] == "IsNaN on the CPU between partitions, once"
    assert advice["text"] == (
        "It ends one partition and begins another. A run takes in all 10 bytes to the "
        "CPU or back. If the EP took what is there, or the model did without, the "
        "neighbours could be one partition."
    )


def test_an_ep_with_a_small_share_is_named_first(tmp_path):
    rest = " ".join(f"n{i} = IsNaN(x)" for i in range(24))
    gathered = ", ".join(f"n{i}" for i in range(24))
    path = write(
        tmp_path / "m.onnx",
        f"g (float[2] x) => (float[2] y, bool[48] z) {{ y = Relu(x)  {rest}"
        f"  z = Concat<axis = 0>({gathered}) }}",
    )

    model = describe(path, sess_options=with_eps(OPENVINO))

    assert model["advice"][0]["title"] == (
        "OpenVINOExecutionProvider gets 1 of 25 computing nodes (4.0%)"
    )


def test_the_bytes_that_cross_are_a_least_number_where_sizes_are_open(tmp_path):
    fixed = write(tmp_path / "fixed.onnx", OPEN.replace("[N", "[2"))
    open_ = write(tmp_path / "open.onnx", OPEN)

    report = make_report(fixed, open_, sess_options=with_eps(OPENVINO))

    (row,) = (
        each
        for each in report.data["differences"]["summary"]
        if each["name"] == "bytes that cross in a run"
    )
    assert row["first"] == "144 bytes"
    assert row["second"] == "at least 72 bytes"
    assert row["change"] == ""


def test_a_profile_gives_the_mean_time_of_each_partition(folder):
    model = describe(
        folder / "bert_ctx.onnx",
        measurements=Measurements(traces=[folder / "profile.json"]),
    )

    events = json.loads((folder / "profile.json").read_text())
    steps = [event for event in events if event.get("cat") == "step"]
    timings = model["timings"]
    assert sum(model["boxes"]["seconds"]) == pytest.approx(
        sum(step["dur"] for step in steps) * 1e-6 / 2
    )
    names = [row["name"] for row in timings["rows"]]
    assert {"read", "load", "run, mean of 2"} <= {*names}
    counts = {each["operator"]: each["count"] for each in timings["operators"]}
    assert counts == {"IsNaN": 4}


def test_a_profile_of_another_model_is_said_to_be_one(folder, tmp_path):
    events = json.loads((folder / "profile.json").read_text())
    for event in events:
        if event.get("cat") == "step":
            event["args"]["nodes"] = [1000]
    (tmp_path / "other.json").write_text(json.dumps(events))

    model = describe(
        folder / "bert_ctx.onnx",
        measurements=Measurements(traces=[tmp_path / "other.json"]),
    )

    assert (
        "18 steps of other.json are of no nodes of this model"
        in (model["timings"]["notes"][-1])
    )


def with_file(option, path):
    """Return the keyword argument with a file of measurements."""
    given = {"traces": [path]} if option == "trace" else {option: path}
    return {"measurements": Measurements(**given)}


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '[{"ph": "X"}]', "[" * 100_000, '{"columns": [{}]}', "\0", "5"],
)
@pytest.mark.parametrize("option", ["trace", "bench", "errors"])
def test_another_file_is_no_measurement(folder, tmp_path, option, text):
    file = tmp_path / "file.json"
    file.write_text(text)

    with pytest.raises(InvalidArgument, match=r"file\.json"):
        make_report(folder / "bert.onnx", **with_file(option, file))


@pytest.mark.parametrize("nodes", [[10**400], ["x"], [-1], [10**6], None, [[]], 5])
def test_a_step_of_no_nodes_of_the_model_is_counted(folder, tmp_path, nodes):
    arguments = {"graph": [], "nodes": nodes, "ep": OPENVINO}
    events = [
        {"ph": "X", "cat": "stage", "name": "run", "dur": 1, "args": {}},
        {"ph": "X", "cat": "step", "name": "n", "dur": 1, "args": arguments},
    ]
    (tmp_path / "trace.json").write_text(json.dumps(events))

    model = describe(
        folder / "bert.onnx",
        measurements=Measurements(traces=[tmp_path / "trace.json"]),
    )

    assert model["timings"]["notes"][0].startswith("1 steps of trace.json")


def test_a_profile_of_the_context_model_is_none_of_its_source(folder):
    model = describe(
        folder / "bert.onnx",
        sess_options=with_eps(OPENVINO),
        measurements=Measurements(traces=[folder / "profile.json"]),
    )

    assert model["timings"]["notes"][0].startswith("18 steps of profile.json")
    assert {*model["boxes"]["seconds"]} == {None}


def test_a_step_over_several_boxes_is_a_row_of_its_own(tmp_path):
    shutil.copy(REAL.parent / "models" / "lstm" / "model.onnx", tmp_path / "lstm.onnx")
    options = with_eps(QNN)
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("ep.partition_without_computation", "keep")
    profile = Profile()
    options.add_host_plugin(profile)
    with InferenceSession(tmp_path / "lstm.onnx", options) as session:
        shapes = {value.name: value.shape for value in session.get_inputs()}
        session.run(None, {k: np.zeros(v, np.float32) for k, v in shapes.items()})
    profile.write(tmp_path / "profile.json")

    model = describe(
        tmp_path / "lstm.onnx",
        sess_options=options,
        measurements=Measurements(traces=[tmp_path / "profile.json"]),
    )

    rows = [row for row in model["timings"]["rows"] if "boxes" in row["of"]]
    assert rows
    assert all("operators from" in row["name"] for row in rows)
    boxes = model["boxes"]
    timed = [time is not None for time in boxes["seconds"]]
    assert {*itertools.compress(boxes["partition"], timed)} == {0, 1, 2}
    assert not any("no nodes of this model" in n for n in model["timings"]["notes"])


def test_a_benchmark_gives_medians_of_its_columns(folder, tmp_path):
    row = {"unit": "s", "samples": [3.0, 1.0, 2.0]}
    memory = {"unit": "bytes", "samples": [1]}
    column_ = {
        "name": "bert QNN",
        "model": str(folder / "bert.onnx"),
        "rows": {
            "load_cold": row,
            "first_result_from_start": row,
            "memory": memory,
        },
    }
    other = {**column_, "model": "other.onnx"}
    saved = {
        "noise": {"busy": True, "reason": "Too busy."},
        "columns": [column_, other],
    }
    (tmp_path / "bench.json").write_text(json.dumps(saved))

    timings = describe(
        folder / "bert.onnx", measurements=Measurements(bench=tmp_path / "bench.json")
    )["timings"]

    assert timings["rows"] == [
        {"name": name, "seconds": 2.0, "of": "bert QNN"}
        for name in ("load cold", "first result from start")
    ]
    assert timings["notes"] == ["Too busy."]


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0, 10**400])
def test_times_that_are_no_times_are_refused(folder, tmp_path, seconds):
    rows = {"run": {"unit": "s", "samples": [seconds]}}
    column_ = {"name": "bert", "model": "bert.onnx", "rows": rows}
    saved = {"noise": {"busy": False, "reason": ""}, "columns": [column_]}
    (tmp_path / "bench.json").write_text(json.dumps(saved))
    event = {"ph": "X", "cat": "stage", "name": "read", "dur": seconds, "args": {}}
    (tmp_path / "trace.json").write_text(json.dumps([event]))

    for option in ("bench", "trace"):
        with pytest.raises(InvalidArgument, match=option):
            make_report(
                folder / "bert.onnx", **with_file(option, tmp_path / f"{option}.json")
            )


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


def test_a_damaged_model_of_a_folder_does_not_stop_the_page(tmp_path):
    shutil.copy(REAL / "conv.onnx", tmp_path / "good.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")

    bad, good = make_report(tmp_path).summary()

    assert (bad.name, good.name) == ("bad.onnx", "good.onnx")
    assert "is not an ONNX model" in bad.error
    assert good.nodes > 0
    with pytest.raises(InvalidProtobuf):
        make_report(tmp_path / "bad.onnx")


def test_a_configuration_names_models_in_folders_inside_and_none_outside(tmp_path):
    inside = tmp_path / "models" / "sub"
    inside.mkdir(parents=True)
    shutil.copy(REAL / "conv.onnx", inside / "m.onnx")
    shutil.copy(REAL / "conv.onnx", tmp_path / "secret.onnx")
    names = ["sub/m.onnx", "../secret.onnx", str(tmp_path / "secret.onnx"), "no.onnx"]
    config = [{"filename": name} for name in names]
    (inside.parent / "genai_config.json").write_text(json.dumps(config))

    found = make_report(inside.parent).summary()

    assert [model.name for model in found] == ["m.onnx"]


def test_vendors_own_files_are_shown_with_their_nodes():
    report = make_report(REAL)

    models = {model["name"]: model for model in report.data["models"]}
    found = {
        name: [payload["source"] for payload in model["payloads"]]
        for name, model in models.items()
        if model["payloads"]
    }
    assert found == {
        "ov_ctx0.onnx": [OPENVINO],
        "qnn_ctx0.onnx": [QNN],
        "qnn_ctx1.onnx": [QNN],
        "share1_ctx.onnx": [QNN],
        "share2_ctx.onnx": [QNN],
    }
    # The EP that is installed here is simulated; the one that wrote them was not.
    qnn = models["qnn_ctx0.onnx"]
    assert not any(ep["simulated"] for ep in qnn["eps"])
    assert qnn["payloads"][0]["state"] == "without digests"
    assert qnn["verdict"] == "not checked"
    (context,) = qnn["contexts"]
    facts = {fact["name"]: fact["value"] for fact in context["facts"]}
    assert facts["payload"] == "qnn_ctx0_qnn.bin"
    assert facts["ep_sdk_version"] == "v2.51.0.260929181845"
    shared = {
        file["name"]: file["holds"] for file in models["share1_ctx.onnx"]["files"]
    }
    assert shared["share1_qnn.bin"].endswith("; shared with share2_ctx.onnx") or (
        "share2_ctx.onnx" not in str(models["share1_ctx.onnx"]["files"])
    )


def test_parts_of_a_model_add_up_to_its_file():
    model = describe(REAL / "qnn_ctx1.onnx")

    sizes = {file["name"]: file["bytes"] for file in model["files"]}
    assert sizes["embedded payloads"] > 60_000
    assert sizes["graph"] < 2_000
    parts = sizes["graph"] + sizes["weights"] + sizes["embedded payloads"]
    assert parts == pytest.approx(sizes["qnn_ctx1.onnx"], rel=0.02)


def test_tensors_of_constant_nodes_are_weights(tmp_path):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[512] x, bool c) => (float[512] y, float[512] z) {
            k = Constant()  y = Add(x, k)
            z = If(c) <
                then_branch = t () => (float[512] u) { u = Constant() },
                else_branch = e () => (float[512] v) { v = Add(x, x) }
            >
        }"""
    )
    tensor = onnx.numpy_helper.from_array(np.ones(512, np.float32))
    value = onnx.helper.make_attribute("value", tensor)
    model.graph.node[0].attribute.append(value)
    for branch in model.graph.node[2].attribute:
        if branch.g.name == "t":
            branch.g.node[0].attribute.append(value)
    onnx.save(model, tmp_path / "m.onnx")

    for eps in ((), (OPENVINO,)):
        described = describe(tmp_path / "m.onnx", sess_options=with_eps(*eps))

        sizes = {file["name"]: file["bytes"] for file in described["files"]}
        assert sizes["weights"] == 4096
        assert sizes["graph"] == sizes["m.onnx"] - 4096
        assert sum(described["nodes"]["weight_bytes"]) == 4096


def test_two_models_are_shown_with_their_differences(folder):
    report = make_report(
        folder / "bert.onnx",
        folder / "bert_ctx.onnx",
        sess_options=with_eps(OPENVINO),
    )

    differences = report.data["differences"]
    assert (differences["first"], differences["second"]) == (
        "bert.onnx",
        "bert_ctx.onnx",
    )
    assert {row["part"] for row in differences["rows"]} >= {"node"}
    numbers = {
        row["name"]: (row["first"], row["second"], row["change"])
        for row in differences["summary"]
    }
    assert numbers["nodes"] == ("171", "9", "-162")
    assert numbers[f"partitions of {OPENVINO}"] == ("5", "5", "")
    assert numbers["nodes of CPUExecutionProvider"] == ("4", "4", "")
    assert report.differences == len(differences["rows"])


def test_weights_that_were_not_compared_are_said_with_the_differences(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[512] x) => (float[512] y) { y = Add(x, w) }"
    )
    weight = onnx.numpy_helper.from_array(np.ones(512, np.float32), "w")
    model.graph.initializer.append(weight)
    onnx.save(model, tmp_path / "inside.onnx")
    onnx.save(
        model,
        tmp_path / "outside.onnx",
        save_as_external_data=True,
        location="outside.data",
    )

    report = make_report(tmp_path / "inside.onnx", tmp_path / "outside.onnx")

    assert report.differences == 0
    (note,) = report.data["differences"]["notes"]
    assert note.startswith("the bytes of 1 weight in files were not compared")


def test_models_of_one_name_are_told_apart(tmp_path):
    paths = []
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        paths.append(Path(shutil.copy(REAL / "conv.onnx", tmp_path / place)))

    report = make_report(*paths)

    assert [model["label"] for model in report.data["models"]] == [*map(str, paths)]


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


@pytest.mark.parametrize("option", ["trace", "bench", "errors"])
@pytest.mark.parametrize("kind", STRANGE)
def test_a_file_that_could_not_be_read_to_its_end_is_refused(
    kind, option, folder, tmp_path
):
    path = tmp_path / "times.json"
    STRANGE[kind](path)

    with pytest.raises(InvalidArgument, match=r"times\.json"):
        make_report(folder / "bert.onnx", **with_file(option, path))


@pytest.mark.parametrize("kind", STRANGE)
def test_a_genai_config_that_could_not_be_read_to_its_end_orders_nothing(
    kind, folder, tmp_path
):
    (tmp_path / "m.onnx").write_bytes((folder / "bert_ctx.onnx").read_bytes())
    STRANGE[kind](tmp_path / "genai_config.json")

    (model,) = make_report(tmp_path).data["models"]
    assert model["name"] == "m.onnx"
