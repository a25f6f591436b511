"""Checks of threads and sessions: one session in many threads, many sessions at once.

Every result is compared with what a run alone gives; a check that passes is no proof, one that fails is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from epctx_conformance.scene import disagreement
from epctx_conformance.table import CheckFailed, check

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_conformance.models.building import SmallModel
    from epctx_conformance.scene import Scene
    from epctx_core import InferenceSession

T = TypeVar("T")

THREADS = 4
ROUNDS = 12
_HINT = (
    "`run` is called from many threads, and sessions know nothing of each other: share nothing, or lock it."
)


def _together(work: Callable[[int], T], count: int = THREADS) -> list[T]:
    """Call `work` with 0, 1, … in as many threads, all beginning at once; raise what the first of them raised."""
    ready = threading.Barrier(count)

    def begin(number: int) -> T:
        ready.wait()
        return work(number)

    with ThreadPoolExecutor(max_workers=count) as pool:
        return [future.result() for future in [pool.submit(begin, number) for number in range(count)]]


def _expecting(scene: Scene, model: SmallModel) -> Callable[[InferenceSession, int, str], None]:
    """Return what runs one of several inputs and raises CheckFailed if its results are not what it gives alone."""
    feeds = [model.feeds(seed) for seed in range(THREADS)]
    wanted = [scene.reference(model, each) for each in feeds]

    def expect(session: InferenceSession, which: int, what: str) -> None:
        results = session.run(None, feeds[which])
        tolerance = scene.requirements.tolerance
        different = disagreement(results, wanted[which], tolerance=tolerance, step=model.step)
        if different is not None:
            raise CheckFailed(f"{what}: {different}.", hint=_HINT)

    return expect


def _many_runs(scene: Scene, given: SmallModel | Path, count: int, what: str) -> None:
    """Have threads run sessions of the network, compiled or loaded; thread by thread another session of so many."""
    expect = _expecting(scene, scene.network)
    with ExitStack() as stack:
        sessions = [stack.enter_context(scene.session(given)) for _ in range(count)]

        def work(number: int) -> None:
            for _ in range(ROUNDS):
                expect(sessions[number % count], number, what)

        _together(work)


_OF_ONE = "a run beside others of one session"
_OF_TWO = "a run beside those of another session"


@check("concurrency", "many threads run one session that was compiled", needs=["concurrency"])
def _one_session(scene: Scene) -> None:
    _many_runs(scene, scene.network, 1, _OF_ONE)


@check("concurrency", "many threads run one session that was loaded", needs=["concurrency", "export"])
def _one_loaded_session(scene: Scene) -> None:
    _many_runs(scene, scene.compile(scene.network).path, 1, _OF_ONE)


@check("concurrency", "two sessions of one model run at the same time", needs=["concurrency"])
def _two_sessions(scene: Scene) -> None:
    _many_runs(scene, scene.network, 2, _OF_TWO)


@check(
    "concurrency",
    "two loaded sessions of one context model run at the same time",
    needs=["concurrency", "export"],
)
def _two_loaded_sessions(scene: Scene) -> None:
    _many_runs(scene, scene.compile(scene.network).path, 2, _OF_TWO)


@check("concurrency", "sessions of different models are made at the same time", needs=["concurrency"])
def _made_together(scene: Scene) -> None:
    models = [scene.network, *scene.claimed_models()][:THREADS]
    expected = [_expecting(scene, model) for model in models]

    def work(number: int) -> None:
        for _ in range(3):
            with scene.session(models[number]) as session:
                expected[number](session, 0, "a session made beside others")

    _together(work, len(models))


@check("concurrency", "models are compiled at the same time", needs=["concurrency", "export"])
def _compiled_together(scene: Scene) -> None:
    models = [scene.network, *scene.claimed_models()][:THREADS]
    paths = _together(lambda number: scene.compile(models[number]).path, len(models))
    for model, path in zip(models, paths, strict=True):
        with scene.session(path) as session:
            _expecting(scene, model)(session, 0, "a model that was compiled beside others")


@check("concurrency", "one context model is loaded by many threads at once", needs=["concurrency", "export"])
def _loaded_together(scene: Scene) -> None:
    expect, path = _expecting(scene, scene.network), scene.compile(scene.network).path

    def work(number: int) -> None:
        for _ in range(3):
            with scene.session(path) as session:
                expect(session, number, "a session loaded beside others")

    _together(work)


@check("concurrency", "closing a session leaves others as they are", needs=["concurrency"])
def _closing(scene: Scene) -> None:
    expect = _expecting(scene, scene.network)
    with scene.session(scene.network) as kept:
        scene.session(scene.network).close()
        try:
            expect(kept, 0, "a run after another session was closed")
        except CheckFailed:
            raise
        except Exception as error:
            raise CheckFailed(
                f"a session does not run any more after another one was closed: {error}",
                hint="Release what belongs to this instance alone; count the users of what is shared.",
            ) from error


@check("concurrency", "closing a loaded session leaves others as they are", needs=["concurrency", "export"])
def _closing_loaded(scene: Scene) -> None:
    expect, path = _expecting(scene, scene.network), scene.compile(scene.network).path
    with scene.session(path) as kept:
        scene.session(path).close()
        expect(kept, 0, "a run after another session of the same file was closed")


@check("concurrency", "sessions come and go while another one runs", needs=["concurrency"])
def _coming_and_going(scene: Scene) -> None:
    expect = _expecting(scene, scene.network)
    with scene.session(scene.network) as kept:

        def work(number: int) -> None:
            if number % 2 == 0:
                for _ in range(ROUNDS):
                    expect(kept, number, "a run while sessions come and go")
                return
            for _ in range(3):
                with scene.session(scene.network) as passing:
                    expect(passing, number, "a run of a session that comes and goes")

        _together(work)


@check("concurrency", "a session runs in a thread other than the one that made it", needs=["concurrency"])
def _another_thread(scene: Scene) -> None:
    expect = _expecting(scene, scene.network)
    session = _together(lambda _number: scene.session(scene.network), 1)[0]
    try:
        expect(session, 0, "a run in another thread than the session was made in")
    finally:
        _together(lambda _number: session.close(), 1)
