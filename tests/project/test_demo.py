"""The demo does what the README says, in a folder of its own."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from support.folders import ROOT
from support.installed import install_distribution


def run_demo(folder, path=()):
    """Run the demo with further folders to import from; return what it says."""
    command = [sys.executable, ROOT / "examples" / "demo.py", folder / "out"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}

    finished = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What the demo says where a vendor's EP is installed beside the simulated ones."""
    folder = tmp_path_factory.mktemp("demo")
    entries = {"OpenVINOExecutionProvider": "epctx_openvino:OpenVINOExecutionProvider"}
    install_distribution(
        folder / "installed",
        "epctx-openvino",
        {"epctx.execution_providers": entries},
        version="0.1.0",
    )
    return run_demo(
        folder,
        path=[folder / "installed", ROOT / "plugins" / "epctx-openvino" / "src"],
    )


def check_simulated(said):
    """Three real networks are compiled, moved and run by simulated EPs, one of them by
    two.
    """
    assert said.count("(agrees)") == 3
    assert "Loaded by QNNExecutionProvider, CPUExecutionProvider" in said
    assert "Loaded by OpenVINOExecutionProvider, CPUExecutionProvider" in said
    split = said.split("== shufflenet_int8")[1]
    for ep in (
        "VitisAIExecutionProvider",
        "QNNExecutionProvider",
        "CPUExecutionProvider",
    ):
        assert int(re.search(rf"{ep} +(\d+) nodes", split)[1]) > 0
    assert "Nothing here runs on an NPU" in said

    (page,) = re.findall(r"^  (.*\.html)$", said, re.MULTILINE)
    assert Path(page).read_text("utf-8").startswith("<!doctype html>")


def test_the_demo_compiles_moves_and_runs_three_real_networks_one_of_them_on_two_eps(
    said,
):
    check_simulated(said.split("The simulated EPs")[1])


def test_the_demo_begins_with_a_vendors_ep_where_one_is_installed(said):
    first, rest = said.split("The simulated EPs")
    assert "OpenVINOExecutionProvider  from epctx-openvino 0.1.0: a vendor's\n" in first
    assert "for epctx-openvino:OpenVINOExecutionProvider ==" in first
    assert "No vendor's EP works here" not in said
    assert first.count("(agrees)") == 1
    assert "for epctx-sim-openvino:OpenVINOExecutionProvider ==" in rest
    assert list_measured(said) == [
        ("bert_on_openvino", ""),
        ("resnet50", "EP"),
        ("bert", "EP"),
        ("shufflenet_int8", "EPs"),
    ]


def test_without_a_vendors_ep_the_demo_finds_the_simulated_ones_alone():
    real, simulated = runpy.run_path(str(ROOT / "examples" / "demo.py"))["find_eps"]()

    assert real == {}
    assert {*simulated} == {"QNN", "OpenVINO", "VitisAI"}


@pytest.mark.stress
def test_without_a_vendors_ep_the_demo_says_so_and_shows_the_simulated_ones(tmp_path):
    said = run_demo(tmp_path)

    assert "No vendor's EP works here" in said
    check_simulated(said.split("The simulated EPs")[1])
    assert list_measured(said) == [
        ("resnet50", "EP"),
        ("bert", "EP"),
        ("shufflenet_int8", "EPs"),
    ]


def list_measured(said):
    """Return name and kind of EPs of each network whose first results were measured."""
    _, measured = said.split("\nTimes to the first result, ")
    return re.findall(
        r"^  (\w+)(?: \(simulated (EPs?)\))?$\n    from process start, with imports: .*\n"
        r"    without imports: ",
        measured,
        re.MULTILINE,
    )


def find_savings(said):
    """Return of each network, with imports and without, both times and the
    comparison.
    """
    number = r"(\d[\d,.]* (?:s|ms|us))"
    return re.findall(
        rf"^    (from process start, with imports|without imports): {number} against "
        rf"{number}, (about as fast|[\d.e+]+ times (?:faster|slower))"
        r"(?:, not certain after \d turns?)?$",
        said,
        re.MULTILINE,
    )


def test_the_savings_of_the_demo_are_those_of_the_times_beside_them(said):
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6}

    savings = find_savings(said)

    assert len(savings) == 2 * 4
    for words, *times, comparison in savings:
        ours, peer = (
            float(number.replace(",", "")) * units[unit]
            for number, unit in map(str.split, times)
        )
        if comparison == "about as fast":
            # Medians and the ratio of pairs differ on a busy machine.
            assert 0.5 < ours / peer < 2, words
        else:
            assert ("faster" in comparison) == (ours < peer), words
