"""Checks of threads and sessions: one session in many threads, many sessions at once.

Every result is compared with what a run alone gives; a check that passes is no proof, one that fails is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

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


class _Expected:
    """What each of several inputs gives when nothing else goes on.

    Args:
        scene: the EP.
        model: what is run.
    """

    def __init__(self, scene: Scene, model: SmallModel) -> None:
        self._tolerance = scene.requirements.tolerance
        self._feeds = [model.feeds(seed) for seed in range(THREADS)]
        self._wanted = [scene.reference(model, feeds) for feeds in self._feeds]
        self._step = model.step

    def run(self, session: InferenceSession, which: int, what: str) -> None:
        """Run one of the inputs and raise CheckFailed if its results are not its own."""
        results: Sequence[Any] = session.run(None, self._feeds[which])
        wanted = self._wanted[which]
        different = disagreement(results, wanted, tolerance=self._tolerance, step=self._step)
        if different is not None:
            raise CheckFailed(f"{what}: {different}.", hint=_HINT)


def _many_runs(session: InferenceSession, expected: _Expected, what: str) -> None:
    def work(number: int) -> None:
        for _ in range(ROUNDS):
            expected.run(session, number, what)

    _together(work)


@check("concurrency", "many threads run one session that was compiled", needs=["concurrency"])
def _one_session(scene: Scene) -> None:
    model = scene.network
    expected = _Expected(scene, model)
    with scene.session(model) as session:
        _many_runs(session, expected, "a run beside others of one session")


@check("concurrency", "many threads run one session that was loaded", needs=["concurrency", "export"])
def _one_loaded_session(scene: Scene) -> None:
    model = scene.network
    expected = _Expected(scene, model)
    with scene.session(scene.compile(model).path) as session:
        _many_runs(session, expected, "a run beside others of one session")


@check("concurrency", "two sessions of one model run at the same time", needs=["concurrency"])
def _two_sessions(scene: Scene) -> None:
    model = scene.network
    expected = _Expected(scene, model)
    with scene.session(model) as first, scene.session(model) as second:

        def work(number: int) -> None:
            for _ in range(ROUNDS):
                expected.run((first, second)[number % 2], number, "a run beside those of another session")

        _together(work)


@check(
    "concurrency",
    "two loaded sessions of one context model run at the same time",
    needs=["concurrency", "export"],
)
def _two_loaded_sessions(scene: Scene) -> None:
    model = scene.network
    expected = _Expected(scene, model)
    path = scene.compile(model).path
    with scene.session(path) as first, scene.session(path) as second:

        def work(number: int) -> None:
            for _ in range(ROUNDS):
                expected.run((first, second)[number % 2], number, "a run beside those of another session")

        _together(work)


@check("concurrency", "sessions of different models are made at the same time", needs=["concurrency"])
def _made_together(scene: Scene) -> None:
    models = [scene.network, *scene.claimed_models()][:THREADS]
    expected = [_Expected(scene, model) for model in models]

    def work(number: int) -> None:
        for _ in range(3):
            with scene.session(models[number]) as session:
                expected[number].run(session, 0, "a session made beside others")

    _together(work, len(models))


@check("concurrency", "models are compiled at the same time", needs=["concurrency", "export"])
def _compiled_together(scene: Scene) -> None:
    models = [scene.network, *scene.claimed_models()][:THREADS]
    expected = [_Expected(scene, model) for model in models]
    paths: list[Path] = _together(lambda number: scene.compile(models[number]).path, len(models))
    for number, path in enumerate(paths):
        with scene.session(path) as session:
            expected[number].run(session, 0, "a model that was compiled beside others")


@check("concurrency", "one context model is loaded by many threads at once", needs=["concurrency", "export"])
def _loaded_together(scene: Scene) -> None:
    model = scene.network
    expected = _Expected(scene, model)
    path = scene.compile(model).path

    def work(number: int) -> None:
        for _ in range(3):
            with scene.session(path) as session:
                expected.run(session, number, "a session loaded beside others")

    _together(work)


@check("concurrency", "closing a session leaves others as they are", needs=["concurrency"])
def _closing(scene: Scene) -> None:
    model = scene.network
    expected = _Expected(scene, model)
    with scene.session(model) as kept:
        scene.session(model).close()
        try:
            expected.run(kept, 0, "a run after another session was closed")
        except CheckFailed:
            raise
        except Exception as error:
            raise CheckFailed(
                f"a session does not run any more after another one was closed: {error}",
                hint="Release what belongs to this instance alone; count the users of what is shared.",
            ) from error


@check("concurrency", "closing a loaded session leaves others as they are", needs=["concurrency", "export"])
def _closing_loaded(scene: Scene) -> None:
    model = scene.network
    expected = _Expected(scene, model)
    path = scene.compile(model).path
    with scene.session(path) as kept:
        scene.session(path).close()
        expected.run(kept, 0, "a run after another session of the same file was closed")


@check("concurrency", "sessions come and go while another one runs", needs=["concurrency"])
def _coming_and_going(scene: Scene) -> None:
    model = scene.network
    expected = _Expected(scene, model)
    with scene.session(model) as kept:

        def work(number: int) -> None:
            for _ in range(3 if number % 2 else ROUNDS):
                if number % 2 == 0:
                    expected.run(kept, number, "a run while sessions come and go")
                    continue
                with scene.session(model) as passing:
                    expected.run(passing, number, "a run of a session that comes and goes")

        _together(work)


@check("concurrency", "a session runs in a thread other than the one that made it", needs=["concurrency"])
def _another_thread(scene: Scene) -> None:
    model = scene.network
    expected = _Expected(scene, model)
    session = _together(lambda _number: scene.session(model), 1)[0]
    try:
        expected.run(session, 0, "a run in another thread than the session was made in")
    finally:
        _together(lambda _number: session.close(), 1)
