"""Slowdowns that are injected into real sessions are found, what did not change raises
no alarm, and a busy machine gets no verdict.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest
import slowed_ep
from epctx_bench.gate import Verdict, judge
from epctx_bench.noise import Watcher
from simulated_reports import report as make_report
from slowed_ep import slow_down
from support.cli_fixtures import process  # noqa: F401 - a fixture
from support.installed import install_distribution
from test_noise import spinning

import epctx_core as epctx
from epctx_core.plugin import hookimpl

pytestmark = pytest.mark.internal

TURNS = 30
RUNS = 10
TRIES = 20
STEPS = 40
SLOWDOWN = 0.1


class Slowdown:
    """A host plugin that makes each run of a partition longer."""

    @hookimpl(wrapper=True)
    def compile(self):
        results = yield
        return [
            replace(result, run=slow_down(result.run, SLOWDOWN)) for result in results
        ]


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """A model of small products, so that no library divides one among threads."""
    lines = ["h0 = MatMul(x, x)"]
    for step in range(STEPS):
        lines.append(f"t{step} = Tanh(h{step})")
        lines.append(f"h{step + 1} = MatMul(t{step}, x)")
    lines.append(f"y = Tanh(h{STEPS})")

    text = (
        '<ir_version: 8, opset_import: ["" : 17]>'
        f"chain (float[40, 40] x) => (float[40, 40] y) {{ {' '.join(lines)} }}"
    )
    path = tmp_path_factory.mktemp("chain") / "chain.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def open_ours(path, *plugins):
    """Return a session of the simulated QNN EP with host plugins."""
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    for plugin in plugins:
        options.add_host_plugin(plugin)
    return epctx.InferenceSession(str(path), options)


def measure(ours, peer):
    """Return a report of two sessions that take turns in this process."""
    feeds = {"x": np.random.default_rng(0).standard_normal((40, 40), np.float32)}
    samples = {ours: [], peer: []}
    for session in samples:
        session.run(None, feeds)

    with Watcher() as watcher:
        for turn in range(TURNS):
            for session in (ours, peer) if turn % 2 else (peer, ours):
                begin = time.perf_counter()
                for _ in range(RUNS):
                    session.run(None, feeds)
                samples[session].append(time.perf_counter() - begin)
    return make_report(*samples.values(), noise=watcher.noise.as_dict())


@pytest.fixture(scope="module")
def peer(chain):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        str(chain), options, providers=["CPUExecutionProvider"]
    )


def judge_row(saved, now):
    """Return the row of two reports; one that is too noisy says why."""
    [row] = judge(saved, now).rows
    if row.verdict is Verdict.TOO_NOISY:
        busy = any(each["noise"]["busy"] for each in (saved, now))
        assert busy or row.high >= 1.1
        assert row.reason
    return row


def test_a_slowdown_of_a_tenth_in_a_real_session_is_found(chain, peer):
    with open_ours(chain) as ours, open_ours(chain, Slowdown()) as slowed:
        row = judge_row(measure(ours, peer), measure(slowed, peer))

    assert row.verdict in {Verdict.SLOWER, Verdict.TOO_NOISY}
    if row.verdict is Verdict.SLOWER:
        assert row.pvalue < 0.01


def test_a_session_that_did_not_change_raises_no_alarm_in_20_tries(chain, peer):
    with open_ours(chain) as ours:
        saved = measure(ours, peer)
        rows = [judge_row(saved, measure(ours, peer)) for _ in range(TRIES)]

    verdicts = [row.verdict for row in rows]
    assert Verdict.SLOWER not in verdicts


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the distribution of the EP that can be slowed down."""
    folder = tmp_path_factory.mktemp("site")
    target = "slowed_ep:SlowedProvider"
    entries = {"epctx.execution_providers": {"SlowedExecutionProvider": target}}
    install_distribution(folder, "slowed", entries)

    shutil.copy(slowed_ep.__file__, folder)
    return folder


@pytest.fixture
def measured(process, site, chain):  # noqa: F811
    """Call `epctx bench` of the chain, in a process of its own."""

    def call(*arguments, slowdown=0.0):
        command = ("bench", chain, "--ep", "Slowed", *arguments)
        added = {slowed_ep.SLOWDOWN: str(slowdown)}
        return process(*command, path=(site,), timeout=700, **added)

    return call


def test_two_spinning_processes_prevent_a_verdict(process, chain, tmp_path):  # noqa: F811
    path = tmp_path / "report.json"
    earlier = make_report([1.0] * 20, [2.0] * 20)
    ours, peers = earlier["columns"]
    ours.update(name="chain CPU", peer="chain onnxruntime")
    peers.update(name="chain onnxruntime")
    path.write_text(json.dumps(earlier))

    quick = ("--ep", "CPU", "--turns", 1, "--runs", 1)
    with spinning(max(2, psutil.cpu_count() or 1)):
        said = process("bench", chain, *quick, "--against", path)

    text = " ".join(said.out.split())
    assert said.code == 0
    assert "The machine was too busy for a verdict: " in text
    assert "than onnxruntime" not in text
    assert "UNDECIDED, which is not passed. 1 row compared: 1 too noisy." in text


def test_a_slowdown_regresses_in_the_gate_of_a_build_too(
    process,  # noqa: F811
    site,
    chain,
    tmp_path,
):
    def run(*options, slowdown):
        return process(
            *("gate", chain, "--ep", "Slowed", "--baseline", tmp_path / "gate.json"),
            *("--time", tmp_path / "times.json", "--turns", 5, *options),
            path=(site,),
            timeout=700,
            **{slowed_ep.SLOWDOWN: str(slowdown)},
        )

    written = run("--update", slowdown=0)
    # More than waiting for processors explains on any machine that runs tests.
    slowed = run("--json", slowdown=200)

    assert written.code == 0, written.err
    checks = {check["name"]: check for check in slowed.json["checks"]}
    [run_time] = [c for name, c in checks.items() if name.startswith("times run of ")]
    assert (slowed.code, run_time["status"]) == (1, "regressed"), run_time["message"]
    assert "--against" in run_time["command"]

    other = run("-c", "ep.partition_min_nodes=1", "--json", slowdown=0)

    # Times that cannot be judged are no success.
    (check,) = (c for c in other.json["checks"] if c["name"].startswith("times"))
    assert (other.code, check["status"]) == (1, "regressed")
    assert "the session options differ" in check["message"]


def run_gate(measured, path, slowdown=0.0):
    """Return the judgement of a measurement against a saved one, and its exit code."""
    amounts = ("--turns", 20, "--time-limit", 600, "--json")
    if not path.exists():
        assert measured("--save", path, *amounts, slowdown=slowdown).code == 0
        return None
    said = measured("--against", path, *amounts, slowdown=slowdown)
    assert said.code == said.json["judgement"]["failed"]
    return said.json["judgement"]


@pytest.mark.stress
@pytest.mark.timeout(7200)
def test_the_command_finds_a_slowdown_of_a_tenth(measured, tmp_path):
    path = tmp_path / "report.json"
    run_gate(measured, path)
    judgement = run_gate(measured, path, SLOWDOWN)

    [row] = [row for row in judgement["rows"] if row["row"] == "run"]
    # Wants a machine without other work: there, noise is no excuse.
    assert row["verdict"] == "slower", json.dumps(row)
    assert row["pvalue"] < 0.01


@pytest.mark.stress
@pytest.mark.timeout(7200)
def test_the_command_raises_no_alarm_in_20_tries(measured, tmp_path):
    path = tmp_path / "report.json"
    run_gate(measured, path)
    judgements = [run_gate(measured, path) for _ in range(TRIES)]

    assert [each["failed"] for each in judgements] == [False] * TRIES


@pytest.mark.stress
@pytest.mark.timeout(7200)
def test_the_gate_of_an_unchanged_model_raises_no_alarm_on_a_busy_machine_in_50_tries(
    process,  # noqa: F811
    chain,
    tmp_path,
):
    command = ("gate", chain, "--ep", "QNN", "--baseline", tmp_path / "gate.json")
    command += ("--time", tmp_path / "times.json", "--turns", 3)

    with spinning(max(2, psutil.cpu_count() or 1)):
        written = process(*command, "--update", timeout=700)
        said = [process(*command, timeout=700) for _ in range(50)]

    assert written.code == 0, written.err
    assert [each.code for each in said] == [0] * 50, [each.out for each in said]
