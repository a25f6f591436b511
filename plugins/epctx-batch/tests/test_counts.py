"""Counts of a batch and the time left, with a clock of the test."""

from __future__ import annotations

import math

import pytest
from epctx_batch import Task, TaskResult
from epctx_batch.counts import Counts
from epctx_batch.work import make_failed

pytestmark = pytest.mark.internal


def make_result(seconds=0.0, *, is_cached=False):
    return TaskResult(
        id="a",
        model="a.onnx",
        target="phone",
        state="done",
        was_cached=is_cached,
        seconds=seconds,
        nodes={},
        output="a_ctx.onnx",
        bytes=1,
        error=None,
        versions={},
    )


def make_task():
    return Task(
        id="a",
        model="a.onnx",
        target="phone",
        eps=["QNN"],
        options={},
        config={},
        folder="a",
        cache_dir=None,
        shared_cache=None,
        timeout=None,
        resources={},
    )


CACHED = make_result(is_cached=True)


def count(*ended):
    """Count tasks that ended, each with its time."""
    counts = Counts()
    for now, result in ended:
        counts.add(result, now)
    return counts


def test_a_batch_that_goes_on_promises_nothing_before_a_compile_ended():
    counts = count(*((n / 100, CACHED) for n in range(900)))

    assert counts.estimate_seconds(100) == math.inf
    assert counts.describe() == ["900 cached"]


def test_tasks_from_the_cache_at_its_begin_do_not_make_a_batch_seem_fast():
    counts = count(*((n / 100, CACHED) for n in range(900)), (69, make_result(60)))

    assert counts.estimate_seconds(99) == 99 * 60


def test_tasks_at_work_at_a_time_share_the_time_that_is_left():
    ended = [(10 * turn + 10, make_result(10)) for turn in range(5) for _ in range(4)]

    counts = count(*ended)

    assert counts.estimate_seconds(80) == pytest.approx(80 * 10 / 4)


def test_the_last_task_at_work_takes_as_long_as_one():
    counts = count(*((10, make_result(10)) for _ in range(8)))

    assert counts.estimate_seconds(1) == 10
    assert counts.estimate_seconds(0) == 0


def test_tasks_from_the_cache_between_compiles_are_expected_to_go_on():
    ended = [(now, make_result(1)) for now in range(1, 21)]
    mixed = [pair for now, task in ended for pair in ((now, task), (now, CACHED))]

    assert count(*mixed).estimate_seconds(100) == pytest.approx(50)


def test_the_time_that_failed_tasks_took_is_expected_again():
    failed = make_failed(make_task(), "EP_FAIL", "it took too long.")
    ended = [(10, make_result(10)), (20, failed), (30, make_result(10)), (40, failed)]

    counts = count(*ended)

    assert counts.estimate_seconds(10) == pytest.approx(100)
    assert counts.describe() == ["2 failed"]


def test_tasks_that_fail_at_once_give_no_estimate():
    failed = make_failed(make_task(), "INVALID_PROTOBUF", "no model.")

    assert count((0.01, failed), (0.02, failed)).estimate_seconds(9) == math.inf
