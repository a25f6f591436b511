"""Errors by partition on a page are those of `epctx compare --by-partition`."""

from __future__ import annotations

import json

import onnx
import pytest
from epctx_report import Measurements, make_report
from support.faulty_ep import FAULTS, FaultyProvider, Network, find_block
from support.sim_eps import OPENVINO, with_eps

from epctx_core import temporary_execution_provider
from epctx_core.errors import InvalidArgument, NoSuchFile

RIGHT = {"max_abs": 0.0, "mean_abs": 0.0, "max_rel": 0.0, "snr_db": None, "cosine": 1.0}


def describe(model, errors, **options):
    """Return the first model of a report with errors."""
    report = make_report(model, measurements=Measurements(errors=errors), **options)
    return report.data["models"][0]


def make_row(partition, **own):
    """Return a row of a comparison with an own error."""
    errors = {"worst": RIGHT, "mean": RIGHT}
    return {
        "partition": partition,
        "ep": OPENVINO,
        "output": "y",
        "own": errors | {"worst": RIGHT | own},
        "inherited": errors,
        "total": errors,
        "worst_input": 0,
    }


def write(path, *rows, uncompared=()):
    """Write a comparison; return its path."""
    found = {"rows": rows, "uncompared": uncompared, "inputs": 1}
    path.write_text(json.dumps({"by_partition": found}))
    return path


@pytest.fixture
def names(folder):
    """The names of the partitions of the folder's context model."""
    model = onnx.load(folder / "bert_ctx.onnx", load_external_data=False)
    return [node.name for node in model.graph.node if node.op_type == "EPContext"]


@pytest.mark.parametrize(("seed", "fault"), [*enumerate(FAULTS)])
def test_the_partition_with_a_planted_error_has_the_worst_colour_alone(
    seed, fault, epctx, tmp_path, monkeypatch
):
    network = Network(seed, quantized=seed % 2 == 1)
    planted = network.draw_fault(fault)
    monkeypatch.setattr(FaultyProvider, "fault", planted)
    source, context = tmp_path / "net.onnx", tmp_path / "net_ctx.onnx"
    onnx.save(network.model, source)
    with temporary_execution_provider(FaultyProvider):
        epctx("compile", source, "--ep", "Faulty")
        said = epctx("compare", context, source, "--by-partition", "--json")
    (tmp_path / "errors.json").write_text(said.out)

    page = tmp_path / "page.html"
    shown = epctx("report", context, "--errors", tmp_path / "errors.json", "-o", page)
    errors = describe(context, tmp_path / "errors.json")["errors"]

    assert shown.code == 0
    assert page.is_file()
    assert len({row["box"] for row in errors["rows"]}) == 12
    worst = max(row["step"] for row in errors["rows"])
    blocks = [
        find_block(row["output"]) for row in errors["rows"] if row["step"] == worst
    ]
    assert blocks == [planted.block]
    assert (errors["note"], errors["uncompared"], errors["inputs"]) == ("", [], 1)
    for row, expected in zip(
        errors["rows"], said.json["by_partition"]["rows"], strict=True
    ):
        assert row["output"] == expected["output"]
        for kind in ("own", "inherited", "total"):
            assert row[kind] == expected[kind]["worst"]


def test_a_box_is_that_of_the_partition(folder, names, tmp_path):
    rows = [make_row(name, snr_db=70.0) for name in reversed(names)]

    model = describe(folder / "bert_ctx.onnx", write(tmp_path / "e.json", *rows))

    boxes = [row["box"] for row in model["errors"]["rows"]]
    first = [model["boxes"]["context"][box] for box in boxes]
    assert first == [1] * len(names)
    assert boxes == sorted(boxes, reverse=True)


@pytest.mark.parametrize(
    ("own", "step"),
    [
        ({}, 0),
        ({"snr_db": 95.0}, 0),
        ({"snr_db": 80.0}, 0),
        ({"snr_db": 79.9}, 1),
        ({"snr_db": 43.0}, 3),
        ({"snr_db": -5.0}, 6),
        ({"max_abs": None, "max_rel": None}, 6),
    ],
)
def test_equal_values_are_the_best_and_an_infinite_error_the_worst(
    own, step, folder, names, tmp_path
):
    file = write(tmp_path / "e.json", make_row(names[0], **own))

    errors = describe(folder / "bert_ctx.onnx", file)["errors"]

    assert [row["step"] for row in errors["rows"]] == [step]
    assert errors["steps"] == (80, 60, 50, 40, 30, 20)


def test_a_partition_that_was_not_compared_is_shown_with_the_reason(
    folder, names, tmp_path
):
    lost = {"partition": names[1], "reason": "the source lacks 'x'.", "body": ""}
    file = write(tmp_path / "e.json", make_row(names[0]), uncompared=[lost])

    errors = describe(folder / "bert_ctx.onnx", file)["errors"]

    assert [each["reason"] for each in errors["uncompared"]] == [lost["reason"]]
    assert errors["note"] == ""


@pytest.mark.parametrize("options", [None, with_eps(OPENVINO)])
def test_a_comparison_of_another_model_is_said_to_be_one(
    options, folder, names, tmp_path
):
    other = {"partition": "another", "reason": "why", "body": ""}
    rows = [make_row("other_0"), make_row("other_1"), make_row(names[0])]
    file = write(tmp_path / "other.json", *rows, uncompared=[other])

    context = describe(folder / "bert_ctx.onnx", file)["errors"]
    plain = describe(folder / "bert.onnx", file, sess_options=options)["errors"]

    assert context["note"] == (
        "3 of 4 partitions in other.json are not in this model: is it a comparison of "
        "another model?"
    )
    assert len(context["rows"]) == 1
    assert plain["note"].startswith("4 of 4 partitions in other.json")
    assert (plain["rows"], plain["uncompared"]) == ([], [])


def test_a_comparison_belongs_to_the_first_model_of_a_page(folder, names, tmp_path):
    file = write(tmp_path / "e.json", make_row(names[0]))

    report = make_report(
        folder / "bert_ctx.onnx",
        folder / "bert.onnx",
        measurements=Measurements(errors=file),
    )

    first, second = report.data["models"]
    assert len(first["errors"]["rows"]) == 1
    assert second["errors"] is None


@pytest.mark.parametrize(
    "own",
    [
        {"max_abs": float("nan")},
        {"snr_db": float("inf")},
        {"cosine": "one"},
        {"mean_abs": 10**400},
        {"max_rel": []},
        {"max_rel": {}},
    ],
)
def test_errors_that_are_no_numbers_are_refused(own, folder, names, tmp_path):
    file = write(tmp_path / "e.json", make_row(names[0], **own))

    with pytest.raises(InvalidArgument, match=r"e\.json"):
        describe(folder / "bert_ctx.onnx", file)


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {"rows": []},
        {"rows": {"a": 1}, "uncompared": [], "inputs": 1},
        {"rows": [{"partition": []}], "uncompared": [], "inputs": 1},
        {"rows": [], "uncompared": [{"partition": "p"}], "inputs": 1},
        {"rows": [], "uncompared": [], "inputs": "many"},
    ],
)
def test_a_comparison_of_another_form_is_refused(found, folder, tmp_path):
    (tmp_path / "e.json").write_text(json.dumps({"by_partition": found}))

    with pytest.raises(InvalidArgument) as caught:
        describe(folder / "bert_ctx.onnx", tmp_path / "e.json")

    assert "epctx compare --by-partition --json" in caught.value.hint


def test_a_comparison_without_partitions_is_refused(epctx, folder, tmp_path):
    (tmp_path / "e.json").write_text(json.dumps({"schema": 1, "outputs": []}))

    said = epctx(
        "report", folder / "bert_ctx.onnx", "--errors", tmp_path / "e.json",
        "-o", tmp_path / "page.html",
    )  # fmt: skip

    assert said.code == 2
    assert "Give a file that epctx compare --by-partition --json wrote." in said.err
    assert not (tmp_path / "page.html").exists()
    with pytest.raises(NoSuchFile, match=r"none\.json"):
        describe(folder / "bert_ctx.onnx", tmp_path / "none.json")
