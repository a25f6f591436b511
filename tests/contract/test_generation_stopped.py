"""Stopping a compile: by the load cancellation flag from another thread, and by Ctrl-C.

EPs hear of both.
"""

from __future__ import annotations

import _thread
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.compiling import compiler
from support.engine_eps import scripted
from support.small_models import chain, saved, snapshot
from support.validating_eps import options_with, registry_with

import epctx_core as epctx
from epctx_core.errors import ModelLoadCanceled


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    return saved(chain(["Relu", "Add", "Neg", "Relu"]), folder / "m.onnx")


def watching(**script):
    """Return an EP that keeps its instances, to look at what they were given."""
    ep = scripted(**script)
    ep.instances = []
    original = ep.__init__

    def remember(self, context):
        original(self, context)
        ep.instances.append(self)

    ep.__init__ = remember
    return ep


def test_a_flag_set_before_stops_a_compile_before_an_ep_is_asked_and_taking_it_back_lets_it_run(
    source,
):
    ep = scripted()
    options = options_with(ep)
    made = epctx.ModelCompiler(options, source, registry=registry_with(ep))
    before = snapshot(source.parent)

    options.set_load_cancellation_flag(True)
    with pytest.raises(ModelLoadCanceled):
        made.compile_to_file()

    assert not {"get_capability", "compile"} & set(ep.calls)
    assert snapshot(source.parent) == before
    options.set_load_cancellation_flag(False)
    assert made.compile_to_file().output.exists()


@pytest.mark.parametrize("hook", ["get_capability", "compile", "get_ep_context_nodes"])
@pytest.mark.parametrize(
    "polls", [True, False], ids=["an EP that polls", "one that does not"]
)
def test_a_flag_set_from_another_thread_stops_a_compile_in_any_hook_and_leaves_nothing(
    source, hook, polls
):
    inside, set_by_then = threading.Event(), threading.Event()

    def play(honest, *_given):
        inside.set()
        assert set_by_then.wait(20)
        if polls:
            ep.instances[0].context.cancel.raise_if_requested()
        return honest()

    ep = watching(**{hook: play})
    options = options_with(ep)
    before = snapshot(source.parent)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            epctx.ModelCompiler(
                options, source, registry=registry_with(ep)
            ).compile_to_file
        )
        assert inside.wait(20)
        options.set_load_cancellation_flag(True)
        set_by_then.set()
        with pytest.raises(ModelLoadCanceled):
            running.result(20)

    assert snapshot(source.parent) == before
    assert ep.calls.count("shutdown") == 1


def test_a_flag_stops_an_ep_that_waits(source):
    waited = []

    def wait(honest):
        begun = time.monotonic()
        ep.instances[0].context.cancel.wait(20)
        waited.append(time.monotonic() - begun)
        return honest()

    ep = watching(compile=wait)
    options = options_with(ep)
    timer = threading.Timer(0.2, options.set_load_cancellation_flag, [True])
    timer.start()

    with pytest.raises(ModelLoadCanceled):
        epctx.ModelCompiler(
            options, source, registry=registry_with(ep)
        ).compile_to_file()

    timer.join()
    assert waited[0] < 10


def test_a_flag_stops_a_payload_that_is_being_written(source):
    before = snapshot(source.parent)

    def write(honest, writer):
        nodes = honest()
        options.set_load_cancellation_flag(True)
        nodes[0].payload.write(bytes(65 << 20))  # a flag is looked at every 64 MiB
        raise AssertionError("the payload was written to its end")

    ep = scripted(get_ep_context_nodes=write)
    options = options_with(ep)
    with pytest.raises(ModelLoadCanceled):
        epctx.ModelCompiler(
            options, source, registry=registry_with(ep)
        ).compile_to_file()

    assert snapshot(source.parent) == before


def test_a_flag_set_while_a_stream_takes_the_model_leaves_no_binary(source):
    ep = scripted()
    options = options_with(ep, ep__context_file_path=source.with_name("m_ctx.onnx"))
    made = epctx.ModelCompiler(options, source, registry=registry_with(ep))
    before = snapshot(source.parent)

    with pytest.raises(ModelLoadCanceled):
        made.compile_to_stream(lambda _chunk: options.set_load_cancellation_flag(True))

    assert snapshot(source.parent) == before


@pytest.mark.usefixtures("interruptible")
def test_control_c_is_a_wish_to_stop_for_an_eps_threads_and_leaves_nothing(source):
    seen = []

    def work(cancel):
        seen.append(cancel.wait(20))

    def interrupted(_honest):
        context = ep.instances[0].context
        thread = threading.Thread(target=work, args=(context.cancel,))
        thread.start()
        ep.thread = thread
        _thread.interrupt_main()
        time.sleep(20)

    def shut_down(_honest):
        # An EP ends its threads here: they must have heard of it by now.
        ep.thread.join(10)

    ep = watching(compile=interrupted, shutdown=shut_down)
    options = options_with(ep)
    before = snapshot(source.parent)

    with pytest.raises(KeyboardInterrupt):
        epctx.ModelCompiler(
            options, source, registry=registry_with(ep)
        ).compile_to_file()

    assert seen == [True]
    assert snapshot(source.parent) == before
    assert not options.cancellation.requested


@pytest.mark.usefixtures("interruptible")
def test_control_c_while_a_payload_is_written_leaves_nothing(source):
    def interrupted(honest, _writer):
        honest()
        _thread.interrupt_main()
        time.sleep(20)

    ep = scripted(get_ep_context_nodes=interrupted)
    before = snapshot(source.parent)
    made = compiler(source, ep)

    with pytest.raises(KeyboardInterrupt):
        made.compile_to_file()

    assert snapshot(source.parent) == before
    with pytest.raises(KeyboardInterrupt):
        made.compile_to_file()  # not "in progress"
