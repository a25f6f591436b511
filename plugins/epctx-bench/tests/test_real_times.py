import time

import numpy as np
import onnx
import onnxruntime
import pytest
from epctx_bench import gate, ratio
from epctx_bench.gate import Verdict, judge
from epctx_bench.noise import Watcher
from epctx_bench.ratio import estimate_ratio
from onnx import TensorProto, helper
from simulated_reports import report

pytestmark = pytest.mark.internal

TURNS = 40
CALLS = 50
# A real machine is judged here, and a false alarm would be a flaky test.
CERTAIN = 1e-6


@pytest.fixture(autouse=True)
def certain(monkeypatch):
    """Judge, and give intervals, at a level that no flaky test reaches."""
    monkeypatch.setattr(gate, "ALPHA", CERTAIN)
    monkeypatch.setattr(ratio, "CONFIDENCE", 1 - CERTAIN)


@pytest.fixture(scope="module")
def product():
    """A run of a small model by onnxruntime, on one thread."""
    types = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64])
        for name in "xy"
    }
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "x"], ["y"])],
        "product",
        [types["x"]],
        [types["y"]],
    )
    model = helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]
    )
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    inputs = {"x": np.ones((64, 64), np.float32)}
    return lambda: session.run(None, inputs)


def measure(call, calls):
    """Return a report of so many calls beside `CALLS` of the same, in turns."""

    def time_calls(number):
        begin = time.perf_counter()
        for _ in range(number):
            call()
        return time.perf_counter() - begin

    columns = {"ours": [], "peers": []}
    time_calls(CALLS)
    with Watcher() as watcher:
        for turn in range(TURNS):
            order = sorted(columns, reverse=bool(turn % 2))
            for column in order:
                number = calls if column == "ours" else CALLS
                columns[column].append(time_calls(number))
    return report(*columns.values(), noise=watcher.noise.as_dict())


def judge_measured(saved, now):
    """Return the verdict, or None where the machine was too busy for one."""
    [row] = judge(saved, now).rows
    if any(each["noise"]["busy"] for each in (saved, now)):
        assert row.verdict is Verdict.TOO_NOISY
        assert "The machine was too busy" in row.reason
        return None

    if row.verdict is Verdict.TOO_NOISY:
        assert row.high >= 1.1
        return None
    return row.verdict


def test_a_tenth_of_added_work_is_found_or_the_machine_is_too_noisy(product):
    saved = measure(product, CALLS)
    now = measure(product, round(1.1 * CALLS))

    assert judge_measured(saved, now) in {Verdict.SLOWER, None}


def test_the_same_work_is_not_slower_or_the_machine_is_too_noisy(product):
    saved, now = measure(product, CALLS), measure(product, CALLS)

    assert judge_measured(saved, now) in {Verdict.NOT_SLOWER, None}


def test_three_times_the_work_is_three_times_as_slow_or_the_machine_is_busy(product):
    measured = measure(product, 3 * CALLS)
    ours, peers = (
        column["rows"]["load_warm"]["samples"] for column in measured["columns"]
    )
    found = estimate_ratio(ours, peers)

    # The longer work meets other processes more often.
    within = found.low <= 3 * 1.05 and found.high >= 3 / 1.05
    assert within or measured["noise"]["busy"]
