"""Many threads on one session, many sessions at once, closing under way, and values let
go after their last use.
"""

from __future__ import annotations

import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.engine_eps import Alpha, Beta, scripted
from support.small_models import chain, example, saved

import epctx_core as epctx

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 16


def options_with(*eps):
    registry, options = epctx.Registry(entry_points=False), epctx.SessionOptions()
    for ep in eps:
        registry.register(ep)
        options.add_provider(ep.name)
    return registry, options


def compiled_by_qnn(network, name, folder):
    """Compile a network; return its copy and the context model."""
    source, options = network(name), epctx.SessionOptions()
    options.add_provider("QNN")
    return source, epctx.ModelCompiler(options, source.path).compile_to_file(
        folder / "net_ctx.onnx"
    ).output


def in_threads(work: Callable[[int], object], count: int = THREADS) -> list[object]:
    """Run `work(number)` in that many threads which all begin at one moment; return
    what each gave.
    """
    gate = threading.Barrier(count)

    def begin(number: int) -> object:
        gate.wait(timeout=30)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


@pytest.mark.parametrize("name", ["bert", "lstm", "resnet"])
def test_runs_from_many_threads_give_what_one_thread_gets(network, tmp_path, name):
    _, model = compiled_by_qnn(network, name, tmp_path)
    feeds = [network(name, seed=seed).inputs for seed in range(4)]

    with epctx.InferenceSession(model) as session:
        alone = [session.run(None, feed)[0] for feed in feeds]
        together = in_threads(
            lambda number: [
                session.run(None, feeds[(number + n) % 4])[0] for n in range(4)
            ]
        )

    for number, outputs in enumerate(together):
        for n, output in enumerate(outputs):
            np.testing.assert_array_equal(output, alone[(number + n) % 4])
    assert not np.array_equal(alone[0], alone[1])


def test_sessions_made_run_and_closed_at_the_same_time_do_not_disturb_each_other(
    network, tmp_path
):
    source, model = compiled_by_qnn(network, "lstm", tmp_path)
    options = epctx.SessionOptions()
    options.add_provider("QNN")

    def work(number):
        path, given = (model, None) if number % 2 else (source.path, options)
        with epctx.InferenceSession(path, given) as session:
            return session.run(None, source.inputs)[0]

    outputs = [output for _ in range(3) for output in in_threads(work)]

    for output in outputs:
        np.testing.assert_array_equal(output, source.reference[0])


def test_compiles_into_one_folder_at_the_same_time_all_succeed(network, tmp_path):
    source = network("lstm")

    def work(number):
        options = epctx.SessionOptions()
        options.add_provider("QNN")
        return epctx.ModelCompiler(options, source.path).compile_to_file(
            tmp_path / f"net{number % 4}_ctx.onnx"
        )

    in_threads(work, 8)

    assert len(list(tmp_path.iterdir())) == 8
    for number in range(4):
        with epctx.InferenceSession(tmp_path / f"net{number}_ctx.onnx") as session:
            np.testing.assert_array_equal(
                session.run(None, source.inputs)[0], source.reference[0]
            )


class Held:
    """A step that stands still until it is told to go on, and knows when it runs."""

    def __init__(self):
        self.entered, self.released = threading.Event(), threading.Event()
        self.inside = self.ended = 0

    def around(self, honest):
        return [type(made)(self._held(made.run), close=made.close) for made in honest()]

    def _held(self, run):
        def held(inputs, outputs):
            # First, since onnxruntime would stop by itself once the run is to end.
            results = run(inputs, outputs)
            self.inside += 1
            self.entered.set()
            assert self.released.wait(timeout=30)
            self.ended += 1
            return results

        return held


def refuses_runs(session):
    """Whether a session is being closed; asked with a run that gives no inputs, so that
    it never begins.
    """
    with pytest.raises(epctx.EpctxError) as refused:
        session.run(None, {})
    return isinstance(refused.value, epctx.RuntimeException)


def test_close_waits_for_running_calls_and_refuses_new_ones(tmp_path):
    held, x = Held(), example()
    ep = scripted(compile=held.around)
    registry, options = options_with(ep)
    path = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")
    session = epctx.InferenceSession(path, options, registry=registry)

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(session.run, None, {"x": x}) for _ in range(2)]
        assert held.entered.wait(timeout=30)
        while held.inside < 2:
            time.sleep(0.001)
        closing = pool.submit(session.close)
        while not refuses_runs(session):
            time.sleep(0.001)
        with pytest.raises(epctx.RuntimeException, match="closed"):
            session.run(None, {"x": x})
        time.sleep(0.05)
        early = closing.done() or "shutdown" in ep.calls
        held.released.set()
        results = [run.result(timeout=30)[0] for run in runs]
        closing.result(timeout=30)

    assert not early
    assert held.ended == 2
    assert ep.calls.count("shutdown") == 1
    np.testing.assert_array_equal(results[0], results[1])


def test_closing_from_many_threads_shuts_an_ep_down_once(tmp_path):
    ep = scripted()
    registry, options = options_with(ep)
    path = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")
    session = epctx.InferenceSession(path, options, registry=registry)

    in_threads(lambda _number: session.close())

    assert ep.calls.count("shutdown") == 1


def test_a_session_that_is_dropped_shuts_its_eps_down(tmp_path):
    ep = scripted()
    registry, options = options_with(ep)
    path = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")

    epctx.InferenceSession(path, options, registry=registry)

    assert ep.calls.count("shutdown") == 1


def test_a_run_is_stopped_between_two_steps(tmp_path):
    held = Held()
    ep = scripted(compile=held.around)
    registry, options = options_with(ep, Beta)
    path = saved(chain(["Relu", "Neg", "Relu"]), tmp_path / "m.onnx")
    run_options = epctx.RunOptions()

    with (
        epctx.InferenceSession(path, options, registry=registry) as session,
        ThreadPoolExecutor(1) as pool,
    ):
        run = pool.submit(session.run, None, {"x": example()}, run_options)
        assert held.entered.wait(timeout=30)
        run_options.terminate = True
        held.released.set()

        with pytest.raises(epctx.RuntimeException, match="terminate"):
            run.result(timeout=30)

    assert held.ended == 1


class Census:
    """Counts, whenever an EP's step begins, which results of earlier steps are still
    alive.
    """

    def __init__(self):
        self.results: list[weakref.ref[np.ndarray]] = []
        self.alive: list[int] = []

    def around(self, honest):
        return [
            type(made)(self._counted(made.run), close=made.close) for made in honest()
        ]

    def _counted(self, run):
        def counted(inputs, outputs):
            self.alive.append(sum(result() is not None for result in self.results))
            results = [np.array(result) for result in run(inputs, outputs)]
            self.results += map(weakref.ref, results)
            return results

        return counted


def test_a_value_is_let_go_after_its_last_use(tmp_path):
    census = Census()
    registry, options = options_with(scripted(compile=census.around), Beta)
    path = saved(chain(["Relu", "Neg"] * 8 + ["Relu"]), tmp_path / "m.onnx")

    with epctx.InferenceSession(path, options, registry=registry) as session:
        output = session.run(None, {"x": example()})

    # Of nine results, each has been read by the EP in between when the next step
    # begins.
    assert census.alive == [0] * 9
    assert [result() is not None for result in census.results] == [False] * 8 + [True]
    assert len(output) == 1


def test_nothing_of_a_session_stays_alive_after_it_is_closed(tmp_path):
    kept = []
    ep = scripted(
        compile=lambda honest: [
            kept.append(weakref.ref(made.run.__self__)) or made for made in honest()
        ]
    )
    registry, options = options_with(ep)
    path = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")

    with epctx.InferenceSession(path, options, registry=registry) as session:
        session.run(None, {"x": example()})
        before = [ref() is not None for ref in kept]
    del session

    assert before == [True]
    assert [ref() is not None for ref in kept] == [False]


def test_results_are_the_callers_own(tmp_path):
    registry, options = options_with(Alpha)
    path = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")

    with epctx.InferenceSession(path, options, registry=registry) as session:
        first = session.run(None, {"x": example()})[0]
        copy = first.copy()
        first[:] = 7
        second = session.run(None, {"x": example()})[0]

    np.testing.assert_array_equal(second, copy)
