"""Reports of simulated measurements; run as a script it prints the table that gate.py
quotes.
"""

from __future__ import annotations

import sys

import numpy as np
from epctx_bench.gate import Verdict, judge
from scipy import stats


def report(ours, peers, **extra):
    """Return a report of one column with one row, and its peer."""
    return {
        "schema": 1,
        "columns": [
            column("QNN", ours, peer="onnxruntime"),
            column("onnxruntime", peers),
        ],
        **extra,
    }


def column(name, samples, *, peer=None, error=None, row="load_warm"):
    rows = {row: {"unit": "s", "samples": [float(sample) for sample in samples]}}
    return {
        "name": name,
        "model": "model.onnx",
        "peer": peer,
        "error": error,
        "rows": rows,
    }


def simulate(random, turns, noise, *, slowdown=1.0, drift=0.0, outliers=0.0):
    """Return a report of 20 ms against 300 ms, with errors normal on logarithms.

    Args:
        random: numpy's generator.
        turns: number of pairs.
        noise: standard deviation of a sample.
        slowdown: factor of our times.
        drift: standard deviation of each step of a random walk that both columns share.
        outliers: part of the samples that take three times as long.
    """
    shared = np.cumsum(random.normal(0, drift, turns))
    sides = []
    for seconds in (0.02 * slowdown, 0.3):
        errors = random.normal(0, noise, turns) + shared
        errors += np.log(3) * (random.random(turns) < outliers)
        sides.append(seconds * np.exp(errors))
    return report(*sides)


def judge_simulated(random, turns, noise, *, slowdown=1.0, **kinds):
    """Return the verdict on our column, measured twice."""
    saved = simulate(random, turns, noise, **kinds)
    now = simulate(random, turns, noise, slowdown=slowdown, **kinds)
    return judge(saved, now).rows[0].verdict


def exceeds_threshold(random, turns, noise, *, slowdown=1.0):
    """Return whether the rule that the gate does not have fails a report: a significant
    test of "slower by more than the threshold".
    """
    saved, now = (
        np.log(np.divide(*(each["rows"]["load_warm"]["samples"] for each in columns)))
        for columns in (
            simulate(random, turns, noise)["columns"],
            simulate(random, turns, noise, slowdown=slowdown)["columns"],
        )
    )
    test = stats.ttest_ind(
        now - np.log(1.05), saved, equal_var=False, trim=0.2, alternative="greater"
    )
    return test.pvalue < 0.01


def measure_line(turns, noise, reports):
    """Return a line of the table: parts of simulated reports, in percent."""
    random = np.random.default_rng([turns, round(noise * 100)])
    parts = [
        np.mean(
            [fails(random, turns, noise, slowdown=slowdown) for _ in range(reports)]
        )
        for slowdown in (1.0, 1.1)
        for fails in (fails_gate, exceeds_threshold)
    ]
    return (f"{noise:5.0%}", f"{turns:5}", *(f"{part:7.2%}" for part in parts))


def fails_gate(random, turns, noise, *, slowdown=1.0):
    """Return whether the gate fails a simulated report."""
    verdict = judge_simulated(random, turns, noise, slowdown=slowdown)
    return verdict is Verdict.SLOWER


if __name__ == "__main__":
    for noise in (0.02, 0.03, 0.05):
        for turns in (15, 20, 30):
            print(*measure_line(turns, noise, int(sys.argv[1])), flush=True)  # noqa: T201
