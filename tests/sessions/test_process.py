"""The collector is off while an index is built, and afterwards what it was before."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from epctx_core.process import PAUSED_FROM, pause_collection, resume_collection

pytestmark = pytest.mark.internal


@pytest.fixture(autouse=True)
def _collector_as_it_was():
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("before", [True, False], ids=["on", "off"])
def test_the_collector_is_off_inside_and_as_before_outside(before):
    (gc.enable if before else gc.disable)()

    with pause_collection(PAUSED_FROM), pause_collection(PAUSED_FROM):
        assert not gc.isenabled()

    assert gc.isenabled() is before


def test_for_a_small_model_the_collector_stays_on():
    gc.enable()

    with pause_collection(PAUSED_FROM - 1):
        assert gc.isenabled()


def test_an_exception_brings_the_collector_back():
    gc.enable()

    with pytest.raises(KeyError), pause_collection(PAUSED_FROM):
        raise KeyError

    assert gc.isenabled()


def test_after_the_blocks_of_several_threads_the_collector_is_back():
    gc.enable()
    inside, leave = threading.Event(), threading.Event()

    def pause():
        with pause_collection(PAUSED_FROM), resume_collection():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=pause)
    thread.start()
    inside.wait(10)
    with pause_collection(PAUSED_FROM):
        leave.set()
        thread.join()

    assert gc.isenabled()


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self):
        self.ring = self


def test_inside_a_pause_the_collector_can_be_resumed_for_what_is_made_there():
    gc.enable()

    with pause_collection(PAUSED_FROM):
        with resume_collection():
            inside = weakref.ref(Ring())
            gc.collect()
            resumed = gc.isenabled()
            found = inside() is None
        off_again = not gc.isenabled()

    assert resumed
    assert found
    assert off_again
    assert gc.isenabled()


@pytest.mark.parametrize("before", [True, False], ids=["on", "off"])
def test_without_a_pause_there_is_nothing_to_resume(before):
    (gc.enable if before else gc.disable)()

    with resume_collection():
        assert gc.isenabled() is before

    assert gc.isenabled() is before


def test_a_host_that_turned_the_collector_off_keeps_it_off():
    gc.disable()

    with pause_collection(PAUSED_FROM), resume_collection():
        assert not gc.isenabled()


def test_what_a_host_set_aside_stays_aside():
    gc.enable()
    gc.freeze()
    aside = gc.get_freeze_count()

    try:
        with pause_collection(PAUSED_FROM), resume_collection():
            assert gc.isenabled()
        # Of so many objects a few may have been freed since, by whoever held them.
        assert 0 <= aside - gc.get_freeze_count() < 100
    finally:
        gc.unfreeze()
