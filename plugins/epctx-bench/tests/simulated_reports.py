"""Reports of simulated measurements; run as a script it prints the table that gate.py
quotes.
"""

from __future__ import annotations

import numpy as np
from epctx_bench.gate import judge
from epctx_bench.ratio import TRIMMED
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


def measure_rules(turns, noise, slowdown, reports=40_000):
    """Return how often the gate's rule and the other one fail simulated reports: a
    significant slowdown with an estimate above the threshold, and a significant test of
    "slower by more than the threshold".
    """
    random = np.random.default_rng([turns, round(noise * 100)])
    # The difference of two errors on logarithms: ours and the peer's.
    then, now = random.normal(0, noise * np.sqrt(2), (2, reports, turns))
    now += np.log(slowdown)
    estimates = stats.trim_mean(now, TRIMMED, axis=1)
    estimates -= stats.trim_mean(then, TRIMMED, axis=1)

    significant, exceeds = (
        stats.ttest_ind(
            now - least,
            then,
            axis=1,
            equal_var=False,
            trim=TRIMMED,
            alternative="greater",
        ).pvalue
        < 0.01
        for least in (0, np.log(1.05))
    )
    ours = significant & (estimates > np.log(1.05))
    return float(ours.mean()), float(exceeds.mean())


if __name__ == "__main__":
    for noise in (0.02, 0.03, 0.05):
        for turns in (10, 15, 30):
            parts = [
                part
                for slowdown in (1.0, 1.1, 1.2)
                for part in measure_rules(turns, noise, slowdown)
            ]
            print(f"{noise:5.0%}{turns:6}", *(f"{part:7.1%}" for part in parts))  # noqa: T201
