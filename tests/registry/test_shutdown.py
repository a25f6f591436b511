"""Shutting down the EPs of a session: each exactly once, whatever the others do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from registry.providers import ep, raising

from epctx_core.errors import EPFail, InvalidArgument


def noting(log, name, error=None):
    def shutdown(self):
        log.append(name)
        if error:
            raise error

    return shutdown


def test_eps_are_shut_down_once_in_reverse_order(session):
    log = []
    instances = session(
        *(ep(name, shutdown=noting(log, name)) for name in "ABC"), ep("D")
    )

    instances.shutdown()
    instances.shutdown()

    assert log == ["C", "B", "A"]


@pytest.mark.parametrize(
    "error", [ValueError("stuck"), SystemExit(2), InvalidArgument("stuck")]
)
def test_an_ep_that_fails_to_shut_down_is_logged_and_does_not_stop_the_others(
    session, error, caplog
):
    log = []
    instances = session(
        ep("A", shutdown=noting(log, "A")), ep("B", shutdown=noting(log, "B", error))
    )

    instances.shutdown()
    instances.shutdown()

    assert log == ["B", "A"]
    (entry,) = [r for r in caplog.records if r.levelname == "ERROR"]
    assert entry.name == "epctx.providers"
    assert "B (epctx-test 1.2)" in entry.getMessage()


def test_an_interrupt_while_shutting_down_waits_until_all_are(session):
    log = []
    instances = session(
        ep("A", shutdown=noting(log, "A")),
        ep("B", shutdown=noting(log, "B", KeyboardInterrupt())),
    )

    with pytest.raises(KeyboardInterrupt):
        instances.shutdown()

    assert log == ["B", "A"]


def test_an_ep_is_shut_down_after_a_failed_compile(session):
    log = []
    instances = session(
        ep("A", compile=raising(ValueError()), shutdown=noting(log, "A"))
    )
    with pytest.raises(EPFail):
        instances.call("A", "compile", partitions=[])

    instances.shutdown()

    assert log == ["A"]


def test_threads_that_close_at_the_same_time_shut_an_ep_down_once(session):
    log = []
    instances = session(ep("A", shutdown=noting(log, "A")))
    start = threading.Barrier(8)

    def close():
        start.wait(10)
        instances.shutdown()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(close) for _ in range(8)]:
            done.result(10)

    assert log == ["A"]


def test_an_ep_that_shuts_the_session_down_from_its_own_shutdown_leaves_none_out(
    session,
):
    log, found = [], []

    def again(self):
        log.append("C")
        found[0].shutdown()

    found.append(
        session(
            *(ep(name, shutdown=noting(log, name)) for name in "AB"),
            ep("C", shutdown=again),
        )
    )

    found[0].shutdown()

    assert log == ["C", "B", "A"]


def test_while_one_thread_shuts_eps_down_another_that_asks_for_it_too_takes_none_from_it(
    session,
):
    log, began, goes_on = [], threading.Event(), threading.Event()

    def slowly(self):
        log.append("C")
        began.set()
        assert goes_on.wait(60)

    instances = session(
        *(ep(name, shutdown=noting(log, name)) for name in "AB"),
        ep("C", shutdown=slowly),
    )
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(instances.shutdown)
        assert began.wait(60)
        instances.shutdown()
        goes_on.set()
        first.result(60)

    assert log == ["C", "B", "A"]
