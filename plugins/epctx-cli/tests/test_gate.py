"""`epctx gate`: facts of a model against a baseline, one exit code."""

from __future__ import annotations

import json

import junitparser
import numpy as np
import onnx
import pytest
import sarif_pydantic
from onnx import helper, numpy_helper
from support.small_models import chain, finished, saved, tensor

QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"
TAKEN = ["Relu", "Add", "Relu", "Mul"]


@pytest.fixture
def gate(epctx, tmp_path):
    """Write a chain of operators as the model, and run the gate on it and its baseline,
    with further options.
    """

    def run(operators, *arguments, seed=0):
        model = operators
        if isinstance(operators, list):
            model = saved(chain(operators, seed=seed), tmp_path / "m.onnx")
        baseline = tmp_path / "gate.json"
        return epctx("gate", model, "--baseline", baseline, *arguments)

    return run


@pytest.fixture
def context(epctx, tmp_path):
    """A context model of the simulated QNN, beside its source."""
    source = saved(chain(TAKEN), tmp_path / "m.onnx")
    assert epctx("compile", source, "--ep", "QNN").code == 0
    return tmp_path / "m_ctx.onnx"


@pytest.fixture
def tolerate(tmp_path):
    """Set a tolerance in the baseline."""

    def change(name, value):
        path = tmp_path / "gate.json"
        baseline = json.loads(path.read_text())
        baseline["tolerances"][name] = value
        path.write_text(json.dumps(baseline))

    return change


def find_regressions(said):
    """Return kind and subject of each regression."""
    return [
        tuple(check["name"].split(" ", 1))
        for check in said.json["checks"]
        if check["status"] == "regressed"
    ]


def test_an_unchanged_model_passes_and_its_baseline_is_written_with_equal_bytes(
    gate, tmp_path
):
    path = tmp_path / "gate.json"

    written = gate(TAKEN, "--ep", "QNN", "--update")
    before = path.read_bytes()
    passed = gate(TAKEN, "--ep", "QNN")
    again = gate(TAKEN, "--ep", "QNN", "--update")

    assert (written.code, passed.code, again.code) == (0, 0, 0), passed.err
    assert path.read_bytes() == before
    assert "passed" in passed.out.splitlines()[-1]


def test_a_baseline_is_small_sorted_and_names_nothing_of_the_machine(gate, tmp_path):
    gate(TAKEN, "--ep", "QNN", "--update")

    text = (tmp_path / "gate.json").read_text()
    baseline = json.loads(text)

    assert text == json.dumps(baseline, indent=2, sort_keys=True) + "\n"
    facts = baseline["facts"]
    assert facts.pop("errors y") < 1e-4
    assert facts.pop(f"bytes {QNN}") > 0
    assert facts == {
        f"nodes {CPU}": 0,
        f"nodes {QNN}": 4,
        f"partitions {QNN}": 1,
        f"verdicts {QNN}": "EP_SUPPORTED_OPTIMAL",
        "verification payloads": "ok",
    }
    assert "distribution epctx-sim-qnn, version 0.1.0" in baseline["made_from"][QNN]
    assert "sdk sim-" in baseline["made_from"][QNN]
    assert str(tmp_path) not in text
    assert len(text.splitlines()) < 50


def test_more_nodes_on_the_cpu_fail_and_the_command_that_shows_more_is_named(
    gate, tmp_path
):
    gate(TAKEN, "--ep", "QNN", "--update")

    said = gate([*TAKEN, "Atanh"], "--ep", "QNN")

    assert said.code == 1
    assert f"regressed: nodes of {CPU}: 1, 0 in the baseline" in said.out
    assert f"epctx explain {tmp_path / 'm.onnx'} --ep QNN" in said.out
    assert "model is " in said.out
    assert said.out.splitlines()[-1].startswith("FAILED: ")


def test_nodes_inside_a_subgraph_count(gate, tmp_path):
    def write(operator):
        branch = helper.make_graph(
            [
                helper.make_node("Atanh", ["x"], ["a"]),
                helper.make_node(operator, ["a"], ["b"]),
            ],
            "branch",
            [],
            [tensor("b")],
        )
        node = helper.make_node(
            "If", ["c"], ["y"], then_branch=branch, else_branch=branch
        )
        inputs = [tensor("x"), tensor("c", onnx.TensorProto.BOOL, ())]
        return saved(finished([node], inputs, [tensor("y")]), tmp_path / "if.onnx")

    gate(write("Relu"), "--ep", "QNN", "--update")
    facts = json.loads((tmp_path / "gate.json").read_text())["facts"]

    assert facts[f"nodes {CPU}"] == 5
    assert facts[f"nodes {QNN}"] == 0


def test_more_partitions_fail(gate, tolerate):
    gate([*TAKEN, "Atanh"], "--ep", "QNN", "--update")
    # Each graph has a header.
    tolerate("bytes", 1)

    said = gate(["Relu", "Add", "Atanh", "Relu", "Mul"], "--ep", "QNN", "--json")

    assert said.code == 1
    assert find_regressions(said) == [("partitions", QNN)]


def test_a_payload_that_grew_beyond_the_tolerance_fails(gate, tmp_path):
    def write(size):
        weight = np.random.default_rng(0).standard_normal((size, 64), np.float32)
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
        return saved(
            finished(
                nodes,
                [tensor("x", shape=(1, size))],
                [tensor("y", shape=(1, 64))],
                [numpy_helper.from_array(weight, "w")],
            ),
            tmp_path / "m.onnx",
        )

    gate(write(4096), "--ep", "QNN", "--update")

    within = gate(write(4112), "--ep", "QNN", "--json")
    beyond = gate(write(8192), "--ep", "QNN", "--json")

    assert (within.code, find_regressions(within)) == (0, [])
    assert (beyond.code, find_regressions(beyond)) == (1, [("bytes", QNN)])


def test_results_that_became_worse_fail(gate, tolerate):
    gate(TAKEN, "--ep", "QNN", "--update")
    tolerate("errors", 1e-6)
    half = ("-p", "QNN.enable_htp_fp16_precision=1")

    said = gate(TAKEN, "--ep", "QNN", *half, "--json")
    text = gate(TAKEN, "--ep", "QNN", *half)

    assert (said.code, find_regressions(said)) == (1, [("errors", "y")])
    assert "epctx compile " in text.out
    assert "--check (with the same -c, -p and --free-dimension)" in text.out
    # Their values may be secret.
    assert "fp16_precision" not in text.out


def test_an_ep_that_does_not_support_its_context_model_any_more_fails(gate, context):
    gate(context, "--source", context.with_name("m.onnx"), "--update")

    said = gate(
        *(context, "--ep", "QNN", "--source", context.with_name("m.onnx")),
        *("-p", "QNN.runtime_sdk_version=sim-1.0.0", "--json"),
    )

    assert said.code == 1
    assert ("verdicts", QNN) in find_regressions(said)
    # What could be measured and cannot any more is no success.
    assert ("errors", "y") in find_regressions(said)


def test_a_payload_that_was_damaged_fails(gate, context):
    gate(context, "--update")
    binary = context.with_name("m_qnn.bin")
    content = bytearray(binary.read_bytes())
    content[-1] ^= 1
    binary.write_bytes(content)

    said = gate(context, "--json")

    assert said.code == 1
    assert find_regressions(said) == [("verification", "payloads")]
    (check,) = (each for each in said.json["checks"] if each["status"] == "regressed")
    assert check["command"].startswith(f"epctx verify {context}")


def test_a_context_model_has_errors_where_its_source_is_given(gate, context, tmp_path):
    gate(context, "--update")
    without = json.loads((tmp_path / "gate.json").read_text())["facts"]
    gate(context, "--source", context.with_name("m.onnx"), "--update")
    with_source = json.loads((tmp_path / "gate.json").read_text())["facts"]
    forgotten = gate(context)

    assert "errors y" not in without
    assert with_source["errors y"] < 1e-4
    assert (without[f"nodes {CPU}"], without[f"nodes {QNN}"]) == (0, 1)
    assert forgotten.code == 1
    assert "regressed: errors of y: absent, " in forgotten.out
    assert "SOURCE" in forgotten.out


def test_an_output_that_the_model_lost_fails_and_a_new_one_is_told(gate, tmp_path):
    def write(name):
        model = chain(TAKEN)
        model.graph.node[-1].output[0] = model.graph.output[0].name = name
        return saved(model, tmp_path / "m.onnx")

    gate(write("y"), "--ep", "QNN", "--update")

    said = gate(write("z"), "--ep", "QNN", "--json")

    statuses = {check["name"]: check["status"] for check in said.json["checks"]}
    assert said.code == 1
    assert (statuses["errors y"], statuses["errors z"]) == ("regressed", "changed")


@pytest.mark.parametrize("ep", ["QNN", "qnn", "epctx-sim-qnn:QNNExecutionProvider"])
def test_options_of_an_ep_reach_its_verdict_however_it_is_named(gate, context, ep):
    gate(context, "--update")

    said = gate(
        *(context, "--ep", ep, "-p", f"{ep}.runtime_sdk_version=sim-1.0.0", "--json")
    )

    assert said.code == 1
    assert ("verdicts", QNN) in find_regressions(said)


def test_a_context_model_without_its_plugin_ends_as_other_commands_do(
    process, gate, context, tmp_path
):
    gate(context, "--update")

    said = process(
        *("gate", context, "--baseline", tmp_path / "gate.json"),
        EPCTX_DISABLE_PLUGINS="epctx-sim-qnn",
    )

    assert said.code == 3
    assert "QNNExecutionProvider" in said.err


def test_results_are_compared_on_inputs_of_a_file_or_another_seed(gate, tmp_path):
    given = tmp_path / "inputs.npz"
    np.savez(given, x=np.zeros((2, 3), np.float32))
    half = ("--ep", "QNN", "-p", "QNN.enable_htp_fp16_precision=1", "--json")

    zeros = gate(TAKEN, *half, "--update", "--input", given)
    seeded = gate(TAKEN, *half, "--update", "--seed", 1)
    without = gate(TAKEN, *half, "--update")

    errors = [each.json["facts"]["errors y"] for each in (zeros, seeded, without)]
    assert len({*errors}) == 3, errors


def test_the_command_for_a_context_model_is_one_that_inspects_it(
    gate, context, monkeypatch
):
    monkeypatch.chdir(context.parent)
    gate("./m_ctx.onnx", "--update")

    said = gate("./m_ctx.onnx", "--json")

    commands = {each["name"]: each["command"] for each in said.json["checks"]}
    assert commands[f"nodes {QNN}"] == "epctx inspect ./m_ctx.onnx"
    assert commands["verification payloads"] == "epctx verify ./m_ctx.onnx"


def test_times_of_a_context_model_are_refused_before_anything_is_measured(
    gate, context, tmp_path
):
    said = gate(context, "--time", tmp_path / "times.json", "--update")

    assert said.code == 2
    assert "--time needs a plain model" in said.err


def test_a_missing_report_of_times_is_named_before_anything_is_measured(gate, tmp_path):
    gate(TAKEN, "--ep", "QNN", "--update")

    said = gate(TAKEN, "--ep", "QNN", "--time", tmp_path / "times.json")

    assert said.code == 2
    assert "times.json does not exist" in said.err


def test_a_model_that_cannot_be_compiled_writes_no_baseline(gate, tmp_path):
    said = gate(tmp_path / "missing.onnx", "--ep", "QNN", "--update")

    assert said.code == 2
    assert not (tmp_path / "gate.json").exists()


def test_an_improvement_passes_and_is_told(gate):
    gate([*TAKEN, "Atanh"], "--ep", "QNN", "--update")

    said = gate(TAKEN, "--ep", "QNN")

    assert said.code == 0
    assert f"improved: nodes of {CPU}: 0, 1 in the baseline" in said.out
    assert "1 improved" in said.out.splitlines()[-1]


def test_tolerances_of_the_file_count_and_an_update_keeps_them(
    gate, tolerate, tmp_path
):
    path = tmp_path / "gate.json"
    gate(TAKEN, "--ep", "QNN", "--update")
    tolerate("nodes", 1)

    passed = gate([*TAKEN, "Atanh"], "--ep", "QNN")
    failed = gate([*TAKEN, "Atanh", "Atanh"], "--ep", "QNN")
    updated = gate([*TAKEN, "Atanh"], "--ep", "QNN", "--update")

    assert (passed.code, failed.code, updated.code) == (0, 1, 0)
    assert json.loads(path.read_text())["tolerances"]["nodes"] == 1


def test_without_a_baseline_nothing_is_compiled_and_update_is_named(gate):
    said = gate(TAKEN, "--ep", "QNN")

    assert said.code == 2
    assert "--update" in said.err


def test_a_plain_model_needs_an_ep(gate):
    assert gate(TAKEN, "--update").code == 2


def test_an_update_does_not_replace_a_file_that_is_no_baseline(gate, tmp_path):
    other = tmp_path / "gate.json"
    other.write_text('{"name": "mine"}\n')

    said = gate(TAKEN, "--ep", "QNN", "--update")

    assert said.code == 2
    assert other.read_text() == '{"name": "mine"}\n'


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.pop("schema"),
        lambda b: b.update(schema=2),
        lambda b: b.update(schema=True),
        lambda b: b.update(facts=[]),
        lambda b: b.update(made_from={"epctx": 1}),
        lambda b: b["facts"].update(nodes=[]),
        lambda b: b["facts"].update(nodes=None),
        lambda b: b["facts"].update({f"nodes {CPU}": -1}),
        lambda b: b["facts"].update({f"nodes {CPU}": True}),
        lambda b: b["facts"].update({f"bytes {QNN}": 10**400}),
        lambda b: b["facts"].update({"errors y": float("nan")}),
        lambda b: b["tolerances"].update(nodes=[]),
        lambda b: b["tolerances"].update(byte=0.1),
        lambda b: b["tolerances"].update(bytes=-1),
        lambda b: b["tolerances"].update(bytes=float("inf")),
    ],
)
def test_a_baseline_that_is_none_is_refused_with_its_name(gate, tmp_path, change):
    path = tmp_path / "gate.json"
    gate(TAKEN, "--ep", "QNN", "--update")
    baseline = json.loads(path.read_text())
    change(baseline)
    path.write_text(json.dumps(baseline))

    said = gate(TAKEN, "--ep", "QNN")

    assert said.code == 2
    assert "gate.json is no baseline" in said.err


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_a_baseline_that_is_no_json_is_refused(gate, tmp_path, content):
    (tmp_path / "gate.json").write_bytes(content)

    said = gate(TAKEN, "--ep", "QNN", "--update")

    assert said.code == 2
    assert "gate.json is no baseline" in said.err


def test_an_unknown_tolerance_is_refused_with_the_nearest(gate, tmp_path):
    path = tmp_path / "gate.json"
    gate(TAKEN, "--ep", "QNN", "--update")
    path.write_text(path.read_text().replace('"partitions"', '"partition"'))

    said = gate(TAKEN, "--ep", "QNN")

    assert said.code == 2
    assert "Did you mean 'partitions'?" in said.err


def test_fifty_repetitions_of_an_unchanged_model_raise_no_alarm(gate, tmp_path):
    gate(TAKEN, "--ep", "QNN", "--update")

    said = [gate(TAKEN, "--ep", "QNN") for _ in range(50)]

    assert {each.code for each in said} == {0}
    assert not any("improved" in each.out or "changed" in each.out for each in said)


@pytest.fixture
def reports(gate, tmp_path):
    """Fail the gate of a model with a strange output; return the folder of reports."""
    names = [f"gate{ending}" for ending in (".xml", ".sarif", ".md")]
    name = "y|<b>`&\x01"

    def write(operators):
        model = chain(operators)
        model.graph.node[-1].output[0] = model.graph.output[0].name = name
        return saved(model, tmp_path / "m.onnx")

    gate(write(TAKEN), "--ep", "QNN", "--update")
    folder = tmp_path / "reports"
    outputs = [word for each in names for word in ("-o", folder / each)]

    said = gate(write([*TAKEN, "Atanh"]), "--ep", "QNN", *outputs)

    assert said.code == 1, said.err
    assert "regressed: " in said.out
    return folder


def test_a_reader_of_junit_finds_the_failure(reports):
    (suite,) = junitparser.JUnitXml.fromfile(str(reports / "gate.xml"))

    cases = {(case.classname, case.name): case for case in suite}
    failed = [key for key, case in cases.items() if case.is_failure]
    assert (suite.tests, suite.failures, suite.errors) == (len(cases), 1, 0)
    assert failed == [("epctx.gate.nodes", CPU)]
    (failure,) = cases["epctx.gate.nodes", CPU].result
    assert "1, 0 in the baseline (+1, tolerance 0)" in failure.message
    assert "epctx explain" in failure.text
    assert ("epctx.gate.errors", r"y|<b>`&\x01") in cases


def test_a_reader_of_sarif_finds_the_failure_at_the_baseline(reports):
    log = sarif_pydantic.Sarif.model_validate_json((reports / "gate.sarif").read_text())

    (run,) = log.runs
    (result,) = run.results
    assert (result.rule_id, result.level.value) == ("gate/nodes", "error")
    assert "1, 0 in the baseline" in result.message.text
    (location,) = result.locations
    assert location.physical_location.artifact_location.uri.endswith("/gate.json")


def test_a_comment_has_the_report_as_code_that_foreign_text_cannot_leave(reports):
    heading, blank, *lines = (reports / "gate.md").read_text().splitlines()

    assert (heading, blank) == ("### epctx gate: failed", "")
    assert all(line.startswith("    ") for line in lines)
    assert lines[0].startswith(f"    regressed: nodes of {CPU}: 1, 0 in the baseline")


def test_a_file_of_another_form_is_refused_before_anything_is_measured(gate):
    said = gate(TAKEN, "--ep", "QNN", "--update", "-o", "gate.html")

    assert said.code == 2
    assert ".sarif" in said.err
