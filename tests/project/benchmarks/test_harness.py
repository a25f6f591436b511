"""Benchmarks measure with epctx_bench, and judge bars by intervals."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from epctx_bench.noise import Noise
from epctx_bench.ratio import estimate_ratio
from support.folders import ROOT

pytestmark = pytest.mark.internal

BENCHMARKS = ROOT / "benchmarks"
QUIET = Noise(busy=False, reason="The machine was free enough.", share=0.0)
BUSY = Noise(busy=True, reason="The machine is too busy.", share=0.5)
SCRIPT = """
import sys
from pathlib import Path
from harness import Bar, measure, report, show, show_bar

TURNS = Path(__file__).with_name("turns")

def child(factor):
    with TURNS.open("a") as file:
        file.write(factor)
    turn = (len(TURNS.read_text()) + 1) // 2
    report(s=turn * float(factor), empty_bytes=0)

if sys.argv[1:]:
    child(*sys.argv[1:])
else:
    measured = measure(__file__, {"ours": ["1"], "peer": ["4"]}, runs=3)
    bars = [Bar(ours="ours", peer="peer", at_most=bar) for bar in (0.9, 0.1)]
    show("a title", measured, bars)
    show_bar(measured, bars[0], "empty_bytes")
"""


def run_script(folder, **variables):
    """Run a benchmark whose children take longer in every turn, with variables of the
    environment.
    """
    script = folder / "bench_script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS), **variables}
    return subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=120,
    ).stdout


def test_a_table_has_medians_and_each_bar_an_interval_of_pairs_of_one_turn(tmp_path):
    said = run_script(tmp_path)

    # Both take longer in every turn; pairs of one turn have one ratio all the same.
    assert (tmp_path / "turns").read_text() == "141414"
    assert "| | s | empty_bytes |" in said
    first, second = (line for line in said.splitlines() if " = **" in line)
    assert first.startswith("ours / peer = **0.25 (0.25 to 0.25)** (bar 0.9: ")
    busy = "Bars are not judged." in said
    assert ("reached" in first) != busy
    assert ("MISSED" in second) != busy
    assert busy == ("not judged, the machine is busy" in first)


def test_a_benchmark_measures_nothing_where_python_keeps_no_byte_code(tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run_script(tmp_path, PYTHONDONTWRITEBYTECODE="1")

    assert raised.value.returncode == 1
    assert "Unset PYTHONDONTWRITEBYTECODE" in raised.value.stderr
    assert not (tmp_path / "turns").exists()


def test_a_figure_that_is_zero_has_no_ratio_and_the_table_goes_on(tmp_path):
    said = run_script(tmp_path)

    assert "ours / peer, empty_bytes: no ratio" in said


@pytest.mark.parametrize(
    ("at_most", "verdict"),
    [(1.2, "reached"), (0.8, "MISSED"), (1.0, "undecided, measure more turns")],
)
def test_a_bar_is_decided_by_the_whole_interval(harness, at_most, verdict):
    ratio = estimate_ratio([0.98, 1.02, 1.01, 0.99, 1.0], [1.0] * 5)

    assert harness.judge_bar(ratio, at_most, QUIET) == verdict


def test_no_bar_is_judged_on_a_busy_machine(harness, capsys):
    ratio = estimate_ratio([0.1] * 5, [1.0] * 5)

    harness.show_noise(BUSY)

    assert harness.judge_bar(ratio, 1.0, BUSY) == "not judged, the machine is busy"
    assert "The machine is too busy. Bars are not judged." in capsys.readouterr().out


def test_the_worst_of_several_networks_is_not_judged_if_one_was_noisy(harness, capsys):
    small = estimate_ratio([0.5] * 3, [1.0] * 3)
    large = estimate_ratio([0.7] * 3, [1.0] * 3)

    harness.show_worst("worst", [(small, BUSY), (large, QUIET)], 1.0)

    said = capsys.readouterr().out
    assert "worst = **0.7" in said
    assert "not judged" in said
    assert "reached" not in said


def test_a_single_pair_is_shown_without_an_interval_and_decides_nothing(harness):
    ratio = harness.combine_processes([0.5])

    assert harness.format_ratio(ratio) == "0.5 (one pair)"
    assert harness.judge_bar(ratio, 0.9, QUIET) == "undecided, measure more turns"


def test_processes_that_differ_widen_the_interval_of_their_turns(harness):
    inner = harness.pair_turns([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])

    ratio = harness.combine_processes([inner, 2 * inner, inner / 2])

    assert inner == pytest.approx(0.5)
    assert ratio.estimate == pytest.approx(0.5)
    assert ratio.low < inner / 2
    assert ratio.high > 2 * inner


def test_a_child_imports_nothing_that_would_count_as_its_memory():
    program = (
        "import harness, sys\n"
        "harness.seconds(int)\n"
        "print({'scipy', 'psutil', 'numpy', 'epctx_core'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    said = subprocess.check_output(
        [sys.executable, "-c", program], text=True, env=environment
    )

    assert said == "set()\n"


def test_memory_is_at_least_that_of_what_a_process_holds(harness):
    size = 256 << 20
    before = harness.resident_memory()
    held = bytearray(os.urandom(1)) * size
    after = harness.resident_memory()

    # What earlier tests have left may be freed meanwhile.
    freed = size // 4
    assert after - before > size - freed
    assert harness.peak_memory() >= after - freed
    assert len(held) == size
