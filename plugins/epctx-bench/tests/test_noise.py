import json
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from epctx_bench.noise import LIMIT, Load, Watcher, assess_load

pytestmark = pytest.mark.internal

SECONDS = 1.0
PROCESSORS = psutil.cpu_count() or 1
IDLE = Load(run=3.0, waited=0.01, own=3.0, others=0.05, stolen=0.0, elapsed=3.0)


@contextmanager
def spinning(number):
    """Processes that compute for ever, and have begun to."""
    program = "print('ready', flush=True)\nwhile True: pass"
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        for _ in range(number)
    ]
    try:
        for process in processes:
            process.stdout.readline()
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def watch(times=1, number=1, proc="/proc"):
    """Return what watchers say about processes that compute, one after the other."""
    program = Path(__file__).with_name("watched.py")
    output = subprocess.run(
        [sys.executable, program, str(times), str(SECONDS), str(number), proc],
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    return json.loads(output)


@pytest.mark.parametrize("proc", ["/proc", "no-such-folder"])
def test_a_machine_with_a_spinning_process_on_each_processor_is_busy_each_time(proc):
    with spinning(PROCESSORS):
        found = watch(times=3, proc=proc)

    assert [each["busy"] for each in found] == [True] * 3
    assert min(each["share"] for each in found) > 2 * LIMIT
    assert all("was too busy" in each["reason"] for each in found)


@pytest.mark.parametrize("proc", ["/proc", "no-such-folder"])
def test_an_idle_machine_is_not_busy(proc):
    [found] = watch(proc=proc)

    # Other programs may run beside the tests; the evidence is each process's own count.
    assert not found["busy"] or found["others"] > LIMIT * SECONDS
    assert found["threads"] == 1


def test_more_threads_of_ours_than_processors_are_not_noise():
    [found] = watch(number=2 * PROCESSORS)

    assert not found["busy"] or found["others"] > LIMIT * SECONDS


def test_waiting_for_others_is_noise():
    noise = assess_load(replace(IDLE, run=1.84, waited=1.16, others=4.1))

    assert noise.busy
    assert noise.share == pytest.approx(1.16 / 3)
    assert noise.reason == (
        "The machine was too busy for a verdict: for 38.7% of their time the measured "
        "processes waited for a processor that others used."
    )


def test_others_that_nobody_waits_for_are_not_noise():
    # A container sees the load of its whole host.
    noise = assess_load(replace(IDLE, others=120.0))

    assert not noise.busy
    assert noise.reason.startswith("The machine was free enough: for 0.3% ")


def test_waiting_for_each_other_is_not_noise():
    assert not assess_load(replace(IDLE, run=6.0, waited=12.0)).busy


def test_stolen_processors_are_noise():
    noise = assess_load(replace(IDLE, stolen=0.6))

    assert noise.busy
    assert noise.reason.endswith("and the host took the processors away for 20.0%.")


def test_full_processors_are_noise_where_waits_are_not_counted():
    uncounted = replace(IDLE, run=0.0, waited=0.0, own=1.5)
    noise = assess_load(replace(uncounted, others=3.0 * PROCESSORS - 1.5))

    assert noise.busy
    assert "all processors were in use" in noise.reason
    assert not assess_load(replace(uncounted, others=0.05)).busy


def test_a_period_without_any_load_is_not_noise():
    assert not assess_load(
        Load(run=0, waited=0, own=0, others=0, stolen=0, elapsed=0)
    ).busy


def test_a_watcher_passes_on_what_was_raised_and_ends_its_thread():
    with pytest.raises(ZeroDivisionError), Watcher() as watcher:
        time.sleep(0.3)
        _ = 1 / 0

    assert 0 <= watcher.noise.share <= 1
