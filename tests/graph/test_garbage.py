"""The collector is off while an index is built, and afterwards what it was before."""

from __future__ import annotations

import gc
import threading

import pytest

from epctx_core.graph.garbage import collection_paused


@pytest.fixture(autouse=True)
def _collector_as_it_was():
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("before", [True, False], ids=["on", "off"])
def test_the_collector_is_off_inside_and_as_before_outside(before):
    (gc.enable if before else gc.disable)()

    with collection_paused(), collection_paused():
        assert not gc.isenabled()

    assert gc.isenabled() is before


def test_an_exception_brings_the_collector_back():
    gc.enable()

    with pytest.raises(KeyError), collection_paused():
        raise KeyError

    assert gc.isenabled()


def test_the_last_of_several_threads_brings_the_collector_back():
    gc.enable()
    inside, leave = threading.Event(), threading.Event()

    def pause():
        with collection_paused():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=pause)
    thread.start()
    inside.wait(10)
    with collection_paused():
        pass
    still_off = not gc.isenabled()
    leave.set()
    thread.join()

    assert still_off
    assert gc.isenabled()
