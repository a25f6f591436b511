"""Plots are drawn from reports as epctx_bench saves them."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest
from epctx_bench.saved import load_report, save_report
from support.folders import ROOT

pytestmark = pytest.mark.internal

SCRIPT = ROOT / "benchmarks" / "plot.py"
KINDS = ("first-result", "load-time")


def draw(kind, target, *reports):
    """Draw in a process of its own; return the bytes."""
    pytest.importorskip("matplotlib", reason="the group bench-plots is not installed")
    subprocess.run([sys.executable, SCRIPT, kind, target, *reports], check=True)
    return target.read_bytes()


def test_a_pair_has_the_samples_of_the_context_model_and_of_onnxruntime(
    plot, report_of_chain
):
    report = load_report(report_of_chain)
    ours, peer = report["columns"]

    (pair,) = plot.find_pairs([report], "first_result")

    assert (pair.model, pair.eps) == ("chain_2", ["QNN"])
    assert pair.ours == ours["rows"]["first_result"]["samples"]
    assert pair.peer == peer["rows"]["first_result"]["samples"]
    assert plot.count_nodes(pair) == 2


def test_the_caption_says_what_is_simulated_and_whether_the_machine_was_busy(
    plot, report_of_chain
):
    report = load_report(report_of_chain)
    pairs = plot.find_pairs([report], "load_warm")
    busy = report | {"noise": {"busy": True, "share": 0.25, "reason": "Busy."}}
    quiet = report | {"noise": {"busy": False, "share": 0.25, "reason": "Quiet."}}

    said = plot.describe_measurement([quiet], pairs)

    assert "EPs (QNN) are simulated" in said
    assert "range of 2 turns in" in said
    assert f"{report['machine']['cores']} cores" in said
    assert "busy" not in said
    assert "busy: up to 25%" in plot.describe_measurement([quiet, busy], pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_report_gives_the_same_bytes(report_of_chain, tmp_path, kind):
    first = draw(kind, tmp_path / "first.svg", report_of_chain)
    second = draw(kind, tmp_path / "second.svg", report_of_chain)

    assert first == second
    assert b"<dc:date>" not in first
    assert ET.fromstring(first).tag.endswith("svg")  # noqa: S314 - our own file


@pytest.mark.parametrize("kind", KINDS)
def test_other_times_give_another_plot(report_of_chain, tmp_path, kind):
    report = json.loads(report_of_chain.read_text())
    for row in ("load_warm", "first_result"):
        samples = report["columns"][0]["rows"][row]["samples"]
        report["columns"][0]["rows"][row]["samples"] = [3 * each for each in samples]
    save_report(report, tmp_path / "other.json")

    first = draw(kind, tmp_path / "first.svg", report_of_chain)
    second = draw(kind, tmp_path / "second.svg", tmp_path / "other.json")

    assert first != second
    assert b"simulated" in first


def test_a_report_without_a_peer_cannot_be_drawn(report_of_chain, tmp_path):
    pytest.importorskip("matplotlib", reason="the group bench-plots is not installed")
    report = json.loads(report_of_chain.read_text())
    save_report(report | {"columns": report["columns"][1:]}, tmp_path / "alone.json")

    done = subprocess.run(
        [sys.executable, SCRIPT, KINDS[0], tmp_path / "a.svg", tmp_path / "alone.json"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "no report has first_result" in done.stderr
    assert not (tmp_path / "a.svg").exists()
