"""Wrappers that a host puts around every EP's hooks: what they see, and who is blamed when they fail."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pluggy
import pytest
from registry.providers import breaks_early, breaks_late, ep, raising, wrapping

from epctx_core.errors import EPFail, Fail, InvalidArgument
from epctx_core.plugin import hookimpl


class Trace:
    """Notes the EPs whose hooks are called."""

    def __init__(self):
        self.seen = []

    @hookimpl(wrapper=True)
    def compile(self, ep, partitions):
        self.seen.append(f"compile {ep}")
        result = yield
        self.seen.append(f"compiled {len(result[0])}")
        return result

    @hookimpl(hookwrapper=True)
    def shutdown(self, ep):
        self.seen.append(f"shutdown {ep}")
        yield


def test_a_wrapper_sees_every_eps_call_and_which_ep_it_is(session):
    trace, instances = Trace(), session(ep("A", shutdown=lambda self: None), ep("B"))

    instances.wrap(trace)
    instances.call("A", "compile", partitions=[1])
    instances.call("B", "compile", partitions=[1, 2])
    instances.shutdown()

    assert trace.seen == ["compile A", "compiled 1", "compile B", "compiled 2", "shutdown A"]


def test_a_wrapper_added_after_a_call_sees_the_next_one(session):
    trace, instances = Trace(), session(ep("A"))
    instances.call("A", "compile", partitions=[])

    instances.wrap(trace)
    instances.call("A", "compile", partitions=[])

    assert trace.seen == ["compile A", "compiled 0"]


def test_a_wrapper_sees_the_typed_error_of_the_ep(session):
    seen = []

    class Errors:
        @hookimpl(wrapper=True)
        def compile(self, ep):
            try:
                return (yield)
            except EPFail as error:
                seen.append(error.ep)
                raise

    instances = session(ep("A", compile=raising(KeyError("k"))))
    instances.wrap(Errors())

    with pytest.raises(EPFail):
        instances.call("A", "compile", partitions=[])

    assert seen == ["A"]


def forgets(self):
    yield


def empties(self):
    yield
    return []


def doubles(self):
    result = yield
    return result * 2


def spoils(self):
    yield
    return ["no list"]


@pytest.mark.parametrize("wrapper", [forgets, breaks_early, breaks_late, empties, doubles, spoils])
def test_a_wrapper_that_fails_is_blamed_itself(session, wrapper):
    instances = session(ep("A"))
    instances.wrap(wrapping("compile", wrapper))

    with pytest.raises(Fail, match="a wrapper that the host put around compile of A failed") as caught:
        instances.call("A", "compile", partitions=[])

    assert "not at fault" in caught.value.hint


def test_a_wrapper_that_puts_something_else_into_the_answer_is_blamed_itself(session):
    def replaces(self):
        yield
        return [["no refusal"]]

    instances = session(ep("A"))
    instances.wrap(wrapping("get_capability", replaces))

    with pytest.raises(
        Fail, match=r"around get_capability of A failed: it changed the answer: .* gave a str"
    ):
        instances.call("A", "get_capability", graph="g", kernels=None)


@pytest.mark.parametrize(
    ("attribute", "method", "why"),
    [
        ("compile", hookimpl(lambda self: []), "only add wrappers"),
        ("compiel", hookimpl(forgets, wrapper=True), "Did you mean 'compile'"),
        ("compile", hookimpl(lambda self: None, wrapper=True), "no yield"),
        ("trace", lambda self: None, "no hook wrapper"),
    ],
)
def test_what_is_no_wrapper_of_a_hook_is_refused_and_leaves_nothing_behind(session, attribute, method, why):
    instances = session(ep("A"))

    with pytest.raises(InvalidArgument, match=why):
        instances.wrap(type("W", (), {attribute: method})())

    assert instances.call("A", "compile", partitions=[1]) == [("A", 1)]


def test_a_wrapper_with_an_argument_that_the_hook_does_not_have_is_refused(session):
    def compile_(self, partition):
        return (yield)

    with pytest.raises(InvalidArgument, match="takes 'partition'"):
        session(ep("A")).wrap(type("W", (), {"compile": hookimpl(compile_, wrapper=True)})())


def test_a_wrapper_is_registered_once_and_as_an_object(session):
    trace, instances = Trace(), session(ep("A"))
    instances.wrap(trace)

    with pytest.raises(InvalidArgument, match="registered as a wrapper already"):
        instances.wrap(trace)
    with pytest.raises(InvalidArgument, match="is a class"):
        instances.wrap(Trace)


def test_a_module_can_be_a_wrapper(session, packages):
    packages.write_module(
        "trace_of_host",
        "from epctx_core.plugin import hookimpl\nseen = []\n"
        "@hookimpl(wrapper=True)\ndef compile(ep, partitions):\n    seen.append((ep, partitions))\n    return (yield)\n",
    )
    import trace_of_host

    instances = session(ep("A"))
    instances.wrap(trace_of_host)
    instances.call("A", "compile", partitions=[1])

    assert trace_of_host.seen == [("A", [1])]


def test_what_wraps_hooks_is_made_once_and_not_for_each_call(session, monkeypatch):
    instances = session(ep("A"))
    instances.wrap(Trace())
    monkeypatch.delattr(pluggy, "PluginManager")

    assert instances.call("A", "compile", partitions=[1]) == [("A", 1)]


@pytest.mark.parametrize("closed", [False, True])
def test_an_error_that_passes_wrappers_and_a_session_that_ended_keep_nothing_alive(session, closed):
    found = []

    class Work:
        """Stands for what an EP holds while it compiles."""

    def compiles(self, partitions):
        work = Work()
        found.append(weakref.ref(work))
        if closed:
            self.work = work
            return [work for _ in partitions]
        raise ValueError("no memory left")

    instances = session(ep("A", compile=compiles))
    instances.wrap(Trace())
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(EPFail):
            instances.call("A", "compile", partitions=[1])
        if closed:
            instances.shutdown()
            del instances
        assert found[0]() is None
    finally:
        gc.enable()


def test_a_wrapper_that_pluggy_refuses_is_an_error_of_the_host_and_leaves_nothing_registered(session):
    log = []
    instances = session(ep("A", shutdown=lambda self: log.append("A")))

    class Both:
        @hookimpl(wrapper=True, hookwrapper=True)
        def shutdown(self):
            yield

    with pytest.raises(InvalidArgument, match="no wrapper that pluggy takes"):
        instances.wrap(Both())
    instances.wrap(Trace())
    instances.shutdown()

    assert log == ["A"]
